//! From a table's place and a point in its history to a pinned version: files, vectors and values.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::actions::{Add, Metadata, Protocol};
use super::appended::appended_files;
use super::changes::{Change, change_values, changed_files, check_names};
use super::files::LogFiles;
use super::history::version_at;
use super::place::TablePlace;
use super::protocol::{check_protocol, may_map_columns};
use super::replay::{State, read_state};
use super::schema::{Mapping, parse_schema};
use super::spec::{DataFile, DeltaSpec};
use super::stats::Stats;
use super::values::{records_of, stats_of, values_of};
use crate::formats::{FooterCache, read_footer};
use crate::iceberg::{FileValues, TravelTo};
use crate::{Error, Result, list_names};

/// The property that says how columns are found in files.
const MAPPING_MODE: &str = "delta.columnMapping.mode";

/// Footers that are read at the same time.
const FOOTERS_AT_ONCE: usize = 16;

/// Reads the log of a table.
///
/// # Arguments
/// `name`: the table's name as the user wrote it, for messages.
///
/// # Errors
/// `TableNotFound` where there is no log; `Config` for a point in history that does not exist;
/// `UnsupportedType` for features of Delta and types that are not read; `Data` for a damaged log;
/// storage errors as they are.
pub async fn load(
    store: &Arc<dyn ObjectStore>,
    place: &TablePlace,
    name: &str,
    at: &TravelTo,
    scan_filter: Option<String>,
) -> Result<(DeltaSpec, FileValues)> {
    let log = match at {
        TravelTo::Current => LogFiles::list_for(store, place, None).await?,
        TravelTo::Snapshot(version) | TravelTo::Pinned { snapshot: version, .. } => {
            LogFiles::list_for(store, place, Some(*version)).await?
        }
        TravelTo::Reference(_)
        | TravelTo::Time(_)
        | TravelTo::Appended { .. }
        | TravelTo::Changed { .. } => LogFiles::list(store, place).await?,
    };
    let (state, after, changes) = match at {
        TravelTo::Appended { from, to, .. } => {
            (appended_files(store, &log, place, name, *from, *to).await?, Some(*from), None)
        }
        TravelTo::Changed { from, to } => {
            let (state, changes) = changed_files(store, &log, place, name, *from, *to).await?;
            (state, Some(*from), Some(changes))
        }
        at => (pinned(store, &log, place, name, at).await?, None, None),
    };
    assemble(store, place, name, state, Incremental { after, changes }, scan_filter).await
}

/// The state at a point in history.
async fn pinned(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    place: &TablePlace,
    name: &str,
    at: &TravelTo,
) -> Result<State> {
    let read = |version| read_state(store, log, place, version, name);
    match at {
        TravelTo::Snapshot(version) | TravelTo::Pinned { snapshot: version, .. } => {
            read(*version).await
        }
        TravelTo::Reference(reference) => Err(Error::config(format!(
            "table {name} is a Delta table, which has no branches and tags such as {reference:?}; write VERSION AS OF \
             and a number, or TIMESTAMP AS OF and a time in single quotes"
        ))),
        TravelTo::Time(millis) => {
            let newest = read(log.latest()).await?;
            let version = version_at(store, log, &newest.metadata, *millis, name).await?;
            if version == newest.version { Ok(newest) } else { read(version).await }
        }
        TravelTo::Current | TravelTo::Appended { .. } | TravelTo::Changed { .. } => {
            read(log.latest()).await
        }
    }
}

/// The rows of a range of versions.
struct Incremental {
    /// The version after which the range starts.
    after: Option<i64>,
    /// What the files hold, where they are changes.
    changes: Option<Vec<Change>>,
}

async fn assemble(
    store: &Arc<dyn ObjectStore>,
    place: &TablePlace,
    name: &str,
    state: State,
    incremental: Incremental,
    scan_filter: Option<String>,
) -> Result<(DeltaSpec, FileValues)> {
    let State { version, protocol, metadata, files } = state;
    check_protocol(&protocol, name)?;
    let located = |error: Error| error.with_context("table", name);
    let mapping = mapping_of(&protocol, &metadata, name)?;
    let columns = parse_schema(&metadata.schema_string, mapping).map_err(located)?;
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    if let Some(odd) = metadata.partition_columns.iter().find(|c| !names.contains(&c.as_str())) {
        return Err(Error::data(format!(
            "table {name} is partitioned by {odd:?}, which is no column of its schema; it has {}",
            list_names(&names)
        )));
    }
    let stats = stats_of(&files, &columns);
    let records = rows_of(store, place, &files, &stats).await?;
    let partition_columns = &metadata.partition_columns;
    let Incremental { after, changes } = incremental;
    let own = match &changes {
        Some(changes) => {
            check_names(&columns, name)?;
            change_values(changes)?
        }
        None => Vec::new(),
    };
    let values = values_of(&files, &stats, records.clone(), &columns, partition_columns, own);
    let values = values.map_err(located)?;
    let files = files.into_iter().zip(records).map(|((path, add), records)| DataFile {
        key: path,
        size: add.size,
        records,
        vector: add.deletion_vector,
    });
    let spec = DeltaSpec {
        name: name.to_owned(),
        store: place.store.clone(),
        directory: place.directory.to_string(),
        table_id: metadata.id,
        version,
        after,
        changes: changes.is_some(),
        schema: metadata.schema_string,
        mapping,
        partition_columns: metadata.partition_columns,
        files: files.collect(),
        scan_filter,
    };
    Ok((spec, values))
}

fn mapping_of(protocol: &Protocol, metadata: &Metadata, name: &str) -> Result<Mapping> {
    // The property of a table whose protocol knows no mapping means nothing.
    let mode = metadata.property(MAPPING_MODE).filter(|_| may_map_columns(protocol));
    match mode {
        None | Some("none") => Ok(Mapping::None),
        Some("name") => Ok(Mapping::Name),
        Some("id") => Ok(Mapping::Id),
        Some(other) => Err(Error::data(format!(
            "the property {MAPPING_MODE} of table {name} is {other:?}; known are none, name and id"
        ))),
    }
}

/// Rows by file. Where the log does not say, the file's footer does.
async fn rows_of(
    store: &Arc<dyn ObjectStore>,
    place: &TablePlace,
    files: &[(Path, Add)],
    stats: &[Option<Stats>],
) -> Result<Vec<u64>> {
    let known = |((_, add), stats): (&(Path, Add), &Option<Stats>)| records_of(add, stats.as_ref());
    let known: Vec<Option<u64>> = files.iter().zip(stats).map(known).collect();
    let unknown = known.iter().zip(files).filter(|(known, _)| known.is_none());
    let counted = unknown.map(|(_, (path, add))| footer_rows(store, place, path, add.size));
    let counted = futures::stream::iter(counted).buffered(FOOTERS_AT_ONCE);
    let mut counted = counted.try_collect::<Vec<u64>>().await?.into_iter();
    Ok(known.into_iter().filter_map(|known| known.or_else(|| counted.next())).collect())
}

/// The rows of a data file, by its footer.
///
/// # Errors
/// `Data` where the footer is damaged; storage errors as they are.
pub async fn footer_rows(
    store: &Arc<dyn ObjectStore>,
    place: &TablePlace,
    path: &Path,
    size: u64,
) -> Result<u64> {
    let (location, last_modified) = (path.clone(), Default::default());
    let meta = ObjectMeta { location, last_modified, size, e_tag: None, version: None };
    let cache = FooterCache::default().in_store(&place.store);
    let footer = read_footer(store, &meta, &cache, false)
        .await
        .map_err(|error| error.with_context("data file", place.describe(path)))?;
    let rows: i64 = footer.row_groups().iter().map(|group| group.num_rows()).sum();
    u64::try_from(rows).map_err(|_| {
        Error::data(format!("data file {} has fewer rows than none", place.describe(path)))
    })
}
