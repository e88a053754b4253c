//! The one place where errors become Python exceptions, and exceptions of the user's code become
//! errors.

use std::error::Error as StdError;
use std::fmt;

use pyo3::exceptions::{PyException, PyImportError};
use pyo3::prelude::*;
use pyo3::types::PyTracebackMethods;

use crate::error::shortened;
use crate::storage::scrub;
use crate::{Error, ErrorKind};

/// The exception of `tensorquery.errors` for `error`.
pub fn to_py(error: Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::Config => "ConfigError",
        ErrorKind::TableNotFound => "TableNotFoundError",
        ErrorKind::Query => "QueryError",
        ErrorKind::NotShardable => "NotShardableError",
        ErrorKind::Data | ErrorKind::Memory => "DataError",
        ErrorKind::UnsupportedType => "UnsupportedTypeError",
        ErrorKind::Storage => "StorageError",
        ErrorKind::CheckpointMismatch => "CheckpointMismatchError",
    };
    Python::attach(|py| {
        let cause = raised_by(py, &error);
        // What is not installed is told as Python tells it; Ctrl-C and the like are no errors of
        // anybody.
        if let Some(cause) = &cause {
            let is_missing = cause.is_instance_of::<PyImportError>(py) && !error.is_of_user_code();
            if is_missing || !cause.is_instance_of::<PyException>(py) {
                return cause.clone_ref(py);
            }
        }
        let raised = py
            .import("tensorquery.errors")
            .and_then(|module| module.getattr(class))
            .and_then(|class| class.call1((shortened(scrub(&error.to_string())),)));
        match raised {
            Ok(exception) => {
                let exception = PyErr::from_value(exception);
                exception.set_cause(py, cause);
                exception
            }
            Err(import_failed) => import_failed,
        }
    })
}

/// An exception of the user's code, as the source of an [`Error`].
#[derive(Debug)]
pub struct Raised {
    exception: PyErr,
    text: String,
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Raised {}

/// The error for an exception that the user's code raised: one of this package's own keeps its kind
/// and text, any other one is a `Storage` error with `message`, where it was raised, and itself as
/// the cause.
pub fn from_py(py: Python<'_>, exception: PyErr, message: impl fmt::Display) -> Error {
    let value = exception.value(py);
    if let Some(kind) = own_kind(py, value) {
        return Error::new(kind, value.to_string());
    }
    raised(py, exception, ErrorKind::Storage, message)
}

/// The error of this kind for any exception that the user's code raised: `message`, where it was
/// raised, and itself as the cause.
pub fn raised(
    py: Python<'_>,
    exception: PyErr,
    kind: ErrorKind,
    message: impl fmt::Display,
) -> Error {
    let value = exception.value(py);
    let name = value.get_type().name().map_or_else(|_| "an exception".into(), |n| n.to_string());
    let at = exception.traceback(py).and_then(|traceback| traceback.format().ok());
    let frame = at.as_deref().and_then(|text| text.lines().rfind(|line| line.contains("File \"")));
    let place = frame.map(|line| format!(" ({})", line.trim())).unwrap_or_default();
    let text = format!("{name}: {value}{place}");
    Error::new(kind, message.to_string()).with_source(Raised { exception, text })
}

fn own_kind(py: Python<'_>, value: &Bound<'_, PyAny>) -> Option<ErrorKind> {
    let errors = py.import("tensorquery.errors").ok()?;
    let is = |class: &str| {
        errors.getattr(class).and_then(|class| value.is_instance(&class)).unwrap_or(false)
    };
    [
        ("ConfigError", ErrorKind::Config),
        ("TableNotFoundError", ErrorKind::TableNotFound),
        ("DataError", ErrorKind::Data),
        ("StorageError", ErrorKind::Storage),
    ]
    .into_iter()
    .find_map(|(class, kind)| is(class).then_some(kind))
}

/// The exception of the user's code underneath an error.
fn raised_by(py: Python<'_>, error: &Error) -> Option<PyErr> {
    let mut next = error.source();
    while let Some(source) = next {
        if let Some(raised) = source.downcast_ref::<Raised>() {
            return Some(raised.exception.clone_ref(py));
        }
        next = source.source();
    }
    None
}
