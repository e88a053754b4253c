//! Counting output rows, with the GIL released and Ctrl-C answered.

use pyo3::prelude::*;

use super::wait::{attached, wait};
use crate::Error;
use crate::session::SplitCounter;

/// Counts output rows of a plan's splits.
#[pyclass(name = "SplitCounter", module = "tensorquery._core", frozen)]
pub struct PySplitCounter {
    counter: SplitCounter,
}

impl PySplitCounter {
    /// Wraps a counter.
    pub fn new(counter: SplitCounter) -> Self {
        Self { counter }
    }
}

#[pymethods]
impl PySplitCounter {
    /// Output rows of these splits, and whether each was read. After each split `progress` is
    /// called with the number of splits and of rows counted so far; its exception ends the
    /// counting.
    #[pyo3(signature = (ids, threads, progress = None))]
    fn count(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        threads: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<(u64, bool)>> {
        let mut raised = None;
        let (raised_in, counter) = (&mut raised, &self.counter);
        let result = wait(py, move || async move {
            let (mut splits, mut rows) = (0_u64, 0_u64);
            let report = |_, count: crate::session::SplitCount| {
                splits += 1;
                rows += count.rows;
                let Some(progress) = &progress else { return Ok(()) };
                attached(|py| progress.call1(py, (splits, rows))).map(drop).map_err(|error| {
                    *raised_in = Some(error);
                    Error::config("progress raised")
                })
            };
            counter.count(&ids, threads, report).await
        });
        match raised {
            Some(error) => Err(error),
            None => Ok(result?.into_iter().map(|count| (count.rows, count.read)).collect()),
        }
    }
}
