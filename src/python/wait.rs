//! Waiting for the runtime with the GIL released and Ctrl-C answered.

use std::future::Future;
use std::time::Duration;

use pyo3::prelude::*;

use super::error::to_py;
use crate::session::Runtimes;
use crate::{Error, Result};

/// How often a waiting call looks for signals.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// Runs a future on the decoding threads and waits for it. A signal (Ctrl-C) cancels it.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> PyResult<T> {
    let runtimes = Runtimes::current().map_err(to_py)?;
    let mut task = runtimes.cpu().spawn(future);
    loop {
        let waited = py.detach(|| {
            runtimes.cpu().block_on(async { tokio::time::timeout(PATIENCE, &mut task).await })
        });
        match waited {
            Ok(Ok(result)) => return result.map_err(to_py),
            Ok(Err(panic)) => {
                return Err(to_py(Error::data(format!(
                    "the engine failed unexpectedly ({panic}); please report it with the query"
                ))));
            }
            Err(_elapsed) => {
                if let Err(interrupt) = py.check_signals() {
                    task.abort();
                    return Err(interrupt);
                }
            }
        }
    }
}
