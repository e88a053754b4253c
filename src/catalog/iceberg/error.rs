//! Errors of the `iceberg` crates as our own.

use std::error::Error as StdError;

use iceberg::ErrorKind as IcebergErrorKind;

use crate::{Error, ErrorKind};

/// Our own error where one travelled through the crate, else one of the kind that fits.
pub fn iceberg_error(error: iceberg::Error) -> Error {
    let mut source = StdError::source(&error);
    while let Some(inner) = source {
        if let Some(own) = inner.downcast_ref::<Error>() {
            return Error::new(own.kind(), own.to_string());
        }
        source = inner.source();
    }
    let kind = match error.kind() {
        IcebergErrorKind::TableNotFound | IcebergErrorKind::NamespaceNotFound => {
            ErrorKind::TableNotFound
        }
        IcebergErrorKind::DataInvalid => ErrorKind::Data,
        IcebergErrorKind::FeatureUnsupported => ErrorKind::Query,
        _ => ErrorKind::Storage,
    };
    let message = error.message().to_owned();
    match StdError::source(&error) {
        Some(source) => Error::new(kind, format!("{message}: {source}")),
        None => Error::new(kind, message),
    }
}

/// A table or namespace that is not there; the catalog adds what is.
pub(super) fn not_found(namespace: &[String], name: &str) -> Error {
    Error::new(ErrorKind::TableNotFound, format!("unknown table {}", dotted(namespace, name)))
}

/// A namespace that is not there.
pub(super) fn no_namespace(namespace: &[String]) -> Error {
    Error::new(ErrorKind::TableNotFound, format!("unknown namespace {}", namespace.join(".")))
}

/// `a.b.name`.
pub(super) fn dotted(namespace: &[String], name: &str) -> String {
    match namespace.is_empty() {
        true => name.to_owned(),
        false => format!("{}.{name}", namespace.join(".")),
    }
}
