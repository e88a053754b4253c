//! Waiting for the engine with the GIL released and Ctrl-C answered.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinError, block_in_place, spawn_blocking};

use super::error::to_py;
use super::exits::stay_until_exit;
use super::logs::deliver;
use crate::panics::{caught, message_of, of_engine};
use crate::runtime::Runtimes;
use crate::sharding::Stop;
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

/// Waits for a future and calls `on_tick` after each [`PATIENCE`] of waiting, on the calling
/// thread. An exception of `on_tick` drops the future.
pub fn wait_with<T: Send, F: Future<Output = Result<T>>>(
    py: Python<'_>,
    make: impl FnOnce() -> F + Send,
    on_tick: impl Fn(Python<'_>) -> PyResult<()> + Send + Sync,
) -> PyResult<T> {
    stay_until_exit();
    let runtimes = Runtimes::current().map_err(to_py)?;
    let found = py.detach(|| {
        let run = || {
            runtimes.cpu().block_on(async {
                let mut future = Box::pin(make());
                loop {
                    match select(&mut future, pin!(runtimes.sleep(PATIENCE))).await {
                        Either::Left((result, _)) => return result.map_err(to_py),
                        Either::Right(_) => attached(|py| {
                            py.check_signals()?;
                            deliver(py)?;
                            on_tick(py)
                        })?,
                    }
                }
            })
        };
        catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| Err(to_py(of_engine(message_of(panic.as_ref())))))
    });
    deliver(py)?;
    found
}

/// Runs user code within a future that [`wait`] waits for. It may itself run a query: a signal's
/// handler, a receiver of messages, a progress function.
pub fn attached<T>(work: impl FnOnce(Python<'_>) -> T) -> T {
    block_in_place(|| Python::attach(work))
}

/// Runs a future that plans on a thread of the runtime, whose stack has a known size. DataFusion
/// checks how much of the stack is left. On the process's first thread that takes a millisecond, in
/// which glibc reads the list of all mappings.
pub async fn planned<T: Send + 'static, F: Future<Output = Result<T>>>(
    make: impl FnOnce() -> F + Send + 'static,
) -> Result<T> {
    let ending = || Error::data("the process is ending");
    let runtimes = Runtimes::current()?;
    // Reading files needs threads of the same kind.
    let _permit = runtimes.planning().acquire().await;
    let (_waiting, left) = oneshot::channel::<()>();
    let runtime = Handle::current();
    let plan = move || {
        runtime.block_on(async {
            // Nobody waits any more where this future is dropped.
            match select(left, pin!(make())).await {
                Either::Left(_) => Err(ending()),
                Either::Right((result, _)) => result,
            }
        })
    };
    match spawn_blocking(plan).await.map_err(JoinError::try_into_panic) {
        Ok(result) => result,
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(stopped)) => Err(ending().with_source(stopped)),
    }
}

/// Runs `work` on the calling thread with the GIL released. A panic of it is an error, as one in
/// [`wait`] is.
pub fn compute<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    stay_until_exit();
    py.detach(|| caught(work, of_engine)).map_err(to_py)
}

/// Runs a long deal on a thread of the runtime. A signal (Ctrl-C) ends it.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(Stop) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    /// Ends the work where nobody waits for it any more.
    struct Waiting(Stop);
    impl Drop for Waiting {
        fn drop(&mut self) {
            self.0.now();
        }
    }
    wait(py, || async {
        let waiting = Waiting(Stop::default());
        let stop = waiting.0.clone();
        match spawn_blocking(move || work(stop)).await.map_err(JoinError::try_into_panic) {
            Ok(result) => result,
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(stopped)) => Err(Error::data("the process is ending").with_source(stopped)),
        }
    })
}

/// Runs work that takes no time, with the GIL held.
pub fn at_once<T>(work: impl FnOnce() -> Result<T>) -> PyResult<T> {
    caught(work, of_engine).map_err(to_py)
}
