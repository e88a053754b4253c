//! Waiting for the engine with the GIL released and Ctrl-C answered.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use pyo3::prelude::*;

use super::error::to_py;
use crate::runtime::Runtimes;
use crate::{Error, Result};

/// How often a waiting call looks for signals.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// Runs the future that `make` returns and waits for it. A signal (Ctrl-C) drops it.
pub fn wait<T: Send, F: Future<Output = Result<T>>>(
    py: Python<'_>,
    make: impl FnOnce() -> F + Send,
) -> PyResult<T> {
    wait_with(py, make, |_| Ok(()))
}

/// The same, and calls `on_tick` after each [`PATIENCE`] of waiting, on the calling thread. Its exception drops the
/// future.
pub fn wait_with<T: Send, F: Future<Output = Result<T>>>(
    py: Python<'_>,
    make: impl FnOnce() -> F + Send,
    on_tick: impl Fn(Python<'_>) -> PyResult<()> + Send + Sync,
) -> PyResult<T> {
    let runtimes = Runtimes::current().map_err(to_py)?;
    py.detach(|| {
        let run = || {
            runtimes.cpu().block_on(async {
                let mut future = Box::pin(make());
                loop {
                    // The clock of the CPU runtime stands still while all its threads compute.
                    let tick = {
                        let _io = runtimes.io().enter();
                        tokio::time::sleep(PATIENCE)
                    };
                    match select(&mut future, pin!(tick)).await {
                        Either::Left((result, _)) => return result.map_err(to_py),
                        Either::Right(_) => Python::attach(|py| {
                            py.check_signals()?;
                            on_tick(py)
                        })?,
                    }
                }
            })
        };
        catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| Err(to_py(panicked(panic.as_ref()))))
    })
}

/// A panic of the engine as an error that says what to report.
fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    Error::data(format!(
        "the engine failed unexpectedly ({message}); please report it with the query and the files' \
         writer"
    ))
}
