//! Parquet read column by column: the columns of a predicate first, and the others for the rows
//! that it keeps.
//!
//! The rows and their order are those of DataFusion's own scan, which is the way of every split
//! that [`ColumnRequest::eligible`] does not take. Some things are done differently here. A range
//! of one column is one condition, not two with a selection between them. How the other columns are
//! decoded is decided by row group once it is known how many rows are kept, not estimated: as a
//! rule these are looked up in the pages (`page_filter.rs`), but where few are missing, everything
//! is decoded and those left out. Of a row group without a row to keep, nothing more is read, and
//! where the page index takes out part of one, only pages with a row that is left. And of local
//! files that the system has in memory, a few columns at a time are copied and decoded, whether
//! there is a predicate or not. Columns of numbers are decoded here (`primitive/`), all others by
//! the `parquet` crate. What DataFusion's scan cannot read, or reads wrongly, is read here in any
//! case (`unsupported_by_engine.rs`).

mod chunk;
mod declared_columns;
mod decoded;
mod group;
mod lengths;
mod matrix_expr;
mod page_filter;
mod plan;
mod present;
mod primitive;
mod row_major;
mod rows;
mod runs;
mod scan;
mod stages;
mod steps;
#[cfg(test)]
mod tests;
mod unpacked;
mod unsupported_by_engine;

pub use lengths::{BatchEnds, TURN_BYTES};
pub use matrix_expr::MatrixExpr;
pub use plan::ColumnRequest;
pub use scan::ColumnScan;

use parquet::errors::ParquetError;

fn damaged(what: impl std::fmt::Display) -> ParquetError {
    ParquetError::General(format!("a data page is damaged: {what}"))
}
