//! Who reads what, in which order: pure functions over split metadata.
//!
//! Nothing here reads a file, a clock or a hash map's order, so every rank and worker computes the
//! same plan from the same input. [`lpt()`] balances splits, [`Assignment`] holds the lists of all
//! shards, [`epoch_order`] permutes one shard's list, [`Permutation`] all rows, and [`Rng`] is the only
//! source of randomness in the crate.

mod lpt;
mod order;
mod permutation;
mod plan;
mod rng;
mod shard;

pub use lpt::{lpt, round_robin};
pub use order::{derive_key, epoch_order};
pub use permutation::Permutation;
pub use plan::{Assignment, Builtin, Imbalance, ShardSummary, weight};
pub use rng::Rng;
pub use shard::ShardSpec;
