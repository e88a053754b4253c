//! Errors of the `iceberg` crates as our own.

use std::error::Error as StdError;

use iceberg::ErrorKind as IcebergErrorKind;

use crate::{Error, ErrorKind};

/// Our own error where one travelled through the crate.
fn own_error(error: &iceberg::Error) -> Option<Error> {
    let mut source = StdError::source(error);
    while let Some(inner) = source {
        if let Some(own) = inner.downcast_ref::<Error>() {
            return Some(Error::new(own.kind(), own.to_string()));
        }
        source = inner.source();
    }
    None
}

/// Our own error where one travelled through the crate, else one of the kind that fits.
pub fn iceberg_error(error: iceberg::Error) -> Error {
    if let Some(own) = own_error(&error) {
        return own;
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

/// The error for a table or namespace that does not exist; the catalog adds those that do.
pub(super) fn not_found(namespace: &[String], name: &str) -> Error {
    Error::new(ErrorKind::TableNotFound, format!("unknown table {}", dotted(namespace, name)))
}

/// A namespace that is not there.
pub(super) fn no_namespace(namespace: &[String]) -> Error {
    Error::new(ErrorKind::TableNotFound, format!("unknown namespace {}", namespace.join(".")))
}

/// A table of which the catalog knows no metadata.
pub(super) fn no_metadata(namespace: &[String], name: &str) -> Error {
    Error::data(format!(
        "{} is no Iceberg table: the catalog knows no metadata of it",
        dotted(namespace, name)
    ))
}

/// `a.b.name`.
pub(super) fn dotted(namespace: &[String], name: &str) -> String {
    match namespace.is_empty() {
        true => name.to_owned(),
        false => format!("{}.{name}", namespace.join(".")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_error_comes_back_out_of_the_crate() {
        let own = Error::data("damaged");
        let carried = iceberg::Error::new(IcebergErrorKind::Unexpected, "read").with_source(own);
        let error = iceberg_error(carried);
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Data, "damaged".to_owned()));
    }
}
