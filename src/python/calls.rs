//! Calls of the user's functions from the engine's threads, which must be over when the interpreter
//! ends: a thread that comes back into Python after that would end the process badly.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::exits::{begin_ending, is_ending, stay_until_exit};
use crate::{Error, Result};

/// Threads that are in Python, or about to be.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

static WATCH_FORKS: Once = Once::new();

/// Counts one call while it lives.
struct Call;

impl Call {
    fn begin() -> Result<Self> {
        WATCH_FORKS.call_once(|| {
            // SAFETY: `forget_inherited` only stores to an atomic, which is async-signal-safe.
            unsafe { libc::pthread_atfork(None, None, Some(forget_inherited)) };
        });
        // Counted before it looks, so that who closes either sees this call, or is seen by it.
        RUNNING.fetch_add(1, Ordering::SeqCst);
        let call = Self;
        match is_ending() {
            true => Err(ending()),
            false => Ok(call),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // A call in which the user's code forked is counted no more in the child.
        let less = |running: usize| running.checked_sub(1);
        let _ = RUNNING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

/// Runs `work` with the GIL, on a thread of the engine or on the caller's.
///
/// # Errors
/// `Data` where the interpreter is ending; that of `work`.
pub fn call<T>(work: impl FnOnce(Python<'_>) -> Result<T>) -> Result<T> {
    let _call = Call::begin()?;
    stay_until_exit();
    // Other tasks of a runtime's thread go on elsewhere meanwhile, and the user's code may itself
    // run a query.
    tokio::task::block_in_place(|| Python::try_attach(work)).unwrap_or_else(|| Err(ending()))
}

fn ending() -> Error {
    Error::data("the Python interpreter is ending")
}

/// Refuses calls from now on, and waits so many seconds for those under way.
#[pyfunction]
pub fn end_calls(py: Python<'_>, patience: f64) {
    begin_ending();
    py.detach(|| {
        let until = Instant::now() + Duration::from_secs_f64(patience);
        while RUNNING.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// The threads that were in a call are not there in a child.
extern "C" fn forget_inherited() {
    RUNNING.store(0, Ordering::SeqCst);
}
