//! The one place that turns Rust errors into Python exceptions.

use pyo3::prelude::*;

use crate::{Error, ErrorKind};

/// The exception of `tensorquery.errors` for an error.
pub fn to_py(error: Error) -> PyErr {
    Python::attach(|py| {
        let class = match error.kind() {
            ErrorKind::Config => "ConfigError",
            ErrorKind::TableNotFound => "TableNotFoundError",
            ErrorKind::Query => "QueryError",
            ErrorKind::NotShardable => "NotShardableError",
            ErrorKind::Data => "DataError",
            ErrorKind::UnsupportedType => "UnsupportedTypeError",
            ErrorKind::Storage => "StorageError",
            ErrorKind::CheckpointMismatch => "CheckpointMismatchError",
        };
        let raised = py
            .import("tensorquery.errors")
            .and_then(|module| module.getattr(class))
            .and_then(|class| class.call1((error.to_string(),)));
        match raised {
            Ok(exception) => PyErr::from_value(exception),
            Err(import_failed) => import_failed,
        }
    })
}
