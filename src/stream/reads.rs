//! Costs of reading: time spent decoding, and the number of files read.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arrow::record_batch::RecordBatch;
use futures::Stream;
use futures::stream::{self, StreamExt};

use super::source::Batches;
use crate::Result;

/// Counts of one stream, shared by the tasks that decode for it.
#[derive(Debug, Default)]
pub struct Reads {
    decode_nanos: AtomicU64,
    /// By driving scan, the numbers of files.
    files: Mutex<HashSet<(u32, u32)>>,
}

impl Reads {
    /// Time that threads have spent reading, decoding and computing rows, all of them together.
    /// Time in which nothing could be done, since bytes were on their way, is not in it.
    pub fn decode_nanos(&self) -> u64 {
        self.decode_nanos.load(Ordering::Relaxed)
    }

    /// Files that were read at least in part.
    pub fn files(&self) -> usize {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// A split of this file is read.
    pub(super) fn opened(&self, file: (u32, u32)) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(file);
    }

    /// `rows`, whose decoding is timed from now on.
    pub(super) fn timed(
        self: &Arc<Self>,
        mut rows: Batches,
    ) -> impl Stream<Item = Result<RecordBatch>> + Send + Unpin + use<> {
        let reads = Arc::clone(self);
        stream::poll_fn(move |context| {
            let start = Instant::now();
            let polled = rows.poll_next_unpin(context);
            let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            reads.decode_nanos.fetch_add(nanos, Ordering::Relaxed);
            polled
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::stream::{self, StreamExt};

    use super::Reads;

    #[tokio::test]
    async fn time_in_which_nothing_can_be_done_is_not_decoding() {
        let reads = Arc::new(Reads::default());
        let slow = stream::once(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            std::thread::sleep(Duration::from_millis(20));
            Err(crate::Error::data("the end"))
        });
        assert!(reads.timed(slow.boxed()).next().await.unwrap().is_err());
        let spent = Duration::from_nanos(reads.decode_nanos());
        assert!(
            spent >= Duration::from_millis(20) && spent < Duration::from_millis(200),
            "{spent:?}"
        );
    }

    #[test]
    fn a_file_counts_once() {
        let reads = Reads::default();
        for file in [(0, 1), (0, 1), (1, 1), (0, 2)] {
            reads.opened(file);
        }
        assert_eq!(reads.files(), 3);
    }
}
