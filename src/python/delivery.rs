//! The hand-over of batches to the training loop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyStopIteration;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::error::to_py;
use super::exits::{stay_if_ended, stay_until_exit};
use super::stream::BatchStream;
use crate::Error;

/// How often a thread that waits for its turn looks.
const TURN_PATIENCE: Duration = Duration::from_millis(1);

/// The base of iterators over batches. It counts a batch as received in the moment in which the
/// loop gets it.
///
/// Python runs the handlers of signals between two steps of Python code, and a handler may raise.
/// Code in Python that counts a batch and returns it can therefore be interrupted after the count.
/// So the method `made` of a subclass, in Python, only says what counting would change; here it is
/// changed, and the batch is returned, without a step of Python code after or between.
///
/// `made` returns the batch, whether it is the last, the changes, and the stream that hands it out,
/// or None. A change is an object, the name of an attribute, and its new value; or a list, an
/// index, and the new item.
#[pyclass(module = "tensorquery._core", subclass, frozen)]
pub struct Delivery {
    /// Whether some thread is asking for a batch.
    is_busy: AtomicBool,
    /// The exception with which it ended, until somebody asks for a further batch.
    ended_by: Mutex<Option<String>>,
}

/// Lets the next thread in.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Delivery {
    /// Lets one thread in at a time.
    fn enter<'a>(this: &'a Bound<'_, Self>) -> PyResult<Turn<'a>> {
        let (py, is_busy) = (this.py(), &this.get().is_busy);
        while is_busy.swap(true, Ordering::Acquire) {
            if this.getattr(intern!(py, "takes_turns"))?.is_truthy()? {
                py.detach(|| thread::sleep(TURN_PATIENCE));
                py.check_signals()?;
                continue;
            }
            return Err(to_py(Error::config(
                "this iterator is asked for a batch while it makes another, by a second thread or by a signal handler; \
                 let one thread at a time call next(), for example under a lock, or make a loader for each thread",
            )));
        }
        Ok(Turn(is_busy))
    }

    /// An iterator that failed has no further batch; that is no end of the epoch.
    fn check(&self) -> PyResult<()> {
        let ended_by = self.ended_by.lock().unwrap_or_else(PoisonError::into_inner).take();
        ended_by.map_or(Ok(()), |name| {
            Err(to_py(Error::config(format!(
                "this iterator was ended by {name}, and the batch that it was making was not received; to go on with that \
                 batch, load the state that state_dict() returns now, and iterate again"
            ))))
        })
    }
}

#[pymethods]
impl Delivery {
    #[new]
    #[pyo3(signature = (*_arguments, **_others))]
    fn new(_arguments: &Bound<'_, PyTuple>, _others: Option<&Bound<'_, PyDict>>) -> Self {
        Self { is_busy: AtomicBool::new(false), ended_by: Mutex::default() }
    }

    /// Whether a second thread waits for its turn; else it gets an error.
    #[classattr]
    #[pyo3(name = "takes_turns")]
    const TAKES_TURNS: bool = false;

    /// Forgets how it ended: it begins anew.
    fn begin_anew(&self) {
        *self.ended_by.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(this: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        stay_until_exit();
        let py = this.py();
        let _turn = Self::enter(this)?;
        this.get().check()?;
        match this.call_method0(intern!(py, "made")) {
            Ok(made) => count(&made).map(Some),
            Err(error) => {
                stay_if_ended(py);
                let is_over = error.is_instance_of::<PyStopIteration>(py);
                if !is_over && !is_refusal(&error, py)? {
                    let name = error.get_type(py).name()?.to_string();
                    *this.get().ended_by.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(name);
                }
                // It may have a better error.
                this.call_method1(intern!(py, "failed"), (error.value(py),))?;
                if is_over { Ok(None) } else { Err(error) }
            }
        }
    }
}

/// Returns true if an iterator that is closed, or of another process, says so.
fn is_refusal(error: &PyErr, py: Python<'_>) -> PyResult<bool> {
    let class = py.import("tensorquery.errors")?.getattr("ConfigError")?;
    Ok(error.matches(py, class)?)
}

/// Makes the changes, and returns the batch.
fn count<'py>(made: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let made = made.cast::<PyTuple>()?;
    let (batch, changes, stream) = (made.get_item(0)?, made.get_item(2)?, made.get_item(3)?);
    let changes = changes.cast_into::<PyTuple>()?;
    if !stream.is_none() {
        stream.cast::<BatchStream>()?.get().hand_out_next();
    }
    for change in changes.iter() {
        let (target, key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) =
            change.extract()?;
        match target.cast::<PyList>() {
            Ok(items) => items.set_item(key.extract()?, value)?,
            Err(_) => target.setattr(key.cast::<PyString>()?, value)?,
        }
    }
    Ok(batch)
}
