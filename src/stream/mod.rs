//! From pieces to finished batches: read-ahead, interleaving, shuffling, exact batches and
//! conversion.

mod budget;
mod gather;
mod lane;
mod outbox;
mod queue;
mod reads;
mod rows;
mod series;
mod shard;
mod shuffle;
mod source;
mod work_queue;

pub use queue::RowQueue;
pub use reads::Reads;
pub use rows::Rows;
pub use series::{WindowReader, WindowSpec};
pub use shard::{Delivered, Finished, Home, Next, Output, ShardStream, StreamCounters, tiny};
pub use shuffle::{ShuffleWindow, Window};
pub use source::{Batches, RowSource};
pub use work_queue::{Counter, WorkQueue};
