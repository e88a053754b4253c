//! Which snapshot of a table a query reads: the current one, or by id, by branch or tag, or by
//! time.

use std::collections::HashSet;
use std::fmt;

use chrono::{DateTime, NaiveDate, NaiveDateTime, SecondsFormat, Utc};
use iceberg::spec::{SchemaRef, SnapshotRef, TableMetadata};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, suggestion};

/// Snapshots named in an error.
const NAMED_SNAPSHOTS: usize = 10;

/// A point in a table's history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TravelTo {
    /// The current snapshot of the main branch.
    #[default]
    Current,
    /// The snapshot of this id.
    Snapshot(i64),
    /// The snapshot of this id, read with the schema of this id: the pins of a run.
    Pinned {
        /// The snapshot.
        snapshot: i64,
        /// The schema.
        schema: i32,
    },
    /// The snapshot that a branch or tag names.
    Reference(String),
    /// The snapshot that was current at a time, in milliseconds since 1970-01-01 UTC.
    Time(i64),
    /// Rows appended after snapshot `from` up to and including snapshot `to`.
    Appended {
        /// Exclusive.
        from: i64,
        /// Inclusive; None: the current one.
        to: Option<i64>,
        /// The schema; None: the current one, or the one of the snapshot `to`.
        #[serde(default)]
        schema: Option<i32>,
    },
    /// Changes after version `from` up to and including version `to` of a Delta table.
    Changed {
        /// Exclusive.
        from: i64,
        /// Inclusive; None: the newest one.
        to: Option<i64>,
    },
}

impl fmt::Display for TravelTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Current => Ok(()),
            Self::Snapshot(id) | Self::Pinned { snapshot: id, .. } => write!(f, "@{id}"),
            Self::Reference(name) => write!(f, "@{name:?}"),
            Self::Time(millis) => write!(f, "@{}", time_text(*millis)),
            Self::Appended { from, to: Some(to), .. } => write!(f, "@{from}..{to}"),
            Self::Appended { from, to: None, .. } => write!(f, "@{from}.."),
            Self::Changed { from, to: Some(to) } => write!(f, "@changes {from}..{to}"),
            Self::Changed { from, to: None } => write!(f, "@changes {from}.."),
        }
    }
}

impl TravelTo {
    /// The table at this snapshot and schema.
    #[must_use]
    pub fn pinned(&self, snapshot: i64, schema: i32) -> Self {
        match self {
            Self::Appended { from, .. } => {
                Self::Appended { from: *from, to: Some(snapshot), schema: Some(schema) }
            }
            Self::Changed { from, .. } => Self::Changed { from: *from, to: Some(snapshot) },
            _ => Self::Pinned { snapshot, schema },
        }
    }

    /// Parses the value of `VERSION AS OF`: a snapshot id, or the name of a branch or tag. A name
    /// may be a number as well: see [`pin`].
    pub fn version(text: &str) -> Self {
        match text.parse::<i64>() {
            Ok(id) if id.to_string() == text => Self::Snapshot(id),
            _ => Self::Reference(text.to_owned()),
        }
    }

    /// Parses the value of `TIMESTAMP AS OF`: a date, or a date and time, in UTC unless it names an
    /// offset.
    ///
    /// # Errors
    /// `Query` where it is neither.
    pub fn time(text: &str) -> Result<Self> {
        let trimmed = text.trim();
        if let Ok(time) = DateTime::parse_from_rfc3339(trimmed) {
            return Ok(Self::Time(time.timestamp_millis()));
        }
        for format in ["%Y-%m-%d %H:%M:%S%.f%:z", "%Y-%m-%d %H:%M:%S%.f%#z"] {
            if let Ok(time) = DateTime::parse_from_str(trimmed, format) {
                return Ok(Self::Time(time.timestamp_millis()));
            }
        }
        for format in ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M"] {
            if let Ok(time) = NaiveDateTime::parse_from_str(trimmed, format) {
                return Ok(Self::Time(time.and_utc().timestamp_millis()));
            }
        }
        if let Ok(day) = NaiveDate::parse_from_str(trimmed, "%Y-%m-%d") {
            return Ok(Self::Time(
                day.and_time(chrono::NaiveTime::MIN).and_utc().timestamp_millis(),
            ));
        }
        Err(Error::query(format!(
            "{text:?} is no time; write TIMESTAMP AS OF '2026-01-31 12:00:00' (UTC), or with an offset, \
             '2026-01-31T12:00:00+01:00'"
        )))
    }
}

/// A snapshot and the schema its rows are read with.
#[derive(Clone, Debug)]
pub struct Pinned {
    /// None for a table that has none yet.
    pub snapshot: Option<SnapshotRef>,
    /// The table's current schema on a branch, and the snapshot's own in the past.
    pub schema: SchemaRef,
    /// For an incremental scan, the snapshots whose added files are read.
    pub appended: Option<Appended>,
}

/// The part of a history that an incremental scan reads.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The snapshot after which it starts.
    pub after: i64,
    /// The snapshots that appended.
    pub snapshots: HashSet<i64>,
}

/// Finds a snapshot. A number that is no snapshot's id may be the name of a branch or tag.
///
/// # Errors
/// `Config`, naming the snapshots or references that there are.
pub fn pin(metadata: &TableMetadata, table: &str, at: &TravelTo) -> Result<Pinned> {
    let past = |snapshot: &SnapshotRef| -> Result<Pinned> {
        let schema = snapshot.schema(metadata).map_err(|error| {
            Error::data(format!("the schema of a snapshot is missing: {}", error.message()))
        })?;
        Ok(Pinned { snapshot: Some(snapshot.clone()), schema, appended: None })
    };
    let named = |name: &str, snapshot: &SnapshotRef| match is_branch(metadata, name) {
        // As Iceberg's own readers: a branch goes on, so it is read with the current schema.
        true => Ok(Pinned {
            snapshot: Some(snapshot.clone()),
            schema: metadata.current_schema().clone(),
            appended: None,
        }),
        false => past(snapshot),
    };
    match at {
        TravelTo::Current => Ok(Pinned {
            snapshot: metadata.current_snapshot().cloned(),
            schema: metadata.current_schema().clone(),
            appended: None,
        }),
        TravelTo::Snapshot(id) => match by_id(metadata, table, *id) {
            Ok(snapshot) => past(snapshot),
            Err(unknown) => {
                let name = id.to_string();
                named(&name, metadata.snapshot_for_ref(&name).ok_or(unknown)?)
            }
        },
        TravelTo::Pinned { snapshot, schema } => {
            let snapshot = Some(by_id(metadata, table, *snapshot)?.clone());
            Ok(Pinned { snapshot, schema: schema_of(metadata, table, *schema)?, appended: None })
        }
        TravelTo::Reference(name) => {
            let found = metadata.snapshot_for_ref(name);
            named(name, found.ok_or_else(|| unknown_reference(metadata, table, name))?)
        }
        TravelTo::Time(millis) => past(at_time(metadata, table, *millis)?),
        TravelTo::Changed { .. } => Err(Error::config(format!(
            "table {table} is an Iceberg table, which has no change data feed; incremental() without changes=True reads \
             its appended rows"
        ))),
        TravelTo::Appended { from, to, schema } => {
            let last = match to {
                Some(id) => by_id(metadata, table, *id)?,
                None => metadata.current_snapshot().ok_or_else(|| {
                    Error::config(format!("table {table} has no snapshot, so nothing was appended"))
                })?,
            };
            let appended = appended(metadata, table, *from, last)?;
            let schema = match (schema, to) {
                (Some(id), _) => schema_of(metadata, table, *id)?,
                (None, Some(_)) => past(last)?.schema,
                (None, None) => metadata.current_schema().clone(),
            };
            Ok(Pinned { snapshot: Some(last.clone()), schema, appended: Some(appended) })
        }
    }
}

fn schema_of(metadata: &TableMetadata, table: &str, id: i32) -> Result<SchemaRef> {
    let found = metadata.schema_by_id(id).cloned();
    found.ok_or_else(|| Error::config(format!("table {table} has no schema {id} any more")))
}

fn by_id<'a>(metadata: &'a TableMetadata, table: &str, id: i64) -> Result<&'a SnapshotRef> {
    metadata.snapshot_by_id(id).ok_or_else(|| {
        let mut all: Vec<&SnapshotRef> = metadata.snapshots().collect();
        all.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.timestamp_ms()));
        let named: Vec<String> = all
            .iter()
            .take(NAMED_SNAPSHOTS)
            .map(|s| format!("{} ({})", s.snapshot_id(), time_text(s.timestamp_ms())))
            .collect();
        let more = match all.len().saturating_sub(NAMED_SNAPSHOTS) {
            0 => String::new(),
            more => format!(" and {more} older ones"),
        };
        let known = match named.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has {}{more}", named.join(", ")),
        };
        Error::config(format!("table {table} has no snapshot {id}, or it has expired; {known}"))
    })
}

fn is_branch(metadata: &TableMetadata, name: &str) -> bool {
    // References are not public as such; their names and kinds are in the metadata's own JSON form.
    references(metadata).iter().any(|reference| reference.name == name && reference.is_branch)
}

/// A branch or tag.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Its name.
    pub name: String,
    /// Whether it is a branch.
    pub is_branch: bool,
    /// The snapshot it names.
    pub snapshot: i64,
}

/// Branches and tags, by name.
pub fn references(metadata: &TableMetadata) -> Vec<Reference> {
    let json = serde_json::to_value(metadata).unwrap_or_default();
    let Some(refs) = json.get("refs").and_then(|refs| refs.as_object()) else { return Vec::new() };
    let mut found: Vec<Reference> = refs
        .iter()
        .filter_map(|(name, value)| {
            Some(Reference {
                name: name.clone(),
                is_branch: value.get("type")?.as_str()? == "branch",
                snapshot: value.get("snapshot-id")?.as_i64()?,
            })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn unknown_reference(metadata: &TableMetadata, table: &str, name: &str) -> Error {
    let known = references(metadata);
    let names: Vec<&str> = known.iter().map(|reference| reference.name.as_str()).collect();
    let list = match names.is_empty() {
        true => "it has none".to_owned(),
        false => format!("it has {}", names.join(", ")),
    };
    Error::config(format!(
        "table {table} has no branch or tag {name:?}{}; {list}",
        suggestion(name, names.iter().copied())
    ))
}

/// The snapshot that was current at a time, by the table's own log. A table need not have one: then
/// by the times of the current snapshot and its ancestors.
fn at_time<'a>(metadata: &'a TableMetadata, table: &str, millis: i64) -> Result<&'a SnapshotRef> {
    let log = metadata.history().iter().rev();
    let mut moments: Vec<(i64, i64)> =
        log.map(|entry| (entry.timestamp_ms(), entry.snapshot_id)).collect();
    if moments.is_empty() {
        moments = ancestors(metadata).map(|s| (s.timestamp_ms(), s.snapshot_id())).collect();
    }
    match (moments.iter().find(|(time, _)| *time <= millis), moments.last()) {
        (Some((_, id)), _) => by_id(metadata, table, *id),
        (None, Some((first, _))) => Err(Error::config(format!(
            "table {table} had no snapshot at {}; its history starts at {}",
            time_text(millis),
            time_text(*first)
        ))),
        (None, None) => Err(Error::config(format!("table {table} has no snapshot"))),
    }
}

/// The current snapshot and its ancestors that have not expired.
pub fn ancestors(metadata: &TableMetadata) -> impl Iterator<Item = &SnapshotRef> {
    let parent = |snapshot: &&SnapshotRef| {
        snapshot.parent_snapshot_id().and_then(|id| metadata.snapshot_by_id(id))
    };
    std::iter::successors(metadata.current_snapshot(), parent)
}

/// The appends after `from` up to `last`.
fn appended(
    metadata: &TableMetadata,
    table: &str,
    from: i64,
    last: &SnapshotRef,
) -> Result<Appended> {
    let mut snapshots = HashSet::new();
    let mut at = Some(last);
    while let Some(snapshot) = at {
        if snapshot.snapshot_id() == from {
            return Ok(Appended { after: from, snapshots });
        }
        use iceberg::spec::Operation;
        match snapshot.summary().operation {
            Operation::Append => {
                snapshots.insert(snapshot.snapshot_id());
            }
            // Compaction rewrites rows that are there; deletes and overwrites add none by append.
            Operation::Replace | Operation::Delete | Operation::Overwrite => {}
        }
        let Some(parent) = snapshot.parent_snapshot_id() else { break };
        if parent == from {
            // The snapshot itself may have expired: its id is enough.
            return Ok(Appended { after: from, snapshots });
        }
        at = metadata.snapshot_by_id(parent);
        if at.is_none() {
            return Err(Error::config(format!(
                "the history of table {table} between snapshots {from} and {} is not complete: {parent} has expired",
                last.snapshot_id()
            )));
        }
    }
    Err(Error::config(format!(
        "snapshot {from} does not exist, has expired, or is no ancestor of snapshot {} of table {table}",
        last.snapshot_id()
    )))
}

/// A time of a table's history, as a person reads it.
pub fn time_text(millis: i64) -> String {
    DateTime::<Utc>::from_timestamp_millis(millis)
        .map_or_else(|| millis.to_string(), |t| t.to_rfc3339_opts(SecondsFormat::Millis, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_unless_they_say_otherwise() {
        let millis = |text: &str| TravelTo::time(text).unwrap();
        assert_eq!(millis("1970-01-02"), TravelTo::Time(86_400_000));
        assert_eq!(millis("1970-01-01 00:00:01.5"), TravelTo::Time(1_500));
        assert_eq!(millis("1970-01-01T01:00:00+01:00"), TravelTo::Time(0));
        assert!(TravelTo::time("yesterday").is_err());
    }
}
