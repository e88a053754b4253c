//! Decoders of other crates, which panic on some damaged files (`unwrap` on decompression, slices beyond the end).

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// Runs a decoder of `format` data.
///
/// # Errors
/// Those of `decode`; `Data` where it panics.
pub(super) fn guarded<T>(format: &str, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("the decoder gave up");
        Err(Error::data(format!("the {format} data are damaged: {what}")))
    })
}
