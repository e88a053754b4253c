//! Verifying splits, with the GIL released and Ctrl-C answered.

use pyo3::prelude::*;

use super::wait::{attached, wait};
use crate::Error;
use crate::session::{SplitVerdict, SplitVerifier};

/// A part of a split: its name, its rows by metadata, its output rows, or why it cannot be read.
type PartRow = (String, Option<u64>, Option<u64>, Option<String>);

/// Executes the splits of a plan once, and says which cannot be read.
#[pyclass(name = "SplitVerifier", module = "tensorquery._core", frozen)]
pub struct PySplitVerifier {
    verifier: SplitVerifier,
}

impl PySplitVerifier {
    /// Wraps a verifier.
    pub fn new(verifier: SplitVerifier) -> Self {
        Self { verifier }
    }
}

#[pymethods]
impl PySplitVerifier {
    /// For each of these splits its output rows, and where it is bad its parts. After each split
    /// `progress` is called with the number of splits and of good rows so far; its exception ends
    /// the verification.
    #[pyo3(signature = (ids, threads, progress = None))]
    fn verify(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        threads: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<(u64, Vec<PartRow>)>> {
        let mut raised = None;
        let (raised_in, verifier) = (&mut raised, &self.verifier);
        let result = wait(py, move || async move {
            let (mut splits, mut rows) = (0_u64, 0_u64);
            let report = |verdict: &SplitVerdict| {
                splits += 1;
                rows += rows_of(verdict);
                let Some(progress) = &progress else { return Ok(()) };
                attached(|py| progress.call1(py, (splits, rows))).map(drop).map_err(|error| {
                    *raised_in = Some(error);
                    Error::config("progress raised")
                })
            };
            verifier.verify(&ids, threads, report).await
        });
        match raised {
            Some(error) => Err(error),
            None => Ok(result?.into_iter().map(row_of).collect()),
        }
    }
}

fn rows_of(verdict: &SplitVerdict) -> u64 {
    match verdict {
        SplitVerdict::Good(rows) => *rows,
        SplitVerdict::Bad(parts) => parts.iter().filter_map(|part| part.rows.as_ref().ok()).sum(),
    }
}

fn row_of(verdict: SplitVerdict) -> (u64, Vec<PartRow>) {
    let rows = rows_of(&verdict);
    let parts = match verdict {
        SplitVerdict::Good(_) => Vec::new(),
        SplitVerdict::Bad(parts) => parts,
    };
    let row = |part: crate::session::PartVerdict| {
        let (rows, error) = match part.rows {
            Ok(rows) => (Some(rows), None),
            Err(error) => (None, Some(error)),
        };
        (part.unit, part.stored_rows, rows, error)
    };
    (rows, parts.into_iter().map(row).collect())
}
