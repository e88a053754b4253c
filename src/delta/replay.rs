//! The state of a table at a version: the log's actions, reconciled.
//! Rules: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#action-reconciliation>.

use std::sync::Arc;

use datafusion::common::HashMap;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::actions::{Action, Add, Metadata, Protocol, read_json};
use super::checkpoint::read_checkpoint;
use super::files::{LogFiles, Segment};
use super::place::TablePlace;
use crate::{Error, Result};

/// Files of a log that are read at the same time.
const AT_ONCE: usize = 16;

/// A table at a version.
#[derive(Debug)]
pub struct State {
    /// The version.
    pub version: i64,
    /// What a reader has to know.
    pub protocol: Protocol,
    /// Schema and properties.
    pub metadata: Metadata,
    /// The data files, by their keys.
    pub files: Vec<(Path, Add)>,
}

/// A data file as the log tells it from others: with the deletion vector that it has.
type FileKey = (Path, Option<String>);

/// Reads a table's state.
///
/// # Errors
/// `Config` for a version that there is not; `Data` where the log is damaged or not complete;
/// storage errors as they are.
pub async fn read_state(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    place: &TablePlace,
    version: i64,
    table: &str,
) -> Result<State> {
    let segment = log.segment(version, table)?;
    let mut replay = Replay::new(place);
    let commits = segment.commits.iter().rev().map(|(_, meta)| read_commit(store, log, meta));
    // Newest first: what is said later holds.
    let mut commits = futures::stream::iter(commits).buffered(AT_ONCE);
    while let Some(actions) = commits.try_next().await? {
        replay.take(actions)?;
    }
    drop(commits);
    for actions in checkpoint(store, log, place, &segment).await? {
        replay.take(actions)?;
    }
    replay.finish(version, table)
}

/// The actions of one commit.
///
/// # Errors
/// `Data` where it is damaged; storage errors as they are.
pub async fn read_commit(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    meta: &ObjectMeta,
) -> Result<Vec<Action>> {
    let located = |error: Error| error.with_context("commit", log.describe(&meta.location));
    read_json(store, &meta.location).await.map_err(located)
}

/// The actions of a segment's checkpoint, with those of the files that it names.
async fn checkpoint(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    place: &TablePlace,
    segment: &Segment,
) -> Result<Vec<Vec<Action>>> {
    let parts = segment
        .checkpoint
        .iter()
        .map(|meta| async move { read_checkpoint(store, log, &meta.location, meta.size).await });
    let mut found: Vec<Vec<Action>> =
        futures::stream::iter(parts).buffered(AT_ONCE).try_collect().await?;
    let mut sidecars = Vec::new();
    for sidecar in found.iter().flatten().filter_map(|action| action.sidecar.as_ref()) {
        let is_name = !sidecar.path.contains('/');
        let path = match is_name {
            true => log.sidecar(&sidecar.path),
            false => place.key_of(&sidecar.path)?,
        };
        sidecars.push((path, sidecar.size_in_bytes));
    }
    let sidecars = sidecars.iter().map(|(path, size)| read_checkpoint(store, log, path, *size));
    let more: Vec<Vec<Action>> =
        futures::stream::iter(sidecars).buffered(AT_ONCE).try_collect().await?;
    found.extend(more);
    Ok(found)
}

/// What newer actions have said.
struct Replay<'a> {
    place: &'a TablePlace,
    /// The files that came, and None for those that went.
    files: HashMap<FileKey, Option<Add>>,
    protocol: Option<Box<Protocol>>,
    metadata: Option<Box<Metadata>>,
}

impl<'a> Replay<'a> {
    fn new(place: &'a TablePlace) -> Self {
        Self { place, files: HashMap::new(), protocol: None, metadata: None }
    }

    /// Takes the actions of an older file.
    fn take(&mut self, actions: Vec<Action>) -> Result<()> {
        self.files.reserve(actions.len());
        for action in actions {
            if let Some(add) = action.add {
                let key = self.place.key_of(add.path.as_str())?;
                let vector = add.deletion_vector.as_ref().map(|vector| vector.unique_id());
                self.files.entry((key, vector)).or_insert(Some(add));
            }
            if let Some(remove) = action.remove {
                let key = self.place.key_of(&remove.path)?;
                let vector = remove.deletion_vector.as_ref().map(|vector| vector.unique_id());
                self.files.entry((key, vector)).or_insert(None);
            }
            self.protocol = self.protocol.take().or(action.protocol);
            self.metadata = self.metadata.take().or(action.meta_data);
        }
        Ok(())
    }

    fn finish(self, version: i64, table: &str) -> Result<State> {
        let lacks = |what: &str| {
            Error::data(format!("the log of table {table} has no {what} up to version {version}"))
        };
        let protocol = *self.protocol.ok_or_else(|| lacks("protocol"))?;
        let metadata = *self.metadata.ok_or_else(|| lacks("metadata"))?;
        let there = self.files.into_iter().filter_map(|((key, _), add)| Some((key, add?)));
        let mut files: Vec<(Path, Add)> = there.collect();
        // Another order of commits or checkpoints must not be another order of rows.
        files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if let Some(twice) = files.windows(2).find(|two| two[0].0 == two[1].0) {
            return Err(Error::data(format!(
                "table {table} lists data file {} twice at version {version}",
                twice[0].0
            )));
        }
        Ok(State { version, protocol, metadata, files })
    }
}
