//! How much of a plan is mixed at a time: the rows of a window, the splits that are open, and their
//! turns.

use super::cursor::Mixing;

// A column of 65,536 rows fits the processor's caches, where gathering at random is cheap, and more
// rows do not mix better where many splits are open. With few splits a turn is a long run of
// neighbours, and more rows do. The next window is filled while one is drained.
const WINDOW_BYTES: u64 = 64 << 20;
const LEAST_WINDOW_ROWS: u64 = 1 << 12;
const WINDOW_ROWS: u64 = 1 << 16;
const MOST_WINDOW_ROWS: u64 = 1 << 18;
const WINDOW_ROWS_OF_ALL_SPLITS: u64 = 1 << 20;

// Open splits hold stored bytes of their row groups and the pages that these are decompressed to, a
// page of each column at a time, which are about twice as much; or decoded bytes of a batch of each.
const OPEN_BYTES: u64 = 256 << 20;
const HELD_BY_STORED: u64 = 3;
const DECODED_ROWS: u64 = 8192;
const LEAST_OPEN_SPLITS: u64 = 4;
const MOST_OPEN_SPLITS: u64 = 512;
const LEAST_TURN_ROWS: u64 = 64;
const MOST_TURN_ROWS: u64 = 4096;

/// Turns of a worker that takes splits as they come: what it has open or in its window, the others
/// cannot take.
const TURNS_OF_TAKER: u64 = 8;

/// The splits that are mixed.
#[derive(Clone, Copy, Debug)]
pub struct MixedSplits {
    /// Their number.
    pub splits: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Bytes of a decoded row.
    pub row_bytes: u64,
}

impl Mixing {
    /// Chooses the mixing of a plan's shards. `permutes` says whether splits are permuted, `window`
    /// how many rows the user wants mixed, and `partitions` among how many lists the splits of all
    /// shards are divided, each of which has its part of the window.
    pub fn choose(
        of: MixedSplits,
        permutes: bool,
        window: Option<u64>,
        partitions: Option<u64>,
    ) -> Self {
        let window = window.or_else(|| permutes.then(|| of.window()));
        let part = |window: u64| (window / partitions.unwrap_or(1).max(1)).max(1);
        let window = window.map(part).filter(|rows| *rows > 1);
        match window {
            Some(rows) if permutes && partitions.is_none() => {
                let (width, chunk) = of.turns(rows);
                Self { width, chunk, window }
            }
            _ => Self { window, ..Self::NONE },
        }
    }

    /// The mixing of `takers` workers that take splits as they come: by default at most an eighth of
    /// a worker's part. `rows` are those of the plan, where a window was not asked for and they are
    /// known; a window has a batch of `batch_rows` at least.
    pub fn of_takers(
        self,
        of: MixedSplits,
        takers: u64,
        rows: Option<u64>,
        batch_rows: u64,
    ) -> Self {
        let turns = (TURNS_OF_TAKER * takers).max(1);
        let width = u64::from(self.width).min(of.splits / turns).max(1) as u32;
        let most = rows.map_or(u64::MAX, |rows| (rows / turns).max(batch_rows));
        Self { width, window: self.window.map(|window| window.min(most)), ..self }
    }
}

impl MixedSplits {
    /// Rows of a window where nobody says.
    fn window(&self) -> u64 {
        let wanted = WINDOW_ROWS_OF_ALL_SPLITS / self.splits.max(1);
        let wanted = wanted.clamp(WINDOW_ROWS, MOST_WINDOW_ROWS);
        wanted.min(WINDOW_BYTES / self.row_bytes.max(1)).max(LEAST_WINDOW_ROWS)
    }

    /// How many splits are open, and the rows that each gives in turn.
    ///
    /// As many as memory allows: where all splits are open, every window has its even part of each
    /// of them, and sorted data is mixed as well as any. Turns divide a window, or else some splits
    /// would have a turn more in it than others.
    fn turns(&self, window: u64) -> (u32, u64) {
        let splits = self.splits.max(1);
        let stored = (self.bytes / splits).max(1).saturating_mul(HELD_BY_STORED);
        let decoded = self.row_bytes.saturating_mul(DECODED_ROWS);
        let width = OPEN_BYTES / stored.max(decoded);
        let width = width.clamp(LEAST_OPEN_SPLITS, MOST_OPEN_SPLITS);
        // A shard may have all splits, and opens no more than it has.
        let width = width.min(splits).min((window / LEAST_TURN_ROWS).max(1));
        let rounds = window.div_ceil(width * MOST_TURN_ROWS);
        (width as u32, (window / (rounds * width)).max(1))
    }
}
