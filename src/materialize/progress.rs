//! How far building, or waiting for another builder, is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A process's progress with its stages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageState {
    /// Stages of the query that are there or begun.
    pub begun: u64,
    /// Stages of the query.
    pub stages: u64,
    /// Rows of the present stage so far.
    pub rows: u64,
    /// Bytes of it so far.
    pub bytes: u64,
    /// Who builds it, where that is another process.
    pub builder: Option<String>,
}

/// The progress while it changes, shared with its observers.
#[derive(Debug, Default)]
pub struct StageProgress {
    begun: AtomicU64,
    stages: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    builder: Mutex<Option<String>>,
}

impl StageProgress {
    /// So many more stages there will be.
    pub fn expect(&self, stages: usize) {
        self.stages.fetch_add(stages as u64, Ordering::Relaxed);
    }

    /// The next stage begins.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.set(None, 0, 0);
    }

    /// This process has written so much.
    pub(super) fn wrote(&self, rows: u64, bytes: u64) {
        self.set(None, rows, bytes);
    }

    /// Another process has written so much.
    pub(super) fn waits(&self, builder: String, rows: u64, bytes: u64) {
        self.set(Some(builder), rows, bytes);
    }

    fn set(&self, builder: Option<String>, rows: u64, bytes: u64) {
        *self.builder.lock().unwrap_or_else(PoisonError::into_inner) = builder;
        self.rows.store(rows, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The current state.
    pub fn state(&self) -> StageState {
        StageState {
            begun: self.begun.load(Ordering::Relaxed),
            stages: self.stages.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            builder: self.builder.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
