//! The bounds of decoding, for tests: they lower them and compare them with SECURITY.md.

use pyo3::prelude::*;

use super::error::to_py;
use crate::Error;
use crate::bounds::ALL;

/// The bounds by name: number and unit.
#[pyfunction]
pub fn bounds() -> Vec<(&'static str, u64, &'static str)> {
    ALL.iter().map(|bound| (bound.name(), bound.most(), bound.unit())).collect()
}

/// Lowers a bound for this process; None gives its number back.
///
/// # Errors
/// `Config` for a name that no bound has.
#[pyfunction]
#[pyo3(signature = (name, most))]
pub fn lower_bound(name: &str, most: Option<u64>) -> PyResult<()> {
    let found = ALL.iter().find(|bound| bound.name() == name);
    let bound = found.ok_or_else(|| to_py(Error::config(format!("no bound is named {name:?}"))))?;
    bound.lower(most);
    Ok(())
}
