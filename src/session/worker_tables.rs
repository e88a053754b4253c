//! The tables of a worker plan: one type for each kind that has data of its own, which writes it
//! and binds it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{UInt64Array, new_empty_array};
use arrow::datatypes::Schema;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::scalar::ScalarValue;
use serde::{Deserialize, Serialize};

use super::ipc;
use super::lake::{Lake, LakeAccess};
use super::plan_part::{PlanPart, pack_ids, place, unpack_ids};
use super::registered::{Registered, TableKey};
use super::registry::Session;
use super::worker_plan::WorkerPlan;
use crate::catalog::{FilesSpec, open_delta, open_lake};
use crate::delta::{DeltaSpec, DeltaTable};
use crate::formats::{Outline, Scans, TableFile, TableFiles};
use crate::iceberg::catalog::{StorageAccess, UnityCredentials};
use crate::iceberg::{FileValues, LakeSpec, LakeTable};
use crate::query::Moment;
use crate::storage::{Foreign, StoreAccess};
use crate::{Error, Result};

/// The share of a plan that a worker gets.
pub(super) struct Share {
    /// The part of the splits; None for all.
    pub part: Option<PlanPart>,
    /// The tables that are read, where only stages were computed from some: of the others, a process
    /// needs to know no more than the columns.
    pub read: Option<BTreeSet<usize>>,
}

impl Share {
    /// Returns true if some of the plan's splits or rows are left out.
    pub(super) fn is_partial(&self) -> bool {
        self.part.is_some() || self.read.is_some()
    }

    fn is_unread(&self, table: usize) -> bool {
        self.read.as_ref().is_some_and(|read| !read.contains(&table))
    }

    /// The files of a table that a worker gets; None for all.
    fn files_of(&self, table: &Arc<TableFiles>) -> Option<&[usize]> {
        match self.is_unread(place(table)) {
            true => Some(&[]),
            false => self.part.as_ref().and_then(|part| part.files_of(table)),
        }
    }
}

/// A table as a worker plan carries it. Numbers point into the plan's blobs and foreign things.
#[derive(Serialize, Deserialize)]
pub(super) enum WorkerTable {
    Files(WorkerFiles),
    Lake(WorkerLake),
    Delta(WorkerDelta),
    Memory(WorkerMemory),
    View { sql: String },
    Function(usize),
    Moment(Moment),
}

impl WorkerTable {
    /// Writes a table into `worker`.
    ///
    /// # Errors
    /// `Config` where values or rows cannot be written as Arrow IPC.
    pub(super) fn of(table: &Registered, share: &Share, worker: &mut WorkerPlan) -> Result<Self> {
        Ok(match table {
            Registered::Files { table, spec } => {
                Self::Files(WorkerFiles::of(table, spec, share.files_of(table), worker)?)
            }
            Registered::Lake(lake) => {
                let kept = share.files_of(&lake.table);
                match &lake.access {
                    LakeAccess::Iceberg(access) => {
                        Self::Lake(WorkerLake::of(&lake.table, access, kept, worker)?)
                    }
                    LakeAccess::Delta(access) => {
                        Self::Delta(WorkerDelta::of(&lake.table, access, kept, worker)?)
                    }
                }
            }
            Registered::Memory { schema, batches, digest, bytes } => {
                let kept = match share.is_unread(Arc::as_ptr(batches) as usize) {
                    true => &[],
                    false => batches.as_slice(),
                };
                let batches = worker.push(ipc::encode(schema, kept)?);
                Self::Memory(WorkerMemory { batches, digest: digest.clone(), bytes: *bytes })
            }
            Registered::View { definition, .. } => Self::View { sql: definition.text().into() },
            Registered::Function(function) => {
                Self::Function(worker.ship(Foreign::Function(Arc::clone(function))))
            }
            Registered::Moment(moment) => Self::Moment(*moment),
        })
    }

    /// Binds the table of `worker` to its name in a session.
    ///
    /// # Errors
    /// `Config` where `worker` lacks a part of it.
    pub(super) async fn register(
        self,
        worker: &WorkerPlan,
        session: &Arc<Session>,
        key: TableKey,
    ) -> Result<()> {
        let registered = match self {
            Self::Files(files) => files.open(worker, session).await?,
            Self::Lake(lake) => lake.open(worker, session)?,
            Self::Delta(delta) => delta.open(worker, session).await?,
            Self::Memory(WorkerMemory { batches, digest, bytes }) => {
                let (schema, batches) = ipc::decode(worker.blob(batches)?)?;
                Registered::Memory { schema, batches: Arc::new(batches), digest, bytes }
            }
            Self::View { sql } => return session.register_view(&key.1, &sql).await,
            Self::Function(index) => Registered::Function(worker.foreign(index)?.function()?),
            Self::Moment(moment) => Registered::Moment(moment),
        };
        session.bind(key, registered)
    }
}

/// Files of a table, where a worker gets some of them.
#[derive(Serialize, Deserialize)]
struct KeptFiles {
    /// By table, the outlines of its scans over all files.
    outlines: BTreeMap<String, Outline>,
    /// The packed places of the files among all.
    places: usize,
}

impl KeptFiles {
    fn of(table: &TableFiles, kept: &[usize], worker: &mut WorkerPlan) -> Self {
        let places: Vec<u32> = kept.iter().map(|index| table.place(*index) as u32).collect();
        Self { outlines: table.scans.outlines(), places: worker.push(pack_ids(&places)) }
    }

    fn scans(self, worker: &WorkerPlan) -> Result<Scans> {
        Ok(Scans::of_part(self.outlines, unpack_ids(worker.blob(self.places)?)?))
    }
}

/// Pinned files.
#[derive(Serialize, Deserialize)]
pub(super) struct WorkerFiles {
    spec: FilesSpec,
    schema: usize,
    values: usize,
    /// Who is asked for credentials.
    credentials: Option<usize>,
    /// The file system.
    files: Option<usize>,
    kept: Option<KeptFiles>,
}

impl WorkerFiles {
    fn of(
        table: &TableFiles,
        spec: &FilesSpec,
        kept: Option<&[usize]>,
        worker: &mut WorkerPlan,
    ) -> Result<Self> {
        let (credentials, files) = (spec.access.credentials.clone(), spec.access.files.clone());
        Ok(Self {
            spec: kept.map_or_else(|| spec.clone(), |kept| spec.narrowed(kept)),
            schema: worker.push(ipc::encode(table.schema.table_schema(), &[])?),
            values: worker.push(encode_partition_values(table, kept)?),
            credentials: credentials.map(|from| worker.ship(Foreign::Credentials(from))),
            files: files.map(|files| worker.ship(Foreign::Files(files))),
            kept: kept.map(|kept| KeptFiles::of(table, kept, worker)),
        })
    }

    async fn open(self, worker: &WorkerPlan, session: &Arc<Session>) -> Result<Registered> {
        let mut spec = self.spec;
        if let Some(index) = self.credentials {
            spec.access.credentials = Some(worker.foreign(index)?.credentials()?);
        }
        if let Some(index) = self.files {
            spec.access.files = Some(worker.foreign(index)?.files()?);
        }
        let (schema, _) = ipc::decode(worker.blob(self.schema)?)?;
        let values = decode_partition_values(worker.blob(self.values)?, spec.files.len())?;
        let (url, counters) = (session.new_store_url()?, Arc::clone(session.counters()));
        let mut table = spec.open(&schema, values, url, counters, session.cache()).await?;
        if let Some(kept) = self.kept {
            table.scans = kept.scans(worker)?;
        }
        Ok(Registered::Files { table: Arc::new(table), spec })
    }
}

/// A pinned snapshot of an Iceberg table.
#[derive(Serialize, Deserialize)]
pub(super) struct WorkerLake {
    spec: LakeSpec,
    values: usize,
    access: StorageAccess,
    kept: Option<KeptFiles>,
}

impl WorkerLake {
    fn of(
        files: &TableFiles,
        access: &StorageAccess,
        kept: Option<&[usize]>,
        worker: &mut WorkerPlan,
    ) -> Result<Self> {
        let Some(table) = LakeTable::of(files) else {
            return Err(Error::config("an Iceberg table lost its snapshot"));
        };
        let spec = kept.map_or_else(|| table.spec().clone(), |kept| table.spec().narrowed(kept));
        Ok(Self {
            spec,
            values: push_values(table.values_batch(), kept, worker)?,
            access: access.clone(),
            kept: kept.map(|kept| KeptFiles::of(files, kept, worker)),
        })
    }

    fn open(self, worker: &WorkerPlan, session: &Session) -> Result<Registered> {
        let lake = LakeTable::try_new(self.spec, open_values(self.values, worker)?)?;
        let (url, counters) = (session.new_store_url()?, Arc::clone(session.counters()));
        let mut table = open_lake(lake, self.access.open()?, url, counters, session.cache())?;
        if let Some(kept) = self.kept {
            table.scans = kept.scans(worker)?;
        }
        let (table, access) = (Arc::new(table), LakeAccess::Iceberg(self.access));
        Ok(Registered::Lake(Arc::new(Lake { table, access, source: None })))
    }
}

/// A pinned version of a Delta table.
#[derive(Serialize, Deserialize)]
pub(super) struct WorkerDelta {
    spec: DeltaSpec,
    values: usize,
    access: StoreAccess,
    /// Who is asked for credentials, where it is a function of the user's.
    credentials: Option<usize>,
    /// Who is asked for credentials, where it is a catalog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unity: Option<UnityCredentials>,
    /// The file system.
    files: Option<usize>,
    kept: Option<KeptFiles>,
}

impl WorkerDelta {
    fn of(
        files: &TableFiles,
        access: &StoreAccess,
        kept: Option<&[usize]>,
        worker: &mut WorkerPlan,
    ) -> Result<Self> {
        let Some(table) = DeltaTable::of(files) else {
            return Err(Error::config("a Delta table lost its version"));
        };
        let spec = kept.map_or_else(|| table.spec().clone(), |kept| table.spec().narrowed(kept));
        let unity = access.credentials.as_deref().and_then(UnityCredentials::of).cloned();
        let credentials = access.credentials.clone().filter(|_| unity.is_none());
        let system = access.files.clone();
        Ok(Self {
            spec,
            values: push_values(table.values_batch(), kept, worker)?,
            access: access.clone(),
            credentials: credentials.map(|from| worker.ship(Foreign::Credentials(from))),
            unity,
            files: system.map(|files| worker.ship(Foreign::Files(files))),
            kept: kept.map(|kept| KeptFiles::of(files, kept, worker)),
        })
    }

    async fn open(self, worker: &WorkerPlan, session: &Session) -> Result<Registered> {
        let mut access = self.access;
        if let Some(index) = self.credentials {
            access.credentials = Some(worker.foreign(index)?.credentials()?);
        }
        if let Some(unity) = self.unity {
            access.credentials = Some(Arc::new(unity));
        }
        if let Some(index) = self.files {
            access.files = Some(worker.foreign(index)?.files()?);
        }
        let store = access.open_root(&self.spec.store).await?;
        let table = DeltaTable::try_new(self.spec, open_values(self.values, worker)?)?;
        let (url, counters) = (session.new_store_url()?, Arc::clone(session.counters()));
        let mut table = open_delta(table, store, url, counters, session.cache());
        if let Some(kept) = self.kept {
            table.scans = kept.scans(worker)?;
        }
        let (table, access) = (Arc::new(table), LakeAccess::Delta(access));
        Ok(Registered::Lake(Arc::new(Lake { table, access, source: None })))
    }
}

/// Writes the values of a table's files, or of those kept, into `worker`.
fn push_values(
    values: &RecordBatch,
    kept: Option<&[usize]>,
    worker: &mut WorkerPlan,
) -> Result<usize> {
    let values = match kept {
        Some(kept) => take(values, kept)?,
        None => values.clone(),
    };
    Ok(worker.push(ipc::encode(&values.schema(), &[values])?))
}

fn open_values(values: usize, worker: &WorkerPlan) -> Result<FileValues> {
    let (schema, batches) = ipc::decode(worker.blob(values)?)?;
    let values = batches.into_iter().next();
    FileValues::from_batch(values.unwrap_or_else(|| RecordBatch::new_empty(schema)))
}

/// Batches in memory.
#[derive(Serialize, Deserialize)]
pub(super) struct WorkerMemory {
    batches: usize,
    digest: String,
    bytes: u64,
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
