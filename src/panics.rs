//! Panics as errors. None of them may reach Python: it would raise no `Exception`, so that nobody's
//! `except Exception` would see it; and one in a callback of another library would end the process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(feature = "python")]
use std::{hint, panic};

use futures::FutureExt;

use crate::{Error, Result};

/// The message of a panic.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The result of `work`; a panic becomes the error that `describe` makes of its message.
pub(crate) fn caught<T>(
    work: impl FnOnce() -> Result<T>,
    describe: impl FnOnce(&str) -> Error,
) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(describe(message_of(panic.as_ref()))))
}

/// Catches a panic of a future.
pub(crate) async fn caught_later<T>(
    work: impl Future<Output = Result<T>>,
    describe: impl FnOnce(&str) -> Error,
) -> Result<T> {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    outcome.unwrap_or_else(|panic| Err(describe(message_of(panic.as_ref()))))
}

/// The error for a panic outside of file decoders: no data are to blame for it.
pub(crate) fn of_engine(message: &str) -> Error {
    Error::query(format!(
        "the engine failed on this query ({message}): that is an internal error, not one of the files; write the query in \
         another way, and please report it with the SQL"
    ))
}

/// The result of evaluating an expression within a scan; a panic is an error of the engine, which
/// the scan would blame on its file.
pub(crate) fn evaluated<T>(
    work: impl FnOnce() -> datafusion::error::Result<T>,
) -> datafusion::error::Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(of_engine(message_of(panic.as_ref())).into()))
}

/// Memory that a backtrace of this library takes, with some to spare: names of functions, and lines
/// of their files.
#[cfg(feature = "python")]
const BACKTRACE_BYTES: usize = 64 << 20;

/// Has a panic print no backtrace, which `RUST_BACKTRACE` may ask for, where there is no memory for
/// one. The standard library prints one of its own for an allocation that fails, and waits forever
/// for the lock that the panic holds meanwhile.
#[cfg(feature = "python")]
pub(crate) fn spare_backtraces() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |told| {
        let mut room = Vec::<u8>::new();
        let has_room = room.try_reserve_exact(BACKTRACE_BYTES).is_ok();
        drop(hint::black_box(room));
        if has_room {
            usual(told);
        } else {
            eprintln!("{told}");
        }
    }));
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;
    use crate::ErrorKind;

    fn check(found: Result<i32>, message: &str) {
        let error = found.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Query);
        let wanted =
            format!("the engine failed on this query ({message}): that is an internal error");
        assert!(error.message().starts_with(&wanted), "{error}");
    }

    #[test]
    fn a_panic_is_an_error_that_says_what_it_said_and_to_report_it() {
        check(caught(|| panic!("no rows"), of_engine), "no rows");
        check(caught(|| panic!("{} rows", 3), of_engine), "3 rows");
        check(caught(|| std::panic::panic_any(3), of_engine), "no message");
        check(block_on(caught_later(async { panic!("later") }, of_engine)), "later");
    }

    #[test]
    fn results_and_errors_stay_what_they_are() {
        assert_eq!(caught(|| Ok(3), of_engine).ok(), Some(3));
        assert_eq!(block_on(caught_later(async { Ok(3) }, of_engine)).ok(), Some(3));
        let refused = caught::<()>(|| Err(Error::query("no")), of_engine).unwrap_err();
        assert_eq!((refused.kind(), refused.message()), (ErrorKind::Query, "no"));
    }
}
