//! Recipes: what a worker process needs to plan the same query again without listing files, reading
//! footers for planning, or asking anyone.

use std::sync::Arc;

use arrow::datatypes::Schema;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::scalar::ScalarValue;
use serde::{Deserialize, Serialize};

use super::ipc;
use super::lake::Lake;
use super::plan::{Plan, PlanOptions};
use super::query::Query;
use super::registry::{Registered, Session, SessionOptions, TableKey};
use crate::catalog::iceberg::StorageAccess;
use crate::catalog::{FilesSpec, open_lake};
use crate::lake::{FileValues, LakeSpec, LakeTable};
use crate::split::{Split, SplitUnit, TableFiles};
use crate::{Error, Result};

/// A plan as text and bytes. It may hold credentials, so it goes to worker processes only and never
/// into a checkpoint.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// JSON; numbers in it point into `blobs`.
    pub text: String,
    /// Arrow IPC streams: schemas, hive values and tables in memory.
    pub blobs: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct Body {
    options: SessionOptions,
    tables: Vec<(TableKey, TableRecipe)>,
    sql: String,
    plan_options: PlanOptions,
    fingerprint: String,
    splits: Vec<SplitRecipe>,
}

#[derive(Serialize, Deserialize)]
enum TableRecipe {
    Files { spec: FilesSpec, schema: usize, values: usize },
    Lake { spec: Box<LakeSpec>, values: usize, access: Box<StorageAccess> },
    Memory { batches: usize, digest: String, bytes: u64 },
    View { sql: String },
}

/// One split in few characters: scan, file, unit kind, four numbers, rows, deleted rows, first row, bytes.
type SplitRecipe = (u32, u32, u8, [u64; 4], Option<u64>, u64, u64, u64);

impl Recipe {
    /// The recipe of a plan with these of its splits, in this order.
    ///
    /// # Errors
    /// Where a table in memory cannot be written as Arrow IPC.
    pub fn of(plan: &Plan, splits: &[u32]) -> Result<Self> {
        let mut blobs = Vec::new();
        let mut push = |bytes: Vec<u8>| {
            blobs.push(bytes);
            blobs.len() - 1
        };
        let mut tables = Vec::new();
        for (key, registered) in plan.query().tables() {
            let recipe = match registered {
                Registered::Files { table, spec } => TableRecipe::Files {
                    spec: spec.clone(),
                    schema: push(ipc::encode(table.schema.table_schema(), &[])?),
                    values: push(encode_partition_values(table)?),
                },
                Registered::Lake(lake) => {
                    let Some(table) = &lake.table.lake else {
                        return Err(Error::config("an Iceberg table lost its snapshot"));
                    };
                    let values = table.values_batch();
                    TableRecipe::Lake {
                        spec: Box::new(table.spec().clone()),
                        values: push(ipc::encode(&values.schema(), std::slice::from_ref(values))?),
                        access: Box::new(lake.access.clone()),
                    }
                }
                Registered::Memory { schema, batches, digest, bytes } => TableRecipe::Memory {
                    batches: push(ipc::encode(schema, batches)?),
                    digest: digest.clone(),
                    bytes: *bytes,
                },
                Registered::View { sql, .. } => TableRecipe::View { sql: sql.clone() },
            };
            tables.push((key.clone(), recipe));
        }
        let all = plan.splits();
        let body = Body {
            options: plan.query().session().options().clone(),
            tables,
            sql: plan.query().sql().to_owned(),
            plan_options: plan.options().clone(),
            fingerprint: plan.fingerprint().to_owned(),
            splits: splits.iter().map(|id| pack(&all[*id as usize])).collect(),
        };
        let text = serde_json::to_string(&body)
            .map_err(|error| Error::config("the recipe cannot be written").with_source(error))?;
        Ok(Self { text, blobs })
    }

    /// Plans the query again. Split `i` of the result is the `i`-th split that the recipe was made of.
    ///
    /// # Errors
    /// `Data` where this process plans the query differently.
    pub async fn open(&self) -> Result<Plan> {
        let body: Body = serde_json::from_str(&self.text)
            .map_err(|error| Error::config("the recipe cannot be read").with_source(error))?;
        let session = Session::build(body.options, true, Arc::default())?;
        for ((schema, name), table) in body.tables {
            self.register(&session, (schema, name), table).await?;
        }
        let query: Query = session.query(&body.sql).await?;
        let splits = body.splits.iter().map(unpack).collect::<Result<_>>()?;
        Plan::resume(query, splits, body.plan_options, &body.fingerprint).await
    }

    async fn register(
        &self,
        session: &Arc<Session>,
        key: TableKey,
        table: TableRecipe,
    ) -> Result<()> {
        match table {
            TableRecipe::Files { spec, schema, values } => {
                let (schema, _) = ipc::decode(self.blob(schema)?)?;
                let values = decode_partition_values(self.blob(values)?, spec.files.len())?;
                let url = session.new_store_url()?;
                let table = spec.open(&schema, values, url, Arc::clone(session.counters()))?;
                session.bind(key, Registered::Files { table: Arc::new(table), spec })
            }
            TableRecipe::Lake { spec, values, access } => {
                let (schema, batches) = ipc::decode(self.blob(values)?)?;
                let values = match batches.into_iter().next() {
                    Some(batch) => FileValues::from_batch(batch)?,
                    None => FileValues::from_batch(RecordBatch::new_empty(schema))?,
                };
                let store = access.open()?;
                let url = session.new_store_url()?;
                let lake = LakeTable::try_new(*spec, values)?;
                let table = open_lake(lake, store, url, Arc::clone(session.counters()))?;
                let lake = Lake { table: Arc::new(table), access: *access, source: None };
                session.bind(key, Registered::Lake(Arc::new(lake)))
            }
            TableRecipe::Memory { batches, digest, bytes } => {
                let (schema, batches) = ipc::decode(self.blob(batches)?)?;
                let batches = Arc::new(batches);
                session.bind(key, Registered::Memory { schema, batches, digest, bytes })
            }
            TableRecipe::View { sql } => session.register_view(&key.1, &sql).await,
        }
    }

    fn blob(&self, index: usize) -> Result<&[u8]> {
        self.blobs
            .get(index)
            .map(Vec::as_slice)
            .ok_or_else(|| Error::config(format!("the recipe lacks its part {index}")))
    }
}

/// Hive values as one batch: a row per file.
fn encode_partition_values(table: &TableFiles) -> Result<Vec<u8>> {
    let schema = Arc::new(Schema::new(table.schema.table_partition_cols().clone()));
    let columns = (0..schema.fields().len())
        .map(|column| {
            let values = table.files.iter().map(|file| file.partition_values[column].clone());
            ScalarValue::iter_to_array(values)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(table.files.len()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
    ipc::encode(&schema, &[batch])
}

fn decode_partition_values(bytes: &[u8], files: usize) -> Result<Vec<Vec<ScalarValue>>> {
    let (_, batches) = ipc::decode(bytes)?;
    let mut values = vec![Vec::new(); files];
    if let Some(batch) = batches.first() {
        for column in batch.columns() {
            for (file, values) in values.iter_mut().enumerate() {
                values.push(ScalarValue::try_from_array(column, file)?);
            }
        }
    }
    Ok(values)
}

fn pack(split: &Split) -> SplitRecipe {
    let (kind, numbers) = match split.unit {
        SplitUnit::RowGroups { first, count, byte_start, byte_end } => {
            (0, [u64::from(first), u64::from(count), byte_start, byte_end])
        }
        SplitUnit::Bytes { start, end } => (1, [start, end, 0, 0]),
        SplitUnit::Rows(range) => (2, [range.start, range.end, 0, 0]),
        SplitUnit::File => (3, [0; 4]),
        SplitUnit::Stripes { first, count, byte_start, byte_end } => {
            (4, [u64::from(first), u64::from(count), byte_start, byte_end])
        }
    };
    (split.scan, split.file, kind, numbers, split.rows, split.deleted, split.first_row, split.bytes)
}

fn unpack(recipe: &SplitRecipe) -> Result<Split> {
    let (scan, file, kind, numbers, rows, deleted, first_row, bytes) = *recipe;
    let unit = match (kind, numbers) {
        (0, [first, count, byte_start, byte_end]) => SplitUnit::RowGroups {
            first: u32::try_from(first).unwrap_or(u32::MAX),
            count: u32::try_from(count).unwrap_or(u32::MAX),
            byte_start,
            byte_end,
        },
        (1, [start, end, ..]) => SplitUnit::Bytes { start, end },
        (2, [start, end, ..]) => SplitUnit::Rows(crate::split::RowRange { start, end }),
        (3, _) => SplitUnit::File,
        (4, [first, count, byte_start, byte_end]) => SplitUnit::Stripes {
            first: u32::try_from(first).unwrap_or(u32::MAX),
            count: u32::try_from(count).unwrap_or(u32::MAX),
            byte_start,
            byte_end,
        },
        _ => return Err(Error::config(format!("the recipe has a split of unknown kind {kind}"))),
    };
    Ok(Split { scan, file, unit, rows, deleted, first_row, bytes })
}
