//! Decoders of other crates, which panic on some damaged files (`unwrap` on decompression, slices
//! beyond the end).

use crate::panics::caught;
use crate::{Error, Result};

/// Runs a decoder of `format` data.
///
/// # Errors
/// Errors of `decode`; `Data` where it panics.
pub(super) fn guarded<T>(format: &str, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    caught(decode, |message| Error::data(format!("the {format} data are damaged: {message}")))
}
