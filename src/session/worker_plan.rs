//! Recipes: the data from which another process plans a query again without listing files, reading
//! footers for planning, or asking anyone. They cover the whole plan, or only the share of some
//! splits.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{UInt64Array, new_empty_array};
use arrow::datatypes::Schema;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::scalar::ScalarValue;
use serde::{Deserialize, Serialize};

use super::ipc;
use super::lake::Lake;
use super::plan::{Plan, PlanOptions, Planned, Totals};
use super::plan_part::{
    PlanPart, pack_ids, pack_splits, place, tables_read, unpack_ids, unpack_splits,
};
use super::query::Query;
use super::registered::{Registered, TableKey};
use super::registry::{Session, SessionOptions, open_cache};
use super::staged::StagedPart;
use crate::catalog::{FilesSpec, open_lake};
use crate::formats::{Outline, Scans, Split, SplitUnit, TableFile, TableFiles};
use crate::iceberg::catalog::StorageAccess;
use crate::iceberg::{FileValues, LakeSpec, LakeTable};
use crate::query::Moment;
use crate::storage::Foreign;
use crate::{Error, Result};

/// A plan as text and bytes. It may hold credentials, so it goes to worker processes only and never
/// into a checkpoint.
#[derive(Clone, Debug)]
pub struct WorkerPlan {
    /// JSON; numbers in it point into `blobs`.
    pub text: String,
    /// Arrow IPC streams: schemas, hive values and tables in memory.
    pub blobs: Vec<Vec<u8>>,
    /// Functions and file systems of the user's, which are no plain data.
    pub foreign: Vec<Foreign>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    options: SessionOptions,
    tables: Vec<(TableKey, WorkerTable)>,
    sql: String,
    plan_options: PlanOptions,
    /// The fingerprint of the whole plan; null takes the fingerprint of the plan that is made
    /// again.
    fingerprint: Option<String>,
    /// The digest of the plan that is made again, if it is a part; see `Plan::shape_digest`.
    shape: Option<String>,
    /// Parts of the query that are staged: node, table, why, folder.
    #[serde(default)]
    stages: Vec<(usize, String, String, String)>,
    /// Packed splits.
    splits: usize,
    /// For a part of the splits: packed ids, and the totals of all.
    part: Option<(usize, Totals)>,
}

/// By table, the outlines of its scans over all files, if only some are in the recipe.
type Outlines = Option<BTreeMap<String, Outline>>;

#[derive(Serialize, Deserialize)]
enum WorkerTable {
    Files {
        spec: FilesSpec,
        schema: usize,
        values: usize,
        /// Who is asked for credentials, among the recipe's foreign things.
        credentials: Option<usize>,
        /// The file system, among the recipe's foreign things.
        files: Option<usize>,
        outlines: Outlines,
        /// The packed places of the files among all, where only some are here.
        places: Option<usize>,
    },
    Lake {
        spec: Box<LakeSpec>,
        values: usize,
        access: Box<StorageAccess>,
        outlines: Outlines,
        places: Option<usize>,
    },
    Memory {
        batches: usize,
        digest: String,
        bytes: u64,
    },
    View {
        sql: String,
    },
    /// Among the recipe's foreign things.
    Function(usize),
    /// The moment of the time functions.
    Moment(Moment),
}

/// One split as numbers: scan, file, unit kind, four numbers, rows, deleted rows, first row, bytes.
pub(super) type PackedSplit = (u32, u32, u8, [u64; 4], Option<u64>, u64, u64, u64);

impl WorkerPlan {
    /// The recipe of a plan with all of its splits, or with the ones with these ids, ascending, and
    /// then only with the files that these are read from.
    ///
    /// # Errors
    /// `Config` for an id that the plan does not have; where a table in memory cannot be written as
    /// Arrow IPC.
    pub fn of(plan: &Plan, ids: Option<&[u32]>) -> Result<Self> {
        let part = ids.map(|ids| PlanPart::of(plan, ids)).transpose()?;
        let stages = plan.query().parts();
        // Of what only stages were computed from, a process needs to know no more than the columns.
        let read = match stages.is_empty() {
            true => None,
            false => Some(tables_read(plan)?),
        };
        let is_unread = |table: usize| read.as_ref().is_some_and(|read| !read.contains(&table));
        let kept_of = |table: &Arc<TableFiles>| match is_unread(place(table)) {
            true => Some([].as_slice()),
            false => part.as_ref().and_then(|part| part.files_of(table)),
        };
        let mut blobs = Vec::new();
        let mut foreign = Vec::new();
        let mut push = |bytes: Vec<u8>| {
            blobs.push(bytes);
            blobs.len() - 1
        };
        let mut tables = Vec::new();
        for (key, registered) in plan.query().tables() {
            let recipe = match registered {
                Registered::Files { table, spec } => {
                    let mut ship = |thing: Foreign| {
                        foreign.push(thing);
                        foreign.len() - 1
                    };
                    let access = &spec.access;
                    let kept = kept_of(table);
                    let credentials = access.credentials.clone().map(Foreign::Credentials);
                    WorkerTable::Files {
                        schema: push(ipc::encode(table.schema.table_schema(), &[])?),
                        values: push(encode_partition_values(table, kept)?),
                        spec: match kept {
                            Some(kept) => spec.narrowed(kept),
                            None => spec.clone(),
                        },
                        credentials: credentials.map(&mut ship),
                        files: access.files.clone().map(Foreign::Files).map(&mut ship),
                        outlines: kept.map(|_| table.scans.outlines()),
                        places: kept.map(|kept| push(pack_ids(&places(table, kept)))),
                    }
                }
                Registered::Lake(lake) => {
                    let Some(table) = LakeTable::of(&lake.table) else {
                        return Err(Error::config("an Iceberg table lost its snapshot"));
                    };
                    let kept = kept_of(&lake.table);
                    let (spec, values) = match kept {
                        Some(kept) => {
                            (table.spec().narrowed(kept), take(table.values_batch(), kept)?)
                        }
                        None => (table.spec().clone(), table.values_batch().clone()),
                    };
                    WorkerTable::Lake {
                        spec: Box::new(spec),
                        values: push(ipc::encode(&values.schema(), &[values])?),
                        access: Box::new(lake.access.clone()),
                        outlines: kept.map(|_| lake.table.scans.outlines()),
                        places: kept.map(|kept| push(pack_ids(&places(&lake.table, kept)))),
                    }
                }
                Registered::Memory { schema, batches, digest, bytes } => WorkerTable::Memory {
                    batches: push(match is_unread(Arc::as_ptr(batches) as usize) {
                        true => ipc::encode(schema, &[])?,
                        false => ipc::encode(schema, batches)?,
                    }),
                    digest: digest.clone(),
                    bytes: *bytes,
                },
                Registered::View { sql, .. } => WorkerTable::View { sql: sql.clone() },
                Registered::Function(function) => {
                    foreign.push(Foreign::Function(Arc::clone(function)));
                    WorkerTable::Function(foreign.len() - 1)
                }
                Registered::Moment(moment) => WorkerTable::Moment(*moment),
            };
            tables.push((key.clone(), recipe));
        }
        let (splits, ids) = match &part {
            Some(part) => (push(pack_splits(&part.splits)), Some(push(pack_ids(&part.ids)))),
            None => (push(pack_splits(plan.whole()?)), None),
        };
        let body = Body {
            // Tables carry their own options; the session's are for finding new ones.
            options: SessionOptions {
                memory_limit: plan.query().session().options().memory_limit,
                local_cache: plan.query().session().options().local_cache.clone(),
                ..SessionOptions::default()
            },
            tables,
            sql: plan.query().sql().to_owned(),
            plan_options: plan.options().clone(),
            fingerprint: Some(plan.fingerprint().to_owned()),
            shape: (part.is_some() || read.is_some()).then(|| plan.shape_digest()).transpose()?,
            stages: stages
                .iter()
                .map(|stage| {
                    let (why, folder) = (stage.why.clone(), stage.folder.clone());
                    (stage.node, stage.table.clone(), why, folder)
                })
                .collect(),
            splits,
            part: ids.map(|ids| (ids, *plan.totals())),
        };
        let text = serde_json::to_string(&body)
            .map_err(|error| Error::config("the recipe cannot be written").with_source(error))?;
        Ok(Self { text, blobs, foreign })
    }

    /// Plans the query again. Splits keep their ids.
    ///
    /// # Errors
    /// `Data` where this process plans the query differently.
    pub async fn open(&self) -> Result<Plan> {
        let body: Body = serde_json::from_str(&self.text)
            .map_err(|error| Error::config("the recipe cannot be read").with_source(error))?;
        let cache = open_cache(&body.options)?;
        let session = Session::build(body.options, true, Arc::default(), cache, None)?;
        for ((schema, name), table) in body.tables {
            self.register(&session, (schema, name), table).await?;
        }
        let stages = body.stages.into_iter();
        let stages =
            stages.map(|(node, table, why, folder)| StagedPart::shipped(node, table, why, folder));
        let query: Query = session.query(&body.sql).await?;
        let query = query.over_stages(stages.collect()).await?;
        let part = match body.part {
            Some((ids, totals)) => Some((unpack_ids(self.blob(ids)?)?, totals)),
            None => None,
        };
        let splits = unpack_splits(self.blob(body.splits)?)?;
        if part.as_ref().is_some_and(|(ids, _)| ids.len() != splits.len()) {
            return Err(Error::config("the recipe has other splits than ids"));
        }
        let planned = Planned {
            splits,
            part,
            fingerprint: body.fingerprint,
            shape: body.shape,
            sorted: Some(Vec::new()),
            ..Planned::default()
        };
        Plan::resume(query, planned, body.plan_options).await
    }

    async fn register(
        &self,
        session: &Arc<Session>,
        key: TableKey,
        table: WorkerTable,
    ) -> Result<()> {
        match table {
            WorkerTable::Files {
                mut spec,
                schema,
                values,
                credentials,
                files,
                outlines,
                places,
            } => {
                if let Some(index) = credentials {
                    spec.access.credentials = Some(self.foreign(index)?.credentials()?);
                }
                if let Some(index) = files {
                    spec.access.files = Some(self.foreign(index)?.files()?);
                }
                let (schema, _) = ipc::decode(self.blob(schema)?)?;
                let values = decode_partition_values(self.blob(values)?, spec.files.len())?;
                let url = session.new_store_url()?;
                let (counters, cache) = (Arc::clone(session.counters()), session.cache());
                let mut table = spec.open(&schema, values, url, counters, cache).await?;
                if let Some(outlines) = outlines {
                    table.scans = Scans::of_part(outlines, self.places(places)?);
                }
                session.bind(key, Registered::Files { table: Arc::new(table), spec })
            }
            WorkerTable::Lake { spec, values, access, outlines, places } => {
                let (schema, batches) = ipc::decode(self.blob(values)?)?;
                let values = match batches.into_iter().next() {
                    Some(batch) => FileValues::from_batch(batch)?,
                    None => FileValues::from_batch(RecordBatch::new_empty(schema))?,
                };
                let store = access.open()?;
                let url = session.new_store_url()?;
                let lake = LakeTable::try_new(*spec, values)?;
                let (counters, cache) = (Arc::clone(session.counters()), session.cache());
                let mut table = open_lake(lake, store, url, counters, cache)?;
                if let Some(outlines) = outlines {
                    table.scans = Scans::of_part(outlines, self.places(places)?);
                }
                let lake = Lake { table: Arc::new(table), access: *access, source: None };
                session.bind(key, Registered::Lake(Arc::new(lake)))
            }
            WorkerTable::Memory { batches, digest, bytes } => {
                let (schema, batches) = ipc::decode(self.blob(batches)?)?;
                let batches = Arc::new(batches);
                session.bind(key, Registered::Memory { schema, batches, digest, bytes })
            }
            WorkerTable::View { sql } => session.register_view(&key.1, &sql).await,
            WorkerTable::Function(index) => {
                session.bind(key, Registered::Function(self.foreign(index)?.function()?))
            }
            WorkerTable::Moment(moment) => session.bind(key, Registered::Moment(moment)),
        }
    }

    /// The places of a part's files.
    fn places(&self, packed: Option<usize>) -> Result<Vec<u32>> {
        packed.map_or(Ok(Vec::new()), |packed| unpack_ids(self.blob(packed)?))
    }

    fn foreign(&self, index: usize) -> Result<&Foreign> {
        self.foreign
            .get(index)
            .ok_or_else(|| Error::config(format!("the recipe lacks its foreign part {index}")))
    }

    fn blob(&self, index: usize) -> Result<&[u8]> {
        self.blobs
            .get(index)
            .map(Vec::as_slice)
            .ok_or_else(|| Error::config(format!("the recipe lacks its part {index}")))
    }
}

/// The places of these files among all that were pinned.
fn places(table: &TableFiles, kept: &[usize]) -> Vec<u32> {
    kept.iter().map(|index| table.place(*index) as u32).collect()
}

/// Hive values as one batch: a row per file, or per file of those kept.
pub(super) fn encode_partition_values(
    table: &TableFiles,
    kept: Option<&[usize]>,
) -> Result<Vec<u8>> {
    let schema = Arc::new(Schema::new(table.schema.table_partition_cols().clone()));
    let files: Vec<&TableFile> = match kept {
        Some(kept) => kept.iter().map(|index| &table.files[*index]).collect(),
        None => table.files.iter().collect(),
    };
    let columns = (0..schema.fields().len())
        .map(|column| {
            if files.is_empty() {
                return Ok(new_empty_array(schema.field(column).data_type()));
            }
            let values = files.iter().map(|file| file.partition_values[column].clone());
            ScalarValue::iter_to_array(values)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(files.len()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
    ipc::encode(&schema, &[batch])
}

/// These rows of a batch.
fn take(batch: &RecordBatch, rows: &[usize]) -> Result<RecordBatch> {
    let rows = UInt64Array::from_iter_values(rows.iter().map(|row| *row as u64));
    Ok(arrow::compute::take_record_batch(batch, &rows)?)
}

pub(super) fn decode_partition_values(bytes: &[u8], files: usize) -> Result<Vec<Vec<ScalarValue>>> {
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

pub(super) fn pack(split: &Split) -> PackedSplit {
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
        SplitUnit::Batches { first, count, byte_start, byte_end } => {
            (5, [u64::from(first), u64::from(count), byte_start, byte_end])
        }
        SplitUnit::Blocks { first, count, byte_start, byte_end } => {
            (6, [u64::from(first), u64::from(count), byte_start, byte_end])
        }
    };
    (split.scan, split.file, kind, numbers, split.rows, split.deleted, split.first_row, split.bytes)
}

pub(super) fn unpack(recipe: &PackedSplit) -> Result<Split> {
    let (scan, file, kind, numbers, rows, deleted, first_row, bytes) = *recipe;
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let unit = match (kind, numbers) {
        (0, [first, count, byte_start, byte_end]) => {
            SplitUnit::RowGroups { first: small(first), count: small(count), byte_start, byte_end }
        }
        (1, [start, end, ..]) => SplitUnit::Bytes { start, end },
        (2, [start, end, ..]) => SplitUnit::Rows(crate::formats::RowRange { start, end }),
        (3, _) => SplitUnit::File,
        (4, [first, count, byte_start, byte_end]) => {
            SplitUnit::Stripes { first: small(first), count: small(count), byte_start, byte_end }
        }
        (5, [first, count, byte_start, byte_end]) => {
            SplitUnit::Batches { first: small(first), count: small(count), byte_start, byte_end }
        }
        (6, [first, count, byte_start, byte_end]) => {
            SplitUnit::Blocks { first: small(first), count: small(count), byte_start, byte_end }
        }
        _ => return Err(Error::config(format!("the recipe has a split of unknown kind {kind}"))),
    };
    Ok(Split { scan, file, unit, rows, deleted, first_row, bytes })
}
