//! The change data feed: rows that commits inserted, deleted and updated, as files to read.
//! Rules: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#reader-requirements-for-cdc-files>.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::UInt64Array;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::scalar::ScalarValue;
use object_store::ObjectStore;
use object_store::path::Path;
use roaring::RoaringTreemap;

use super::actions::{Action, Add, VectorPlace};
use super::appended::read_between;
use super::files::LogFiles;
use super::history::{commit_info, file_times, times_in_commits_from};
use super::load::footer_rows;
use super::place::TablePlace;
use super::replay::{State, read_state};
use super::schema::{Column, Kind, UTC};
use super::stats::{Asked, Stats};
use super::values::records_of;
use super::vectors::{inline, read_vector};
use crate::iceberg::{KnownColumn, values_array};
use crate::{Error, Result, list_names};

/// The property without which a table keeps no changes.
const ENABLED: &str = "delta.enableChangeDataFeed";

/// What happened to a row. Files of changes store it.
const CHANGE_TYPE: &str = "_change_type";
/// The version in which it happened.
const COMMIT_VERSION: &str = "_commit_version";
/// When that version was committed.
const COMMIT_TIME: &str = "_commit_timestamp";

const INSERT: &str = "insert";
const DELETE: &str = "delete";

/// The changes that a file holds.
#[derive(Clone, Debug)]
pub struct Change {
    /// `insert` or `delete`; None where the file says it of each row.
    kind: Option<&'static str>,
    version: i64,
    /// Milliseconds since 1970-01-01 UTC.
    time: i64,
}

/// The columns that changes have beside those of the table.
pub fn change_columns() -> Vec<Column> {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into()));
    let columns =
        [(CHANGE_TYPE, DataType::Utf8), (COMMIT_VERSION, DataType::Int64), (COMMIT_TIME, time)];
    let column = |(name, data_type): (&str, DataType)| Column {
        name: name.to_owned(),
        physical: name.to_owned(),
        id: None,
        is_nullable: true,
        kind: Kind::Primitive(data_type),
        former: Vec::new(),
    };
    columns.map(column).into()
}

/// The values of these columns in each file.
///
/// # Errors
/// None but internal ones.
pub fn change_values(changes: &[Change]) -> Result<Vec<KnownColumn>> {
    let value = |name: &str, change: &Change| match name {
        CHANGE_TYPE => change.kind.map(|kind| ScalarValue::Utf8(Some(kind.to_owned()))),
        COMMIT_VERSION => Some(ScalarValue::Int64(Some(change.version))),
        _ => {
            let micros = change.time.saturating_mul(1000);
            Some(ScalarValue::TimestampMicrosecond(Some(micros), Some(UTC.into())))
        }
    };
    let known = |column: Column| {
        let values = || changes.iter().map(|change| value(&column.name, change));
        let array = values_array(values(), &column.kind.data_type())?;
        let none: UInt64Array = values().map(|value| value.map(|_| 0)).collect();
        Ok(KnownColumn {
            fixed: Some(values().map(|value| value.map(|_| true)).collect()),
            lower: Arc::clone(&array),
            upper: array,
            nulls: none.clone(),
            nans: none,
            name: column.name.clone(),
        })
    };
    change_columns().into_iter().map(known).collect()
}

/// The state at version `to` (None: the newest), with files that hold the changes of the commits
/// after version `from`, in their order.
///
/// # Errors
/// `Config` where the versions are out of order, a commit between them is gone, or the table kept no
/// changes at one of them.
pub async fn changed_files(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    place: &TablePlace,
    name: &str,
    from: i64,
    to: Option<i64>,
) -> Result<(State, Vec<Change>)> {
    let to = to.unwrap_or_else(|| log.latest());
    let commits = read_between(store, log, name, from, to).await?;
    let before = read_state(store, log, place, from, name).await?;
    let mut state = read_state(store, log, place, to, name).await?;
    let with_times = times_in_commits_from(&state.metadata).unwrap_or(i64::MAX);
    let times: HashMap<i64, i64> = file_times(log, with_times).into_iter().collect();
    let mut is_kept = before.metadata.property(ENABLED) == Some("true");
    let mut feed = Feed { store, place, name, known: HashMap::new(), found: Vec::new() };
    for (path, add) in before.files {
        feed.known.insert(key_of(path, add.deletion_vector.as_deref()), add);
    }
    for (version, actions) in (from + 1..).zip(commits) {
        if let Some(metadata) = actions.iter().find_map(|action| action.meta_data.as_ref()) {
            is_kept = metadata.property(ENABLED) == Some("true");
        }
        if !is_kept {
            return Err(Error::config(format!(
                "table {name} kept no changes at version {version}: its property {ENABLED} was not true; read changes \
                 of versions at which it was, or appended rows, without changes=True"
            )));
        }
        let time = times.get(&version).copied();
        let time = time.or_else(|| commit_info(&actions).in_commit_timestamp).ok_or_else(|| {
            Error::data(format!("commit {version} of table {name} has no inCommitTimestamp"))
        })?;
        feed.take(version, time, actions).await?;
    }
    let (files, changes) = feed.found.into_iter().unzip();
    state.files = files;
    Ok((state, changes))
}

/// Checks that no column of a table has the name of one that changes have.
///
/// # Errors
/// `Config` naming it.
pub fn check_names(columns: &[Column], table: &str) -> Result<()> {
    let own = change_columns();
    let taken = columns.iter().find(|column| own.iter().any(|own| own.name == column.name));
    match taken {
        None => Ok(()),
        Some(taken) => Err(Error::config(format!(
            "table {table} has a column {:?}, and changes have columns {} of their own; rename it",
            taken.name,
            list_names(&own.iter().map(|own| own.name.as_str()).collect::<Vec<_>>())
        ))),
    }
}

/// A data file with the deletion vector that it has.
type FileKey = (Path, Option<String>);

fn key_of(path: Path, vector: Option<&VectorPlace>) -> FileKey {
    (path, vector.map(VectorPlace::unique_id))
}

/// The changes found so far.
struct Feed<'a> {
    store: &'a Arc<dyn ObjectStore>,
    place: &'a TablePlace,
    name: &'a str,
    /// The files that there were, since a commit says little of those that it removes.
    known: HashMap<FileKey, Add>,
    found: Vec<((Path, Add), Change)>,
}

impl Feed<'_> {
    async fn take(&mut self, version: i64, time: i64, actions: Vec<Action>) -> Result<()> {
        let (mut stored, mut added, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        for action in actions {
            if let Some(cdc) = action.cdc {
                stored.push((self.place.key_of(cdc.path.as_str())?, *cdc));
            }
            if let Some(add) = action.add {
                let path = self.place.key_of(add.path.as_str())?;
                self.known
                    .insert(key_of(path.clone(), add.deletion_vector.as_deref()), add.clone());
                if add.data_change {
                    added.push((path, add));
                }
            }
            if let Some(remove) = action.remove.filter(|remove| remove.data_change) {
                let path = self.place.key_of(&remove.path)?;
                removed.push((path, remove.deletion_vector));
            }
        }
        // Where a commit has files of changes, they are all that it changed.
        if stored.is_empty() {
            self.derive(version, time, added, removed).await?;
        } else {
            stored.sort_by(|a, b| a.0.cmp(&b.0));
            let change = Change { kind: None, version, time };
            self.found.extend(stored.into_iter().map(|file| (file, change.clone())));
        }
        Ok(())
    }

    /// The changes of a commit that only says which files came and went.
    async fn derive(
        &mut self,
        version: i64,
        time: i64,
        added: Vec<(Path, Add)>,
        removed: Vec<(Path, Option<VectorPlace>)>,
    ) -> Result<()> {
        let mut found = Vec::new();
        let mut added: HashMap<Path, Add> = added.into_iter().collect();
        for (path, vector) in removed {
            let old = self.known.get(&key_of(path.clone(), vector.as_ref())).cloned();
            let old = old.ok_or_else(|| {
                Error::data(format!(
                    "commit {version} of table {} removes data file {path}, which was not there",
                    self.name
                ))
            })?;
            match added.remove(&path) {
                None => found.push((path, old, DELETE)),
                // The same file: some of its rows went, or came back.
                Some(new) => {
                    let rows = self.rows_of(&path, &new).await?;
                    let gone_before = self.gone(old.deletion_vector.as_deref()).await?;
                    let gone_now = self.gone(new.deletion_vector.as_deref()).await?;
                    for (part, kind) in
                        [(&gone_now - &gone_before, DELETE), (&gone_before - &gone_now, INSERT)]
                    {
                        if !part.is_empty() {
                            found.push((path.clone(), only(&new, rows, &part)?, kind));
                        }
                    }
                }
            }
        }
        found.extend(added.into_iter().map(|(path, add)| (path, add, INSERT)));
        found.sort_by(|a, b| (&a.0, a.2).cmp(&(&b.0, b.2)));
        let change = |kind| Change { kind: Some(kind), version, time };
        self.found.extend(found.into_iter().map(|(path, add, kind)| ((path, add), change(kind))));
        Ok(())
    }

    async fn gone(&self, vector: Option<&VectorPlace>) -> Result<RoaringTreemap> {
        match vector {
            Some(vector) => read_vector(self.store, self.place, vector).await,
            None => Ok(RoaringTreemap::new()),
        }
    }

    async fn rows_of(&self, path: &Path, add: &Add) -> Result<u64> {
        let parsed = |text: &str| Stats::parse(text, &Asked::default());
        match records_of(add, add.stats.as_ref().map(|stats| parsed(stats.as_str())).as_ref()) {
            Some(rows) => Ok(rows),
            None => footer_rows(self.store, self.place, path, add.size).await,
        }
    }
}

/// A file of `rows` rows without all but some of them. Its statistics are those of other rows.
fn only(file: &Add, rows: u64, part: &RoaringTreemap) -> Result<Add> {
    let mut others = RoaringTreemap::new();
    others.insert_range(0..rows);
    others -= part;
    let vector = if others.is_empty() { None } else { Some(Box::new(inline(&others)?)) };
    Ok(Add { deletion_vector: vector, stats: None, records: Some(rows), ..file.clone() })
}
