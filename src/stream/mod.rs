//! From splits to finished batches: read-ahead in order, shuffling, exact batches and conversion.

mod batches;
mod gather;
mod queue;
mod read_ahead;
mod shard;
mod shuffle;

pub use batches::ExactBatches;
pub use read_ahead::ReadAhead;
pub use shard::{Finished, Next, Output, ShardStream, StreamCounters, StreamOptions};
pub use shuffle::{ShuffleWindow, Window};
