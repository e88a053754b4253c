//! Windows over series: the pass that finds series, and the windows that streams deliver.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::arrow::schema_capsule;
use super::plan::PyPlan;
use super::wait::{at_once, compute, wait};
use crate::session::{FoundSeries, SeriesColumns};
use crate::stream::{WindowReader, WindowSpec};
use crate::{Error, Result};

/// The rows by split and by series, or why the rows cannot be read as they lie.
type SeriesRow = (Vec<u64>, Vec<u64>, Option<String>);

/// Windows over the series of a plan's rows.
#[pyclass(name = "Windows", module = "tensorquery._core", frozen)]
pub struct PyWindows {
    reader: Arc<WindowReader>,
}

impl PyWindows {
    /// What makes the windows.
    pub fn reader(&self) -> &Arc<WindowReader> {
        &self.reader
    }
}

#[pymethods]
impl PyWindows {
    /// Windows as `spec` (JSON) says, over splits of `counts` rows that are series of `lengths`
    /// rows.
    #[new]
    fn new(
        py: Python<'_>,
        plan: &PyPlan,
        spec: &str,
        counts: Vec<u64>,
        lengths: Vec<u64>,
    ) -> PyResult<Self> {
        let plan = plan.plan();
        let make = || -> Result<WindowReader> {
            let spec: WindowSpec = serde_json::from_str(spec)
                .map_err(|error| Error::config(format!("bad windows: {error}")))?;
            WindowReader::try_new(&plan.schema(), &spec, &counts, &lengths)
        };
        Ok(Self { reader: Arc::new(compute(py, make)?) })
    }

    /// Reads the columns `by` and `order` of all rows of a plan, once. Returns the rows by split and
    /// by series, or the first row that is not in its place, in words.
    #[staticmethod]
    fn series(
        py: Python<'_>,
        plan: &PyPlan,
        by: Vec<String>,
        order: String,
        threads: usize,
    ) -> PyResult<SeriesRow> {
        let plan = plan.plan();
        let columns = SeriesColumns { by, order };
        let find = move || async move { plan.series(&columns, threads).await };
        Ok(match wait(py, find)? {
            FoundSeries::Sorted(series) => (series.counts, series.lengths, None),
            FoundSeries::Unsorted(why) => (Vec::new(), Vec::new(), Some(why)),
        })
    }

    /// Windows by split.
    fn counts(&self) -> Vec<u64> {
        self.reader.layout().counts()
    }

    /// Bytes of a window, about.
    #[getter]
    fn window_bytes(&self) -> u64 {
        self.reader.window_bytes()
    }

    /// The first row of each of these windows of a split, among all rows.
    fn first_rows(&self, windows: Vec<(u32, u64)>) -> PyResult<Vec<u64>> {
        let layout = self.reader.layout();
        let first = |(split, window): (u32, u64)| {
            let found = layout.windows_of(split, window..window.saturating_add(1));
            match found.is_empty() {
                false => Ok(layout.first_row(found.start)),
                true => Err(Error::config(format!("split {split} has no window {window}"))),
            }
        };
        at_once(|| windows.into_iter().map(first).collect())
    }

    /// The split of each of these rows, and the number of the row there.
    fn places(&self, rows: Vec<u64>) -> Vec<(u32, u64)> {
        rows.into_iter().map(|row| self.reader.layout().place(row)).collect()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, self.reader.schema())
    }
}
