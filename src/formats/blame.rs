//! Whose fault an error is: the content of a file, which can be left out, or anything else, which
//! cannot.

use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use datafusion::error::Result as DfResult;
use futures::{Stream, StreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::panics::{caught_later, message_of, of_engine};
use crate::{Error, Result};

/// The error itself where the content of a file is to blame: a `Data` error, while the store still
/// has the file as it was pinned.
///
/// # Errors
/// The error where it is of another kind, of a function of the user's, or of a file that is not the
/// pinned one; that the file changed, vanished or cannot be reached.
pub async fn blame_content(
    store: &Arc<dyn ObjectStore>,
    location: &Path,
    error: Error,
) -> Result<Error> {
    if !error.may_be_of_content() {
        return Err(error);
    }
    store.head(location).await?;
    Ok(error)
}

/// Runs `work` and turns a decoder's panic, caused by data that it trusted, into a data error.
///
/// # Errors
/// The error of `work`; `Data` for a panic.
pub async fn caught<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    caught_later(work, gave_up).await
}

/// Runs work whose own errors name `file`; the error of a panic names it too.
///
/// # Errors
/// As [`caught`].
pub(super) async fn caught_of<T>(
    file: impl Display,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    caught_later(work, |message| gave_up(message).with_context("file", file)).await
}

/// Passes the rows of a file on and turns a panic into a data error, after which there are no more
/// rows.
pub fn caught_rows<T>(rows: impl Stream<Item = DfResult<T>>) -> impl Stream<Item = DfResult<T>> {
    caught_by(rows, gave_up)
}

/// Passes a plan's rows on. Its scans have caught the panics of their decoders, so any other panic
/// is the engine's.
pub fn caught_answer<T>(rows: impl Stream<Item = DfResult<T>>) -> impl Stream<Item = DfResult<T>> {
    caught_by(rows, of_engine)
}

fn caught_by<T>(
    rows: impl Stream<Item = DfResult<T>>,
    describe: fn(&str) -> Error,
) -> impl Stream<Item = DfResult<T>> {
    AssertUnwindSafe(rows).catch_unwind().map(move |found| {
        found.unwrap_or_else(|panic| Err(describe(message_of(panic.as_ref())).into()))
    })
}

/// The error that stands for a panic of a decoder.
fn gave_up(message: &str) -> Error {
    Error::data(format!(
        "the engine ended abnormally ({message}), as damaged data can make it; if other programs read the file, please \
         report it with the file's writer"
    ))
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_panic_of_a_decoder_is_an_error_of_the_data() {
        let error = block_on(caught::<()>(async { panic!("index {} is out of bounds", 7) }));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.message().contains("index 7 is out of bounds"), "{error}");
        assert_eq!(block_on(caught(async { Ok(3) })).unwrap(), 3);
    }

    #[test]
    fn a_panic_above_the_scans_is_an_error_of_the_engine() {
        let rows = futures::stream::iter(0..2).map(|row| match row {
            0 => Ok(row),
            _ => panic!("row {row}"),
        });
        let found: Vec<_> = block_on(caught_answer(rows).collect());
        let [Ok(0), Err(error)] = found.as_slice() else { panic!("{found:?}") };
        assert!(error.to_string().contains("an internal error, not one of the files"), "{error}");
    }

    #[test]
    fn rows_before_a_panic_come_and_none_after_it() {
        let rows = futures::stream::iter(0..5).map(|row| match row {
            0..3 => Ok(row),
            _ => panic!("row {row}"),
        });
        let found: Vec<_> = block_on(caught_rows(rows).collect());
        let [Ok(0), Ok(1), Ok(2), Err(error)] = found.as_slice() else { panic!("{found:?}") };
        assert!(error.to_string().contains("row 3"), "{error}");
    }
}
