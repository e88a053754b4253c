//! The one place where errors become Python exceptions.

use pyo3::prelude::*;

use crate::{Error, ErrorKind};

/// The exception of `tensorquery.errors` for `error`.
pub fn to_py(error: Error) -> PyErr {
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
    Python::attach(|py| {
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
