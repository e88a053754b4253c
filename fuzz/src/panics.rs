//! Tells panics of our own code from panics of other crates.

use std::backtrace::Backtrace;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::sync::{Mutex, PoisonError};

use tensorquery::Result;
use tensorquery::runtime::Runtimes;

/// Places where other crates panicked so far; each is printed once.
static PLACES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Makes a panic of our own code a crash. libFuzzer's own hook would make one of every panic, also of those of other crates
/// that the engine catches.
pub(crate) fn judge_panics() {
    set_hook(Box::new(judge));
}

fn judge(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    // Crates of the registry and the standard library have absolute paths.
    if !place.starts_with('/') {
        eprintln!("{panic}\n{}", Backtrace::force_capture());
        std::process::abort();
    }
    if PLACES.lock().unwrap_or_else(PoisonError::into_inner).insert(place) {
        eprintln!("caught: {panic}");
        if std::env::var_os("FUZZ_BACKTRACE").is_some() {
            eprintln!("{}", Backtrace::force_capture());
        }
    }
}

/// Runs what the engine does with an input. An error is an answer like any other; a panic is none.
pub(crate) fn answer(work: impl Future<Output = Result<()>>) {
    let runtimes = Runtimes::current().expect("threads can be started");
    let outcome = catch_unwind(AssertUnwindSafe(|| runtimes.cpu().block_on(work)));
    match outcome {
        Ok(Ok(())) => (),
        Ok(Err(error)) => tell(&error),
        Err(_) => {
            eprintln!("the panic above left the engine: it is no error that names the file");
            std::process::abort();
        }
    }
}

/// Prints an error where somebody looks at one input: `FUZZ_ERRORS=1`.
fn tell(error: &tensorquery::Error) {
    if std::env::var_os("FUZZ_ERRORS").is_some() {
        eprintln!("{error}");
    }
}
