//! Memos: facts about a table or a plan, as bytes for another process: a rank that did not list and
//! read footers itself, or a later run. They hold metadata alone: no options of a store, no
//! credentials, no rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::execution::object_store::ObjectStoreUrl;
use serde::{Deserialize, Serialize};

use super::ipc;
use super::plan::{Plan, Planned, ScanReport, Totals};
use super::plan_part::{pack_ids, pack_splits, unpack_ids, unpack_splits};
use super::worker_tables::{decode_partition_values, encode_partition_values};
use crate::catalog::FilesSpec;
use crate::formats::{Format, SortedColumn, TableFiles};
use crate::storage::{FilePin, IoCounters, OpenedPaths, RangeCache, pin_change_times};
use crate::varint::{Reader, Writer};
use crate::{Error, Result};

/// A table over files, without its store's options.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableHead {
    version: String,
    format: Format,
    root: String,
    files: Vec<(FilePin, Option<u64>)>,
    partition_columns: usize,
    quarantined: Vec<(String, String)>,
}

/// A table as a memo.
///
/// # Errors
/// Where its schema cannot be written as Arrow IPC.
pub(super) fn of_table(table: &TableFiles, spec: &FilesSpec) -> Result<Vec<u8>> {
    let head = TableHead {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        format: spec.format.clone(),
        root: spec.root.clone(),
        files: spec.files.iter().map(without_change_time).collect(),
        partition_columns: spec.partition_columns,
        quarantined: spec.quarantined.clone(),
    };
    let mut writer = Writer::default();
    writer.bytes(&to_json(&head)?);
    writer.bytes(&ipc::encode(table.schema.table_schema(), &[])?);
    writer.bytes(&encode_partition_values(table, None)?);
    Ok(writer.finish())
}

/// The table of a memo, without listing it and without reading a footer. Its store is `opened`, as
/// this process reaches it.
///
/// # Errors
/// `Config` where the memo is damaged, of another version, or of files in another store.
pub(super) fn open_table(
    memo: &[u8],
    opened: &OpenedPaths,
    store_url: ObjectStoreUrl,
    counters: Arc<IoCounters>,
    cache: Option<Arc<RangeCache>>,
) -> Result<(TableFiles, FilesSpec)> {
    let mut reader = Reader::new(memo);
    let mut head: TableHead = from_json(reader.bytes()?)?;
    check_version(&head.version)?;
    let (schema, _) = ipc::decode(reader.bytes()?)?;
    let values = decode_partition_values(reader.bytes()?, head.files.len())?;
    reader.end()?;
    if head.root != opened.root() {
        return Err(Error::config(format!(
            "a memo is of files in {}, and not in {}",
            head.root,
            opened.root()
        )));
    }
    pin_change_times(&head.root, head.files.iter_mut().map(|(pin, _)| pin));
    let spec = FilesSpec {
        format: head.format,
        access: opened.access.clone(),
        root: head.root,
        files: head.files,
        partition_columns: head.partition_columns,
        quarantined: head.quarantined,
    };
    let store = Arc::clone(&opened.store);
    let table = spec.open_in(store, &schema, values, store_url, counters, cache);
    Ok((table, spec))
}

/// A pin for other runs, in which change times may be others.
fn without_change_time((pin, rows): &(FilePin, Option<u64>)) -> (FilePin, Option<u64>) {
    (FilePin { changed: None, ..pin.clone() }, *rows)
}

/// A plan without its splits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanHead {
    version: String,
    fingerprint: String,
    reports: Vec<ScanReport>,
    sorted: Vec<SortedColumn>,
    totals: Totals,
    is_part: bool,
    damaged: BTreeMap<u32, String>,
}

/// Encodes a plan as a memo, with all of its splits, or the ones with these ids, ascending.
///
/// # Errors
/// `Config` for an id that the plan does not have.
pub(super) fn of_plan(plan: &Plan, ids: Option<&[u32]>) -> Result<Vec<u8>> {
    let head = PlanHead {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        fingerprint: plan.fingerprint().to_owned(),
        reports: plan.reports().to_vec(),
        sorted: plan.sorted_by(),
        totals: *plan.totals(),
        is_part: ids.is_some(),
        damaged: plan.damaged().clone(),
    };
    let mut writer = Writer::default();
    writer.bytes(&to_json(&head)?);
    match ids {
        Some(ids) => {
            let splits =
                ids.iter().map(|id| plan.split(*id).copied()).collect::<Result<Vec<_>>>()?;
            writer.bytes(&pack_ids(ids));
            writer.bytes(&pack_splits(&splits));
        }
        None => {
            writer.bytes(&[]);
            writer.bytes(&pack_splits(plan.whole()?));
        }
    }
    Ok(writer.finish())
}

/// Decodes a plan that [`of_plan`] wrote.
///
/// # Errors
/// `Config` where the memo is damaged or of another version.
pub(super) fn open_plan(memo: &[u8]) -> Result<Planned> {
    let mut reader = Reader::new(memo);
    let head: PlanHead = from_json(reader.bytes()?)?;
    check_version(&head.version)?;
    let ids = reader.bytes()?;
    let splits = unpack_splits(reader.bytes()?)?;
    reader.end()?;
    let part = match head.is_part {
        true => Some((unpack_ids(ids)?, head.totals)),
        false => None,
    };
    if part.as_ref().is_some_and(|(ids, _)| ids.len() != splits.len()) {
        return Err(Error::config("a memo has other splits than ids"));
    }
    Ok(Planned {
        splits,
        part,
        fingerprint: Some(head.fingerprint),
        shape: None,
        reports: head.reports,
        sorted: Some(head.sorted),
        damaged: head.damaged,
    })
}

fn check_version(version: &str) -> Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    if version == own {
        return Ok(());
    }
    Err(Error::config(format!("a memo is of version {version}, and this is tensorquery {own}")))
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    let unwritable = |error| Error::config("a memo cannot be written").with_source(error);
    serde_json::to_vec(value).map_err(unwritable)
}

fn from_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let unreadable = |error| Error::config("a memo cannot be read").with_source(error);
    serde_json::from_slice(bytes).map_err(unreadable)
}
