//! Decides who reads which rows, in which order: pure functions over split metadata.
//!
//! Nothing here reads a file, a clock or a hash map's order, so every rank and worker computes the
//! same plan from the same input. [`lpt()`] balances splits, [`Assignment`] holds the lists of all
//! shards, [`epoch_order`] permutes one shard's list, [`Permutation`] all rows, and [`Rng`] is the
//! only source of randomness in the crate.
//!
//! [`resume()`] is the whole way: [`ShardInput`] is cut into [`RowSlice`]s, or those [`Left`] by
//! earlier runs of the epoch are taken, and dealt to [`Shard`]s by a [`Layout`]. [`left_after()`]
//! takes off what a run consumed. A [`RankShare`] is one rank's part of it.

mod bernoulli;
mod blend;
mod cursor;
mod deal;
mod dynamic;
mod even;
mod interleave;
mod layout;
mod left;
mod lpt;
mod mixing;
mod order;
mod permutation;
mod plan;
mod quota;
mod ramp;
mod rng;
mod row_slice;
mod series;
mod shard;
mod share;
mod stop;
mod weighted_sampler;

pub use bernoulli::{Bernoulli, FileSample};
pub use blend::blend;
pub use cursor::{Lane, LaneCursor, Mixing, Shard, ShardCursor, WindowCursor};
pub use deal::{cursor_of, left_after, resume, shares};
pub use dynamic::Holding;
pub use even::{Remainder, Schedule, level, proportional, share};
pub use interleave::{Interleave, Open, Turn};
pub use layout::{EarlierRun, Layout, OrderKey, ShardInput};
pub use left::Left;
pub use lpt::{lpt, round_robin};
pub use mixing::MixedSplits;
pub use order::{derive_key, epoch_order};
pub use permutation::Permutation;
pub use plan::{Assignment, Builtin, Imbalance, ShardSummary, weight};
pub use ramp::{LaneRamp, Ramp};
pub use rng::Rng;
pub use row_slice::{RowSlice, Source, Window};
pub use series::{SeriesLayout, WindowShape};
pub use shard::ShardSpec;
pub use share::RankShare;
pub use stop::Stop;
pub use weighted_sampler::{Order, RowWeights, WeightedSampler};
