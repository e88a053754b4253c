//! Recipes: the data from which another process plans a query again without listing files, reading
//! footers for planning, or asking anyone. They cover the whole plan, or only the share of some
//! splits.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::plan::{Plan, PlanOptions, Planned, Totals};
use super::plan_part::{PlanPart, pack_ids, pack_splits, tables_read, unpack_ids, unpack_splits};
use super::registered::TableKey;
use super::registry::{Session, SessionOptions, open_cache};
use super::staged::StagedPart;
use super::worker_tables::{Share, WorkerTable};
use crate::formats::{RowRange, Split, SplitUnit, UnitKind};
use crate::query::{Definition, Layer};
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
    /// What the query is made of: this process parses each text again, once.
    query: Vec<Layer>,
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
        let mut worker = Self { text: String::new(), blobs: Vec::new(), foreign: Vec::new() };
        let stages = plan.query().parts();
        let share = Share {
            part: ids.map(|ids| PlanPart::of(plan, ids)).transpose()?,
            read: (!stages.is_empty()).then(|| tables_read(plan)).transpose()?,
        };
        let tables = plan.query().tables().iter();
        let tables = tables
            .map(|(key, table)| Ok((key.clone(), WorkerTable::of(table, &share, &mut worker)?)))
            .collect::<Result<_>>()?;
        let (splits, ids) = match &share.part {
            Some(part) => {
                let splits = worker.push(pack_splits(&part.splits));
                (splits, Some(worker.push(pack_ids(&part.ids))))
            }
            None => (worker.push(pack_splits(plan.whole()?)), None),
        };
        let options = plan.query().session().options();
        let body = Body {
            // Tables carry their own options; the session's are for finding new ones.
            options: SessionOptions {
                memory_limit: options.memory_limit,
                local_cache: options.local_cache.clone(),
                ..SessionOptions::default()
            },
            tables,
            query: plan.query().definition().layers(),
            plan_options: plan.options().clone(),
            fingerprint: Some(plan.fingerprint().to_owned()),
            shape: share.is_partial().then(|| plan.shape_digest()).transpose()?,
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
        worker.text = serde_json::to_string(&body)
            .map_err(|error| Error::config("the recipe cannot be written").with_source(error))?;
        Ok(worker)
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
        for (key, table) in body.tables {
            table.register(self, &session, key).await?;
        }
        let stages = body.stages.into_iter();
        let stages =
            stages.map(|(node, table, why, folder)| StagedPart::shipped(node, table, why, folder));
        let definition = Definition::of_layers(body.query, |name| session.is_catalog(name))?;
        let query = session.query_over(Arc::new(definition), false, &[]).await?;
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

    /// Adds bytes; returns the number by which the text refers to them.
    pub(super) fn push(&mut self, bytes: Vec<u8>) -> usize {
        self.blobs.push(bytes);
        self.blobs.len() - 1
    }

    /// Adds a thing of the user's; returns its number.
    pub(super) fn ship(&mut self, thing: Foreign) -> usize {
        self.foreign.push(thing);
        self.foreign.len() - 1
    }

    pub(super) fn foreign(&self, index: usize) -> Result<&Foreign> {
        self.foreign
            .get(index)
            .ok_or_else(|| Error::config(format!("the recipe lacks its foreign part {index}")))
    }

    pub(super) fn blob(&self, index: usize) -> Result<&[u8]> {
        self.blobs
            .get(index)
            .map(Vec::as_slice)
            .ok_or_else(|| Error::config(format!("the recipe lacks its part {index}")))
    }
}

pub(super) fn pack(split: &Split) -> PackedSplit {
    let (kind, numbers) = match split.unit {
        SplitUnit::Units { kind, first, count, byte_start, byte_end } => {
            let kind = match kind {
                UnitKind::RowGroups => 0,
                UnitKind::Stripes => 4,
                UnitKind::Batches => 5,
                UnitKind::Blocks => 6,
            };
            (kind, [u64::from(first), u64::from(count), byte_start, byte_end])
        }
        SplitUnit::Bytes { start, end } => (1, [start, end, 0, 0]),
        SplitUnit::Rows(range) => (2, [range.start, range.end, 0, 0]),
        SplitUnit::File => (3, [0; 4]),
    };
    (split.scan, split.file, kind, numbers, split.rows, split.deleted, split.first_row, split.bytes)
}

pub(super) fn unpack(packed: &PackedSplit) -> Result<Split> {
    let (scan, file, number, [start, end, byte_start, byte_end], rows, deleted, first_row, bytes) =
        *packed;
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let units = |kind| {
        let (first, count) = (small(start), small(end));
        SplitUnit::Units { kind, first, count, byte_start, byte_end }
    };
    let unit = match number {
        0 => units(UnitKind::RowGroups),
        1 => SplitUnit::Bytes { start, end },
        2 => SplitUnit::Rows(RowRange { start, end }),
        3 => SplitUnit::File,
        4 => units(UnitKind::Stripes),
        5 => units(UnitKind::Batches),
        6 => units(UnitKind::Blocks),
        _ => return Err(Error::config(format!("the recipe has a split of unknown kind {number}"))),
    };
    Ok(Split { scan, file, unit, rows, deleted, first_row, bytes })
}
