//! The proof of pruning: which containers of rows hold no row that a predicate keeps, and which
//! hold no other.
//!
//! A container is anything with statistics in a format: a file, a row group, a page, a stripe. A
//! format turns its statistics into [`ColumnBounds`], which also represent gaps: an absent bound,
//! NaN that no bound counts, NULLs that nobody counted. [`judge`] is the one function that draws
//! conclusions from them, for leaving out and for counting alike. Expressions that it does not
//! understand prove nothing.

mod bounds;
mod casts;
mod judge;
mod range;
#[cfg(test)]
mod tests;
mod truth;

pub use bounds::{ColumnBounds, above_cut};
pub use judge::{Bounds, judge};
