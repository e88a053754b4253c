//! Stages of parts of queries: built, listed, removed.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use super::error::to_py;
use super::query::PyQuery;
use super::wait::{planned, wait, wait_with};
use crate::materialize::{StagePlace, StageProgress, clear_stages, list_stages};
use crate::session::{Building, StageEngine, StageMode};
use crate::storage::StoreAccess;
use crate::{Error, Result};

/// A stage of a query: why, place, rows, bytes, digest, seconds that building it took here.
type StageRow = (String, Option<String>, u64, u64, String, Option<f64>);

/// A stage of a place: key, rows, bytes, why, seconds since 1970 of its last use.
type StageEntry = (String, Option<u64>, u64, String, f64);

/// The mode of this name.
pub fn mode(name: &str) -> Result<StageMode> {
    match name {
        "auto" => Ok(StageMode::Auto),
        "never" => Ok(StageMode::Never),
        "always" => Ok(StageMode::Always),
        other => {
            Err(Error::config(format!("stage={other:?} must be \"auto\", \"never\" or \"always\"")))
        }
    }
}

/// The query with its stages. Above `max_bytes`, unused stages of the place make way. `progress` is
/// called with (stages begun, stages, rows, bytes, builder) now and then; the builder is another
/// process, if one is waited for. `engine` is the URL of the cluster that computes the rows; None
/// is this process.
#[pyfunction]
#[pyo3(signature = (query, stage, place, timeout, max_bytes=None, progress=None, engine=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
pub fn stage_query(
    py: Python<'_>,
    query: &PyQuery,
    stage: &str,
    place: String,
    timeout: f64,
    max_bytes: Option<u64>,
    progress: Option<Py<PyAny>>,
    engine: Option<&str>,
) -> PyResult<PyQuery> {
    let mode = mode(stage).map_err(to_py)?;
    let engine = engine.map(StageEngine::parse).transpose().map_err(to_py)?.unwrap_or_default();
    let query = query.query().clone();
    let shared = Arc::new(StageProgress::default());
    let now = Arc::clone(&shared);
    let show = |py: Python<'_>| {
        let Some(progress) = &progress else { return Ok(()) };
        let state = now.state();
        let row = (state.begun, state.stages, state.rows, state.bytes, state.builder);
        progress.call1(py, row).map(drop)
    };
    let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
    let make = move || async move {
        let looked = query.clone();
        // Where nothing is staged, the place is not touched.
        if planned(move || async move { Ok(looked.cuts(mode).await?.is_empty()) }).await? {
            return Ok(query);
        }
        let place = StagePlace::open(&place, query.session().store_access()).await?;
        let place = place.bounded(max_bytes);
        let how = Building { place: &place, engine: &engine, timeout, progress: &shared };
        query.staged(mode, how).await
    };
    let staged = wait_with(py, make, show)?;
    show(py)?;
    Ok(PyQuery::of(staged))
}

/// The stages of a query.
#[pyfunction]
pub fn stages_of(query: &PyQuery) -> Vec<StageRow> {
    let parts = query.query().parts().iter();
    parts
        .map(|part| {
            let digest = part.digest().to_owned();
            (part.why.clone(), part.place.clone(), part.rows, part.bytes, digest, part.built)
        })
        .collect()
}

fn access(options: &str) -> Result<StoreAccess> {
    let options = serde_json::from_str(options)
        .map_err(|error| Error::config(format!("bad storage options: {error}")))?;
    Ok(StoreAccess { options, credentials: None, files: None })
}

/// The stages in a folder or below a URL, the one that was used last first.
#[pyfunction]
#[pyo3(name = "list_stages")]
pub fn listed(py: Python<'_>, place: String, options: &str) -> PyResult<Vec<StageEntry>> {
    let access = access(options).map_err(to_py)?;
    let stages =
        wait(
            py,
            move || async move { list_stages(&StagePlace::find(&place, access).await?).await },
        )?;
    let row = |stage: crate::materialize::StageInfo| {
        let used = stage.used.timestamp_millis() as f64 / 1e3;
        (stage.key, stage.rows, stage.bytes, stage.why, used)
    };
    Ok(stages.into_iter().map(row).collect())
}

/// Removes stages that were not used for so many seconds, and of the others as many as it takes
/// that no more than `keep` bytes are left; how many went, their bytes, and how many stayed because
/// they are in use.
#[pyfunction]
#[pyo3(name = "clear_stages", signature = (place, options, unused, keep=None))]
pub fn cleared(
    py: Python<'_>,
    place: String,
    options: &str,
    unused: f64,
    keep: Option<u64>,
) -> PyResult<(usize, u64, usize)> {
    let access = access(options).map_err(to_py)?;
    let unused = Duration::try_from_secs_f64(unused).unwrap_or(Duration::MAX);
    let swept = wait(py, move || async move {
        clear_stages(&StagePlace::find(&place, access).await?, unused, keep).await
    })?;
    Ok((swept.stages, swept.bytes, swept.in_use))
}
