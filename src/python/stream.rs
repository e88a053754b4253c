//! A shard's batches, one at a time or as they are finished together.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyList;
use pyo3_arrow::PyRecordBatch;

use super::error::to_py;
use super::exits::stay_until_exit;
use super::logs::deliver;
use super::tensor::{to_loose, to_python};
use super::wait::{PATIENCE, compute};
use crate::Error;
use crate::request_limiter::Counts;
use crate::runtime::Runtimes;
use crate::session::Session;
use crate::sharding::{Holding, ShardCursor};
use crate::stream::{Delivered, Finished, Home, Next, ShardStream, StreamCounters, WorkQueue};

/// The batches of one shard and epoch; reading goes on in the background.
#[pyclass(module = "tensorquery._core", frozen)]
pub struct BatchStream {
    stream: Mutex<Option<ShardStream>>,
    ahead: Mutex<Ahead>,
    home: Home,
    /// Whether the memory of batches is copied by whom they are for.
    loose: bool,
    /// Where it takes its pieces from, if workers share them.
    feed: Option<Arc<WorkQueue>>,
    counters: Arc<StreamCounters>,
    session: Arc<Session>,
    before: IoCounts,
}

/// Requests and bytes of a session's stores, and the network's activity meanwhile.
#[derive(Clone, Copy)]
pub struct IoCounts {
    bytes: u64,
    requests: u64,
    cache_hits: u64,
    cache_bytes: u64,
    network: Counts,
}

impl IoCounts {
    /// The counts now. Those before a stream are taken before it starts: it reads at once, and
    /// local reads are over before the interpreter's lock is had again.
    pub fn of(session: &Session) -> Self {
        let io = session.counters();
        let network = Runtimes::current().map(|runtimes| runtimes.limiter().counts());
        Self {
            bytes: io.bytes(),
            requests: io.requests(),
            cache_hits: io.cache_hits(),
            cache_bytes: io.cache_bytes(),
            network: network.unwrap_or_default(),
        }
    }
}

/// Batches received from the stream and not handed out, and the places in the shard of those that
/// were.
#[derive(Default)]
struct Ahead {
    /// Not in Python yet.
    batches: VecDeque<Delivered>,
    /// Places of batches that Python has, and the consumer has not.
    places: VecDeque<Place>,
    /// Place of the batch handed out last.
    last: Option<Place>,
}

/// The rows of a batch; how far the shard is consumed with it; the pieces taken from a feed that
/// were consumed since the batch before; and whether it is the last.
struct Place {
    rows: u64,
    cursor: Cursor,
    consumed: Vec<u32>,
    last: bool,
}

/// Most are never asked for, so that they become numbers only then.
enum Cursor {
    Shard(ShardCursor),
    Holding(Holding),
}

impl Cursor {
    fn encode(&self) -> Vec<u64> {
        match self {
            Self::Shard(cursor) => cursor.encode(),
            Self::Holding(holding) => holding.encode(),
        }
    }
}

impl BatchStream {
    /// Wraps a started stream; bytes and requests count from `before` on.
    pub fn new(stream: ShardStream, session: Arc<Session>, before: IoCounts) -> Self {
        Self {
            counters: Arc::clone(stream.counters()),
            stream: Mutex::new(Some(stream)),
            ahead: Mutex::default(),
            home: Home::here(),
            loose: false,
            feed: None,
            session,
            before,
        }
    }

    /// Takes pieces from the work queue `feed`.
    #[must_use]
    pub fn fed_by(mut self, feed: Arc<WorkQueue>) -> Self {
        self.feed = Some(feed);
        self
    }

    /// Delivers batches in parts, for a consumer that copies the memory of each batch.
    #[must_use]
    pub fn loose(mut self, loose: bool) -> Self {
        self.loose = loose;
        self
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at_last<T>(&self, found: impl FnOnce(&Place) -> T) -> Option<T> {
        self.ahead().last.as_ref().map(found)
    }

    /// Waits until a batch is there; false at the end.
    fn receive(&self, py: Python<'_>) -> PyResult<bool> {
        self.home.check().map_err(to_py)?;
        while self.ahead().batches.is_empty() {
            let found = compute(py, || {
                let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
                match stream.as_mut() {
                    Some(stream) => stream.next(PATIENCE),
                    None => Err(Error::config(
                        "this iterator was closed, because a newer one was started; keep using the newer one, and make a \
                         second loader for a loop inside a loop",
                    )),
                }
            });
            match found? {
                Next::Batches(group) => self.ahead().batches.extend(group),
                Next::End => return Ok(false),
                Next::Pending => py.check_signals()?,
            }
        }
        Ok(true)
    }

    /// The first batch that was received, for Python, and where it leaves the shard.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyAny>, Place)>> {
        let Some(delivered) = self.ahead().batches.pop_front() else { return Ok(None) };
        let Delivered { batch, cursor, holding, last } = delivered;
        let rows = batch.rows() as u64;
        let batch = match batch {
            Finished::Tensors(batch) if self.loose => to_loose(py, *batch)?.into_any(),
            Finished::Tensors(batch) => to_python(py, *batch)?.into_any(),
            Finished::Arrow(batch) => Bound::new(py, PyRecordBatch::new(batch))?.into_any(),
        };
        let (cursor, consumed) = match holding {
            Some((holding, consumed)) => (Cursor::Holding(holding), consumed),
            None => (Cursor::Shard(cursor), Vec::new()),
        };
        Ok(Some((batch, Place { rows, cursor, consumed, last })))
    }

    fn hand_out(&self, place: Place) {
        self.counters.hand_out(place.rows);
        self.ahead().last = Some(place);
    }

    /// Counts the first batch of the groups that was not handed out as handed out now.
    pub fn hand_out_next(&self) -> Option<bool> {
        let place = self.ahead().places.pop_front()?;
        let last = place.last;
        self.hand_out(place);
        Some(last)
    }
}

#[pymethods]
impl BatchStream {
    /// The next batch: a tuple for tensors, a record batch for Arrow, None at the end. It counts as
    /// handed out.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if !self.receive(py)? {
            return Ok(None);
        }
        let Some((batch, place)) = self.take(py)? else { return Ok(None) };
        self.hand_out(place);
        Ok(Some(batch))
    }

    /// The next batch and the batches finished with it, None at the end. Each counts as handed out
    /// with a call of `advance`.
    fn next_group<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let received = self.receive(py);
        deliver(py)?;
        if !received? {
            return Ok(None);
        }
        let group = PyList::empty(py);
        while let Some((batch, place)) = self.take(py)? {
            group.append(batch)?;
            self.ahead().places.push_back(place);
        }
        Ok(Some(group))
    }

    /// Says that the first batch of the groups that was not handed out is; returns whether it is
    /// the shard's last.
    fn advance(&self) -> PyResult<bool> {
        self.home.check().map_err(to_py)?;
        self.hand_out_next().ok_or_else(none_left)
    }

    /// Rows of the batch that `advance` hands out next; whether it is the shard's last; and, if
    /// asked for, how far the shard is consumed with it.
    fn upcoming(&self, with_cursor: bool) -> PyResult<(u64, bool, Option<Vec<u64>>)> {
        let ahead = self.ahead();
        let upcoming = ahead
            .places
            .front()
            .map(|place| (place.rows, place.last, with_cursor.then(|| place.cursor.encode())));
        drop(ahead);
        upcoming.ok_or_else(none_left)
    }

    /// Rows of the batch handed out last.
    #[getter]
    fn rows(&self) -> u64 {
        self.at_last(|place| place.rows).unwrap_or(0)
    }

    /// How far the shard is consumed with the batch handed out last, as numbers; none before the
    /// first.
    fn cursor(&self) -> Vec<u64> {
        self.at_last(|place| place.cursor.encode()).unwrap_or_default()
    }

    /// The pieces that were consumed since the batch before the one handed out last.
    fn consumed(&self) -> Vec<u32> {
        self.at_last(|place| place.consumed.clone()).unwrap_or_default()
    }

    /// All pieces that were taken from the feed so far.
    fn taken(&self) -> Vec<u32> {
        self.feed.as_ref().map(|feed| feed.taken()).unwrap_or_default()
    }

    /// Returns true if the batch handed out last is the shard's last.
    #[getter]
    fn last(&self) -> bool {
        self.at_last(|place| place.last).unwrap_or(false)
    }

    /// The reason why the local cache was not used, told once.
    fn cache_trouble(&self) -> Option<String> {
        self.session.cache().and_then(|cache| cache.trouble())
    }

    /// Stops the background work; nothing in a forked child, where it does not go on, and where a
    /// thread that is not there may have held a lock.
    fn close(&self, py: Python<'_>) {
        if !self.home.is_here() {
            return;
        }
        stay_until_exit();
        py.detach(|| {
            let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            let batches = std::mem::take(&mut self.ahead().batches);
            drop((stream, batches));
        });
    }

    /// Rows handed out, and rows of finished batches that are ready.
    fn counted(&self) -> (u64, u64) {
        (self.counters.rows.load(Ordering::Relaxed), self.counters.buffered_rows())
    }

    /// Rows and batches handed out, splits, files, seconds waited and spent decoding and
    /// converting, bytes, requests.
    fn metrics(&self) -> HashMap<&'static str, f64> {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let (now, before) = (IoCounts::of(&self.session), self.before);
        let network = now.network.since(before.network);
        HashMap::from([
            ("rows", self.counters.rows.load(Ordering::Relaxed) as f64),
            ("batches", self.counters.batches.load(Ordering::Relaxed) as f64),
            ("splits", self.counters.splits.load(Ordering::Relaxed) as f64),
            ("files", self.counters.reads.files() as f64),
            ("buffered_rows", self.counters.buffered_rows() as f64),
            ("padded_rows", self.counters.padded_rows.load(Ordering::Relaxed) as f64),
            ("split_share", self.counters.split_share()),
            ("wait_seconds", seconds(self.counters.wait_nanos.load(Ordering::Relaxed))),
            ("decode_seconds", seconds(self.counters.reads.decode_nanos())),
            ("convert_seconds", seconds(self.counters.convert_nanos.load(Ordering::Relaxed))),
            ("bytes_read", now.bytes.saturating_sub(before.bytes) as f64),
            ("requests", now.requests.saturating_sub(before.requests) as f64),
            ("cache_hits", now.cache_hits.saturating_sub(before.cache_hits) as f64),
            ("cache_bytes", now.cache_bytes.saturating_sub(before.cache_bytes) as f64),
            ("retries", network.retries as f64),
            ("throttled", network.throttled as f64),
            ("request_wait_seconds", network.waited.as_secs_f64()),
        ])
    }
}

fn none_left() -> PyErr {
    to_py(Error::data("no batch is left to hand out; please report it"))
}
