//! The times of a table's commits.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, SecondsFormat, Utc};
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStore;

use super::actions::{Action, CommitInfo, Metadata};
use super::files::LogFiles;
use super::place::TablePlace;
use super::replay::{read_commit, read_state};
use crate::{Error, Result};

/// The property that says whether commits hold their times.
const IN_COMMITS: &str = "delta.enableInCommitTimestamps";

/// The property that says from which version on they do; without it, from the first.
const FROM_VERSION: &str = "delta.inCommitTimestampEnablementVersion";

/// Commits that are read at the same time.
const AT_ONCE: usize = 16;

/// Finds the version that was current at a time, in milliseconds since 1970-01-01 UTC.
///
/// # Arguments
/// `metadata`: the table's newest, which says where times are.
///
/// # Errors
/// `Config` for a time before the first commit that there is still; `Data` for a commit without a
/// time.
pub async fn version_at(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    metadata: &Metadata,
    millis: i64,
    table: &str,
) -> Result<i64> {
    let too_early = |first: i64| {
        Error::config(format!(
            "table {table} had no version at {}; its history starts at {}",
            time_text(millis),
            time_text(first)
        ))
    };
    let from = times_in_commits_from(metadata);
    // Commits before times were kept in them have the times of their files.
    let older = file_times(log, from.unwrap_or(i64::MAX));
    if let Some(from) = from {
        let versions: Vec<i64> = log.commits().range(from..).map(|(version, _)| *version).collect();
        // They rise.
        let (mut low, mut high) = (0, versions.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match time_in_commit(store, log, versions[middle], table).await? <= millis {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        if low > 0 {
            return Ok(versions[low - 1]);
        }
        if older.is_empty()
            && let Some(first) = versions.first()
        {
            return Err(too_early(time_in_commit(store, log, *first, table).await?));
        }
    }
    match older.iter().rev().find(|(_, time)| *time <= millis) {
        Some((version, _)) => Ok(*version),
        None => match older.first() {
            Some((_, first)) => Err(too_early(*first)),
            None => Err(Error::config(format!(
                "the log of table {table} has no commits any more, only checkpoints, so it has no times to travel to; \
                 name a version"
            ))),
        },
    }
}

/// The version from which on commits hold their times; None where they do not.
pub fn times_in_commits_from(metadata: &Metadata) -> Option<i64> {
    if metadata.property(IN_COMMITS) != Some("true") {
        return None;
    }
    Some(metadata.property(FROM_VERSION).and_then(|version| version.parse().ok()).unwrap_or(0))
}

/// The times of the commits before `end`. Clocks of stores go back; versions do not.
pub fn file_times(log: &LogFiles, end: i64) -> Vec<(i64, i64)> {
    let mut times: Vec<(i64, i64)> = Vec::new();
    for (version, meta) in log.commits().range(..end) {
        let own = meta.last_modified.timestamp_millis();
        let time = times.last().map_or(own, |(_, before)| own.max(before + 1));
        times.push((*version, time));
    }
    times
}

async fn time_in_commit(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    version: i64,
    table: &str,
) -> Result<i64> {
    let lacks =
        || Error::data(format!("commit {version} of table {table} has no inCommitTimestamp"));
    let meta = log.commits().get(&version).ok_or_else(lacks)?;
    let info = commit_info(&read_commit(store, log, meta).await?);
    info.in_commit_timestamp.ok_or_else(lacks)
}

/// What a commit says of itself.
pub fn commit_info(actions: &[Action]) -> CommitInfo {
    actions.iter().find_map(|action| action.commit_info.as_deref()).cloned().unwrap_or_default()
}

/// One commit of a table's history.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The version that it made.
    pub version: i64,
    /// When, in milliseconds since 1970-01-01 UTC.
    pub time: i64,
    /// What it says of itself.
    pub info: CommitInfo,
}

/// The commits that there are still, oldest first.
///
/// # Errors
/// `TableNotFound` where there is no log; `Data` for a damaged one; storage errors as they are.
pub async fn commits(
    store: &Arc<dyn ObjectStore>,
    place: &TablePlace,
    table: &str,
) -> Result<Vec<Commit>> {
    let log = LogFiles::list(store, place).await?;
    let newest = read_state(store, &log, place, log.latest(), table).await?;
    let from = times_in_commits_from(&newest.metadata).unwrap_or(i64::MAX);
    let times: HashMap<i64, i64> = file_times(&log, from).into_iter().collect();
    let log = &log;
    let read = log.commits().iter().map(|(version, meta)| async move {
        Ok::<_, Error>((*version, commit_info(&read_commit(store, log, meta).await?)))
    });
    let read: Vec<(i64, CommitInfo)> =
        futures::stream::iter(read).buffered(AT_ONCE).try_collect().await?;
    let commit = |(version, info): (i64, CommitInfo)| {
        let time = times.get(&version).copied().or(info.in_commit_timestamp);
        let time = time.ok_or_else(|| {
            Error::data(format!("commit {version} of table {table} has no inCommitTimestamp"))
        })?;
        Ok(Commit { version, time, info })
    };
    read.into_iter().map(commit).collect()
}

fn time_text(millis: i64) -> String {
    DateTime::<Utc>::from_timestamp_millis(millis)
        .map_or_else(|| millis.to_string(), |t| t.to_rfc3339_opts(SecondsFormat::Millis, true))
}
