//! How far a piece is decoded ahead.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Error, Result};

/// Semaphores count in KiB, since their permits are 32-bit.
const KIB: usize = 1 << 10;

/// The decoded bytes of a piece that nobody has taken yet, in KiB.
pub struct Budget {
    left: Arc<Semaphore>,
    all: u32,
    /// As many are left when a batch is begun.
    least: u32,
}

impl Budget {
    /// `bytes` in all; `least` of them are left when a batch is begun. With none, a batch waits
    /// beside those that use them up.
    pub fn new(bytes: usize, least: usize) -> Self {
        let all = (bytes / KIB).max(1);
        let least = (least / KIB).min(all);
        Self { left: Arc::new(Semaphore::new(all)), all: all as u32, least: least as u32 }
    }

    /// Waits until a batch may be begun.
    ///
    /// # Errors
    /// Only where somebody has closed the semaphore: the piece must not seem to have ended then.
    pub async fn begin(&self) -> Result<OwnedSemaphorePermit> {
        self.take(self.least).await
    }

    /// Waits until a batch that was begun, and has so many `bytes`, may be given away; one of more
    /// than all bytes counts as these.
    ///
    /// # Errors
    /// As above.
    pub async fn grant(
        &self,
        mut begun: OwnedSemaphorePermit,
        bytes: usize,
    ) -> Result<OwnedSemaphorePermit> {
        let wanted = (bytes / KIB).clamp(1, self.all as usize) as u32;
        match self.least.checked_sub(wanted) {
            // What is too much of it is given back.
            Some(more) => drop(begun.split(more as usize)),
            None => begun.merge(self.take(wanted - self.least).await?),
        }
        Ok(begun)
    }

    async fn take(&self, kib: u32) -> Result<OwnedSemaphorePermit> {
        let taken = Arc::clone(&self.left).acquire_many_owned(kib).await;
        taken.map_err(|error| {
            Error::data(format!("nothing can be decoded ahead ({error}); please report it"))
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn begin(budget: &Budget) -> Option<OwnedSemaphorePermit> {
        budget.begin().now_or_never().map(Result::unwrap)
    }

    fn give(budget: &Budget, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let begun = begin(budget)?;
        budget.grant(begun, bytes).now_or_never().map(Result::unwrap)
    }

    #[test]
    fn a_batch_is_begun_where_enough_is_left() {
        let budget = Budget::new(256 << 10, 128 << 10);
        let large = give(&budget, 200 << 10).unwrap();
        assert!(begin(&budget).is_none());
        drop(large);
        let small = give(&budget, 100 << 10).unwrap();
        let other = give(&budget, 100 << 10).unwrap();
        assert!(begin(&budget).is_none());
        drop(small);
        assert!(begin(&budget).is_some());
        drop(other);
        assert_eq!(budget.left.available_permits(), 256);
    }

    #[test]
    fn batches_of_a_few_bytes_count_as_these() {
        let budget = Budget::new(256 << 10, 128 << 10);
        let given: Vec<_> = (0..1000).map_while(|_| give(&budget, 10)).collect();
        assert_eq!(given.len(), 129);
    }

    #[test]
    fn a_batch_of_more_bytes_waits_for_all_others() {
        for least in [0, 10 << 10] {
            let budget = Budget::new(256 << 10, least);
            let other = give(&budget, 10 << 10).unwrap();
            assert!(give(&budget, 1 << 30).is_none());
            drop(other);
            let all = give(&budget, 1 << 30).unwrap();
            assert_eq!(begin(&budget).is_some(), least == 0);
            assert!(give(&budget, 1).is_none());
            drop(all);
            assert_eq!(budget.left.available_permits(), 256);
        }
    }

    #[test]
    fn more_is_not_kept_free_than_there_is() {
        let budget = Budget::new(1, 128 << 10);
        let all = give(&budget, 1 << 30).unwrap();
        assert!(begin(&budget).is_none());
        drop(all);
        assert!(begin(&budget).is_some());
    }
}
