//! Checkpoints: the runs of an epoch that is gone on with.

use serde_json::from_slice;
use tensorquery::sharding::{
    Builtin, Layout, Mixing, OrderKey, RankShare, Remainder, Run, ShardInput, resume,
};

use crate::panics::answer;

/// Rows of the splits of the epoch. Some are empty, one is a single row, one is large.
const ROWS: &[u64] = &[100, 0, 1, 37, 10_000, 64, 64, 0, 5];

/// Reads runs as JSON, or a rank's share as another process sends it, and deals what they left.
///
/// # Panics
/// Where more rows are left than there are.
pub fn resume_checkpoint(bytes: &[u8]) {
    answer(async {
        let Ok(runs) = from_slice::<Vec<Run>>(bytes) else {
            let share = RankShare::decode(bytes)?;
            share.shards(&layout(2, 2, false), key())?;
            return Ok(());
        };
        for counted in [true, false] {
            let counts = counted.then(|| ROWS.to_vec());
            let input = ShardInput { weights: ROWS.to_vec(), counts, ..ShardInput::default() };
            let shards = match resume(&input, &runs, &layout(2, 2, counted), None, key()) {
                Ok(shards) => shards,
                // Whoever has no row for every rank goes on with one.
                Err(_) => resume(&input, &runs, &layout(1, 0, counted), None, key())?,
            };
            if counted {
                let left: u64 = shards.iter().filter_map(|shard| shard.rows()).sum();
                assert!(left <= ROWS.iter().sum(), "{left} rows are left");
            }
        }
        Ok(())
    });
}

fn key() -> OrderKey<'static> {
    OrderKey { seed: 42, epoch: 1, fingerprint: b"fuzz" }
}

fn layout(world_size: u32, num_workers: u32, counted: bool) -> Layout {
    Layout {
        world_size,
        num_workers,
        batch_size: 16,
        remainder: if counted { Remainder::Even } else { Remainder::Uneven },
        dynamic: false,
        counted,
        partitions: None,
        strategy: Some(Builtin::Lpt),
        shuffle: true,
        permuted: None,
        mixing: Mixing { width: 3, chunk: 8, window: Some(100) },
    }
}
