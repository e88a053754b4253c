//! Splits: every row that a query needs lies in one split, no split reads another's rows, and what
//! pruning leaves out holds no row of the result.

mod columns;
mod orc;
mod parquet;
pub mod pruning;
mod text;
mod units;
