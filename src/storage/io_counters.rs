//! Counts of bytes and requests.

use std::sync::atomic::{AtomicU64, Ordering};

/// Requests to a store and bytes received, counted for all its users together.
#[derive(Debug, Default)]
pub struct IoCounters {
    requests: AtomicU64,
    bytes: AtomicU64,
    cache_hits: AtomicU64,
    cache_bytes: AtomicU64,
}

impl IoCounters {
    /// Reads and listings. A listing is one, however many pages the store makes of it; so is each
    /// call of `get_ranges` on a local file.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes of content that arrived, including gaps read to join two ranges.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Ranges, or pieces of streams, that came from the local cache, in whole or in part.
    pub fn cache_hits(&self) -> u64 {
        self.cache_hits.load(Ordering::Relaxed)
    }

    /// Bytes that came from the local cache; they are not among [`bytes`](Self::bytes).
    pub fn cache_bytes(&self) -> u64 {
        self.cache_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn count_hit(&self, bytes: u64) {
        self.cache_hits.fetch_add(1, Ordering::Relaxed);
        self.cache_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
