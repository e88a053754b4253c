//! Panics as errors. None of them may reach Python: what it would raise is no `Exception`, so that nobody's `except Exception`
//! would see it; and one in a callback of another library would end the process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(feature = "python")]
use std::{hint, panic};

use futures::FutureExt;

use crate::{Error, Result};

/// What a panic said.
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

/// The same of a future.
pub(crate) async fn caught_later<T>(
    work: impl Future<Output = Result<T>>,
    describe: impl FnOnce(&str) -> Error,
) -> Result<T> {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    outcome.unwrap_or_else(|panic| Err(describe(message_of(panic.as_ref()))))
}

/// The error for a panic of which nothing more is known.
#[cfg(any(feature = "python", test))]
pub(crate) fn unexpected(message: &str) -> Error {
    Error::data(format!(
        "the engine failed unexpectedly ({message}); please report it with the query and the files' writer"
    ))
}

/// What a backtrace of this library takes, with some to spare: names of functions, and lines of their files.
#[cfg(feature = "python")]
const BACKTRACE_BYTES: usize = 64 << 20;

/// Has a panic print no backtrace, which `RUST_BACKTRACE` may ask for, where there is no memory for one. The standard library prints one
/// of its own for an allocation that fails, and waits forever for the lock that the panic holds meanwhile.
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
        assert_eq!(error.kind(), ErrorKind::Data);
        let wanted = format!("the engine failed unexpectedly ({message}); please report it");
        assert!(error.message().starts_with(&wanted), "{error}");
    }

    #[test]
    fn a_panic_is_an_error_that_says_what_it_said_and_to_report_it() {
        check(caught(|| panic!("no rows"), unexpected), "no rows");
        check(caught(|| panic!("{} rows", 3), unexpected), "3 rows");
        check(caught(|| std::panic::panic_any(3), unexpected), "no message");
        check(block_on(caught_later(async { panic!("later") }, unexpected)), "later");
    }

    #[test]
    fn results_and_errors_stay_what_they_are() {
        assert_eq!(caught(|| Ok(3), unexpected).ok(), Some(3));
        assert_eq!(block_on(caught_later(async { Ok(3) }, unexpected)).ok(), Some(3));
        let refused = caught::<()>(|| Err(Error::query("no")), unexpected).unwrap_err();
        assert_eq!((refused.kind(), refused.message()), (ErrorKind::Query, "no"));
    }
}
