//! Writing is refused: a query never changes its inputs.

use object_store::Error as StoreError;

use crate::Error;

/// The refusal of an operation.
pub(super) fn read_only(operation: &str) -> StoreError {
    let error = Error::storage(format!("cannot {operation}: tables are read-only"));
    StoreError::NotSupported { source: Box::new(error) }
}
