//! The proof of pruning: which containers of rows hold no row that a predicate keeps, and which hold no other.
//!
//! A container is what a format says something of: a file, a row group, a page, a stripe. A format turns what it says into
//! [`ColumnBounds`], which carry what they do not say: a bound that is absent, NaN that no bound counts, NULLs that nobody
//! counted. [`judge`] is the one function that draws conclusions from them, for leaving out and for counting alike. What it
//! does not understand proves nothing.

mod bounds;
mod casts;
mod judge;
mod range;
#[cfg(test)]
mod tests;
mod truth;

pub use bounds::{ColumnBounds, above_cut};
pub use judge::{Bounds, judge};
