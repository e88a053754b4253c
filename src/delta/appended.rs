//! The files that commits added to a table after a version.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore};

use super::actions::Action;
use super::files::LogFiles;
use super::place::TablePlace;
use super::replay::{State, read_commit, read_state};
use crate::{Error, Result};

/// Commits that are read at the same time.
const AT_ONCE: usize = 16;

/// The state at version `to` (None: the newest), with the files that appends after version `from`
/// have added. A commit that took rows out, too, is none: an update, a merge or an overwrite. One
/// that rearranged files, neither.
///
/// # Errors
/// `Config` where the versions are out of order, or a commit between them is gone.
pub async fn appended_files(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    place: &TablePlace,
    name: &str,
    from: i64,
    to: Option<i64>,
) -> Result<State> {
    let to = to.unwrap_or_else(|| log.latest());
    let commits = read_between(store, log, name, from, to).await?;
    let mut state = read_state(store, log, place, to, name).await?;
    state.files.clear();
    for actions in commits {
        let is_append = !actions
            .iter()
            .any(|action| action.remove.as_ref().is_some_and(|remove| remove.data_change));
        let added = actions.into_iter().filter_map(|action| action.add);
        for add in added.filter(|add| is_append && add.data_change) {
            state.files.push((place.key_of(add.path.as_str())?, add));
        }
    }
    state.files.sort_by(|a, b| a.0.cmp(&b.0));
    state.files.dedup_by(|a, b| a.0 == b.0);
    Ok(state)
}

/// The actions of each commit after version `from`, up to version `to`.
///
/// # Errors
/// `Config` where the versions are out of order, or a commit between them is gone.
pub async fn read_between(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    name: &str,
    from: i64,
    to: i64,
) -> Result<Vec<Vec<Action>>> {
    if from > to || from < 0 {
        return Err(Error::config(format!(
            "version {from} of table {name} is not before version {to}, so nothing was appended between them"
        )));
    }
    let commit = |version| {
        log.commits().get(&version).ok_or_else(|| {
            Error::config(format!(
                "the history of table {name} between versions {from} and {to} is not complete: commit {version} was \
                 cleaned up"
            ))
        })
    };
    let commits = (from + 1..=to).map(commit).collect::<Result<Vec<&ObjectMeta>>>()?;
    let read = commits.into_iter().map(|meta| read_commit(store, log, meta));
    futures::stream::iter(read).buffered(AT_ONCE).try_collect().await
}
