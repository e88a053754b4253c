//! Stages: a query's rows on local disk, shared by processes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use pyo3_arrow::PyRecordBatch;

use super::arrow::schema_capsule;
use super::error::to_py;
use super::pieces::written;
use super::plan::PyPlan;
use super::tensor::{TensorConverter, to_python};
use super::wait::{compute, wait_with};
use crate::row_store::{Drawing, Progress, Stage, weight_column};
use crate::tensor::Pieces;

/// The rows of a query on disk, for access at random.
#[pyclass(name = "Stage", module = "tensorquery._core", frozen)]
pub struct PyStage {
    stage: Arc<Stage>,
    drawing: Option<Arc<Drawing>>,
}

impl PyStage {
    /// The stage, for streams over it.
    pub fn stage(&self) -> &Arc<Stage> {
        &self.stage
    }

    /// How rows are drawn from it, where they are.
    pub fn drawing(&self) -> Option<&Arc<Drawing>> {
        self.drawing.as_ref()
    }
}

#[pymethods]
impl PyStage {
    /// Opens the stage of a plan in `<root>/<fingerprint>`, or writes it; of several processes one
    /// does. `progress` is called with (splits done, splits, rows, bytes) now and then.
    #[staticmethod]
    #[pyo3(signature = (plan, root, threads, progress=None))]
    fn ensure(
        py: Python<'_>,
        plan: &PyPlan,
        root: PathBuf,
        threads: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let plan = plan.plan();
        let counts = Arc::new(Progress::default());
        let show = |py: Python<'_>| {
            let Some(progress) = &progress else { return Ok(()) };
            let now = counts.report();
            progress.call1(py, (now.splits_done, now.splits, now.rows, now.bytes)).map(drop)
        };
        let shared = Arc::clone(&counts);
        let make = move || async move { Stage::ensure(&plan, &root, threads, &shared).await };
        let stage = wait_with(py, make, show)?;
        show(py)?;
        Ok(Self { stage: Arc::new(stage), drawing: None })
    }

    /// Opens the stage in `dir`, which must have this fingerprint.
    #[staticmethod]
    fn open(py: Python<'_>, dir: PathBuf, fingerprint: &str) -> PyResult<Self> {
        let stage = compute(py, || Stage::open(&dir, fingerprint))?;
        Ok(Self { stage: Arc::new(stage), drawing: None })
    }

    /// Deletes the stages below `root` that nobody has used for so many seconds, but not the one with
    /// the fingerprint `keep`; returns how many.
    #[staticmethod]
    fn forget_old(py: Python<'_>, root: PathBuf, keep: &str, unused: f64) -> PyResult<usize> {
        let unused = Duration::try_from_secs_f64(unused).unwrap_or(Duration::MAX);
        compute(py, || Stage::forget_old(&root, keep, unused))
    }

    /// Checks that a plan has a numeric column of this name.
    #[staticmethod]
    fn check_weight(plan: &PyPlan, column: &str) -> PyResult<()> {
        weight_column(&plan.plan().schema(), column).map(drop).map_err(to_py)
    }

    /// The stage with weighted epochs: each draws `draws` rows by the weights in `column`. None
    /// draws as many rows as there are.
    fn weighed(
        &self,
        py: Python<'_>,
        column: &str,
        replacement: bool,
        draws: Option<u64>,
    ) -> PyResult<Self> {
        let weigh = || Drawing::try_new(&self.stage, column, replacement, draws);
        let drawing = compute(py, weigh)?;
        Ok(Self { stage: Arc::clone(&self.stage), drawing: Some(Arc::new(drawing)) })
    }

    /// Positions of an epoch: rows drawn, or all rows.
    #[getter]
    fn num_positions(&self) -> u64 {
        self.drawing.as_ref().map_or(self.stage.num_rows(), |drawing| drawing.draws())
    }

    #[getter]
    fn num_rows(&self) -> u64 {
        self.stage.num_rows()
    }

    #[getter]
    fn path(&self) -> String {
        self.stage.path().display().to_string()
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.stage.bytes()
    }

    /// The given rows, in that order, as an Arrow record batch.
    fn gather<'py>(&self, py: Python<'py>, rows: Vec<u64>) -> PyResult<Bound<'py, PyRecordBatch>> {
        let batch = compute(py, || self.stage.gather(&rows))?;
        Bound::new(py, PyRecordBatch::new(batch))
    }

    /// The query's schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, self.stage.schema())
    }

    /// The given rows, in that order, as `converter` converts batches of this schema.
    #[expect(clippy::needless_pass_by_value, reason = "an argument that Python gives")]
    fn take<'py>(
        &self,
        py: Python<'py>,
        rows: PyBuffer<u64>,
        converter: &TensorConverter,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let rows = rows.to_vec(py)?;
        let converter = converter.converter();
        let batch = compute(py, || converter.convert(&self.stage.take(&rows)?))?;
        to_python(py, batch)
    }

    /// Copies parts of the lists of a column side by side into an array, and the number `fill` to what
    /// lies between them: of row `rows[n]` from the number `from_[n]` on, `lengths[n]` numbers to the
    /// element `to[n]`. Returns False, and does nothing, where the column has other values than lists
    /// of numbers of so many bytes, or NULLs.
    #[expect(clippy::needless_pass_by_value, reason = "arguments that Python gives")]
    #[expect(clippy::too_many_arguments, reason = "arrays that belong together in Python, too")]
    #[pyo3(signature = (column, rows, from_, to, lengths, target, fill))]
    fn gather_pieces(
        &self,
        py: Python<'_>,
        column: &str,
        rows: PyBuffer<u64>,
        from_: PyBuffer<i64>,
        to: PyBuffer<i64>,
        lengths: PyBuffer<i64>,
        target: PyBuffer<u8>,
        fill: Vec<u8>,
    ) -> PyResult<bool> {
        let pieces = Pieces::try_new(&to.to_vec(py)?, &lengths.to_vec(py)?).map_err(to_py)?;
        let (rows, from) = (rows.to_vec(py)?, from_.to_vec(py)?);
        // SAFETY: the array is one that `ReadPacks` has just made, and that nobody else has yet; it is
        // held while the slice lives.
        let target = unsafe { written(&target)? };
        compute(py, || self.stage.gather_pieces(column, &rows, &from, &pieces, target, &fill))
    }

    /// Deletes its files; whoever has it open keeps reading.
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        compute(py, || self.stage.remove())
    }
}
