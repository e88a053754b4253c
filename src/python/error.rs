//! The one place where errors become Python exceptions.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

use crate::{Error, ErrorKind};

/// The exception of `tensorquery.errors` for `error`.
pub fn to_py(error: Error) -> PyErr {
    let name = match error.kind() {
        ErrorKind::Config => "ConfigError",
        ErrorKind::TableNotFound => "TableNotFoundError",
        ErrorKind::Query => "QueryError",
        ErrorKind::NotShardable => "NotShardableError",
        ErrorKind::Data => "DataError",
        ErrorKind::UnsupportedType => "UnsupportedTypeError",
        ErrorKind::Storage => "StorageError",
        ErrorKind::CheckpointMismatch => "CheckpointMismatchError",
    };
    let message = error.to_string();
    Python::attach(|py| {
        let class = py.import("tensorquery.errors").and_then(|errors| errors.getattr(name));
        match class.and_then(|class| class.call1((message.clone(),))) {
            Ok(exception) => PyErr::from_value(exception),
            Err(_) => PyImportError::new_err(message),
        }
    })
}
