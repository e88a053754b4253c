//! Forwards log records of the crates below, from `log` (and `tracing`, which passes on to it), to
//! Python's `logging`.
//!
//! Threads of the engine never wait for Python: they leave a record in a short queue, and whoever
//! calls the engine next, or waits for it, hands the queue over. Records that nobody wants are not
//! even formatted: the level is that of Python's logger, asked for when a session or an iteration
//! begins.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use log::{LevelFilter, Log, Metadata, Record};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::pool::briefly;
use crate::storage::scrub;

/// Crates that say something about queries, files and stores. Those below them speak of connections
/// and headers, where keys are.
const CRATES: [&str; 6] =
    ["datafusion", "iceberg", "object_store", "orc_rust", "parquet", "tensorquery"];

/// Records that wait at most; the later ones are counted.
const MOST_WAITING: usize = 1024;

static WAITING: Mutex<VecDeque<Said>> = Mutex::new(VecDeque::new());
static IS_ANY: AtomicBool = AtomicBool::new(false);
static LOST: AtomicU64 = AtomicU64::new(0);

/// A record as Python gets it: level in its numbers, target, message, seconds since 1970, name of
/// the thread.
type Said = (u8, String, String, f64, String);

struct Forward;

static FORWARD: Forward = Forward;

/// Receives log records of crates from now on; none, until [`set_log_level`] asks for more.
pub fn listen() {
    // An extension that is initialised again, in another interpreter, has done so before.
    let _ = log::set_logger(&FORWARD);
}

/// Asks for records from this level of Python's `logging` on.
#[pyfunction]
pub fn set_log_level(level: u32) {
    // DEBUG is 10, and each level above 10 more. TRACE, which Python has not, names every request's
    // bytes.
    log::set_max_level(match level {
        0..=10 => LevelFilter::Debug,
        11..=20 => LevelFilter::Info,
        21..=30 => LevelFilter::Warn,
        31..=40 => LevelFilter::Error,
        _ => LevelFilter::Off,
    });
}

impl Log for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let name = target.split("::").next().unwrap_or(target);
        metadata.level() <= log::max_level()
            && CRATES.iter().any(|known| {
                name.strip_prefix(known)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
            })
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            log::Level::Error => 40,
            log::Level::Warn => 30,
            log::Level::Info => 20,
            log::Level::Debug | log::Level::Trace => 10,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or("engine").to_owned();
        let message = scrub(&record.args().to_string());
        let said = (level, record.target().to_owned(), message, now.as_secs_f64(), thread);
        let is_kept = briefly(&WAITING, |waiting| {
            let fits = waiting.len() < MOST_WAITING;
            if fits {
                waiting.push_back(said);
            }
            fits
        });
        if is_kept == Some(true) {
            IS_ANY.store(true, Ordering::Release);
        } else {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// Hands over waiting records; costs nothing if there are none.
///
/// # Errors
/// An exception that ends a program, such as Ctrl-C, if it arrives meanwhile.
pub fn deliver(py: Python<'_>) -> PyResult<()> {
    if !IS_ANY.swap(false, Ordering::Acquire) {
        return Ok(());
    }
    let said: Vec<Said> =
        briefly(&WAITING, |waiting| waiting.drain(..).collect()).unwrap_or_default();
    let lost = LOST.swap(0, Ordering::Relaxed);
    let handed = py
        .import("tensorquery._util.logs")
        .and_then(|module| module.call_method1("hand_over", (said, lost)));
    match handed {
        // A message must not end what it speaks of.
        Err(error) if error.is_instance_of::<PyException>(py) => {
            error.write_unraisable(py, None);
            Ok(())
        }
        handed => handed.map(drop),
    }
}
