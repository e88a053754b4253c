//! The topology: ranks, and the workers of each.

use crate::{Error, Result};

/// This rank among all ranks, and the workers that each of them runs. Only valid values exist.
///
/// The shard of (rank, worker) has the number `rank * workers + worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardSpec {
    rank: usize,
    world_size: usize,
    num_workers: usize,
}

impl ShardSpec {
    /// Rank `rank` of `world_size`, with `num_workers` worker processes on every rank; 0 means that
    /// the training process itself is the one worker.
    pub fn try_new(rank: usize, world_size: usize, num_workers: usize) -> Result<Self> {
        if world_size == 0 {
            return Err(Error::config(
                "world_size 0 must be at least 1; a single process is rank=0, world_size=1",
            ));
        }
        if rank >= world_size {
            return Err(Error::config(format!(
                "rank {rank} must be in 0..{world_size} (world_size is {world_size})"
            )));
        }
        // Shards are numbered by u32; the bound also keeps `rank * workers` from wrapping around.
        let shards = world_size.checked_mul(num_workers.max(1));
        if shards.is_none_or(|shards| u32::try_from(shards).is_err()) {
            return Err(Error::config(format!(
                "world_size {world_size} times num_workers {num_workers} must be at most {}; lower \
                 num_workers",
                u32::MAX
            )));
        }
        Ok(Self { rank, world_size, num_workers })
    }

    /// This rank, in `0..world_size`.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks, at least 1.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Worker processes on each rank, as asked for; 0 means none.
    pub fn num_workers(&self) -> usize {
        self.num_workers
    }

    /// Shards on each rank: one per worker process, or one for the training process itself.
    pub fn shards_per_rank(&self) -> usize {
        self.num_workers.max(1)
    }

    /// Shards on all ranks.
    pub fn num_shards(&self) -> usize {
        self.world_size * self.shards_per_rank()
    }
}
