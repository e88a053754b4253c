//! From the rows of splits to the rows of batches: mixing them and cutting them exactly.

mod batches;
mod gather;
mod queue;
mod shuffle;

pub use batches::ExactBatches;
pub use shuffle::{ShuffleWindow, Window};
