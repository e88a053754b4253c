//! Checkpoints: what is left of an epoch that is gone on with.

use serde_json::from_slice;
use tensorquery::sharding::{
    Builtin, EarlierRun, Layout, Left, Mixing, OrderKey, RankShare, Remainder, ShardInput,
    left_after, resume,
};

use crate::panics::answer;

/// Rows of the splits of the epoch. Some are empty, one is a single row, one is large.
const ROWS: &[u64] = &[100, 0, 1, 37, 10_000, 64, 64, 0, 5];

/// Reads runs as JSON, what is left of an epoch, or a rank's share as another process sends it, and deals the rest.
///
/// # Panics
/// Where more rows are left than there are.
pub fn resume_checkpoint(bytes: &[u8]) {
    answer(async {
        let runs = from_slice::<Vec<EarlierRun>>(bytes).ok();
        for counted in [true, false] {
            let counts = counted.then(|| ROWS.to_vec());
            let input = ShardInput { weights: ROWS.to_vec(), counts, ..ShardInput::default() };
            let after = |left: Option<Left>, run| {
                left_after(&input, left.as_ref(), run, None, key()).map(Some)
            };
            let found = match &runs {
                Some(runs) => runs.iter().try_fold(None, after),
                None => Left::decode(bytes, &input).map(Some),
            };
            let left = match found {
                Ok(left) => left,
                Err(error) if runs.is_some() => return Err(error),
                Err(_) => {
                    RankShare::decode(bytes)?.shards(&layout(2, 2, false), key())?;
                    return Ok(());
                }
            };
            let shards = match resume(&input, left.as_ref(), &layout(2, 2, counted), None, key()) {
                Ok(shards) => shards,
                // Whoever has no row for every rank goes on with one.
                Err(_) => resume(&input, left.as_ref(), &layout(1, 0, counted), None, key())?,
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
        refills: false,
        mixing: Mixing { width: 3, chunk: 8, window: Some(100) },
    }
}
