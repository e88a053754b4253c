//! Splits: the smallest pieces of scan work.

pub mod avro;
mod blame;
mod discover;
mod evolve;
mod files;
mod footers;
mod format;
mod guard;
pub mod ipc;
pub(crate) mod memory;
pub mod orc;
mod parquet;
mod places;
mod reshape;
mod source;
mod stored_type;
mod struct_nulls;
mod table_metadata;
mod text;
mod units;
mod unreadable;

use std::fmt;
use std::ops::Range;

pub use blame::{blame_content, caught, caught_answer, caught_rows};
pub use discover::{
    FileSplits, ScanRequest, ScanSplits, SplitTarget, concurrent_files, discover, units,
};
pub use evolve::{ByName, FileAdapter, SettledColumns, Shape, Shaped};
pub use files::{FileRef, Outline, Scans, TableFile, TableFiles};
pub use footers::{CachedFooters, FooterCache, read_footer};
pub use format::{ArrowFormat, Compression, CsvFormat, Format, JsonFormat};
pub use parquet::access::{ALL_ROWS, access_to_rows};
pub use parquet::discover::columns_of;
pub use parquet::prune::{access_to_matches, matched_groups};
pub use parquet::reader::{BatchEnds, ColumnRequest, ColumnScan, MatrixExpr, TURN_BYTES};
pub use parquet::sorted::{SortedColumn, sorted_columns};
pub use source::{ColumnRead, RowSource, UnitFormat};
pub use stored_type::{stored_field, stored_type};
pub use struct_nulls::{emptied, with_null_fields};
pub use table_metadata::{
    FooterNames, ListedFile, PinnedVersion, Positions, TableMetadata, malformed_schema,
};
pub use text::csv_dialect;
pub use units::UnitRange;
pub use unreadable::{is_marked, marked, refused};

use crate::fingerprint::Form;

/// A half-open range of physical rows of one file, before any filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowRange {
    /// First row, counted from the start of the file.
    pub start: u64,
    /// One past the last row.
    pub end: u64,
}

/// The units of a format that are read one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnitKind {
    /// Row groups of a Parquet file.
    RowGroups,
    /// Stripes of an ORC file.
    Stripes,
    /// Record batches of an Arrow IPC file.
    Batches,
    /// Blocks of an Avro file.
    Blocks,
}

impl UnitKind {
    /// The names of one unit and of several.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::RowGroups => ("row group", "row groups"),
            Self::Stripes => ("stripe", "stripes"),
            Self::Batches => ("record batch", "record batches"),
            Self::Blocks => ("block", "blocks"),
        }
    }
}

/// The part of a file that one split reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SplitUnit {
    /// Units `first..first + count` of a file. They begin in `byte_start..byte_end`, and no other
    /// unit does.
    Units {
        /// Their kind.
        kind: UnitKind,
        /// Index of the first unit.
        first: u32,
        /// Number of consecutive units.
        count: u32,
        /// Where the first unit begins, in bytes.
        byte_start: u64,
        /// Where the unit after the last begins, in bytes, or the end of the file.
        byte_end: u64,
    },
    /// Bytes `start..end` of a text file; both lie on the start of a record.
    Bytes {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Rows of a table in memory.
    Rows(RowRange),
    /// The whole file: compressed text, JSON arrays, Arrow IPC streams.
    File,
}

/// The smallest piece of scan work; one split is one DataFusion partition.
///
/// Compact on purpose: a plan over a million splits keeps a million of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Which driving scan it belongs to: 0, or the position of the UNION ALL input.
    pub scan: u32,
    /// Index into that scan's pinned files.
    pub file: u32,
    /// The part of the file that is read.
    pub unit: SplitUnit,
    /// Rows before any filter, from the file's metadata and exact, without deleted ones; None where
    /// the format does not say.
    pub rows: Option<u64>,
    /// Rows among them that the table's position deletes take out.
    pub deleted: u64,
    /// The physical rows, where `rows` is known.
    pub first_row: u64,
    /// Stored bytes of the projected columns: the weight that LPT balances.
    pub bytes: u64,
}

impl SplitUnit {
    /// Writes the unit into a form: which part of its file it is.
    pub fn write(&self, form: &mut Form) {
        match self {
            Self::Units { kind, first, count, .. } => {
                form.text("kind", kind.names().1);
                form.number("first", u64::from(*first)).number("count", u64::from(*count));
            }
            Self::Bytes { start, end } => {
                form.text("kind", "bytes").number("start", *start).number("end", *end);
            }
            Self::Rows(rows) => {
                form.text("kind", "rows").number("start", rows.start).number("end", rows.end);
            }
            Self::File => {
                form.text("kind", "file");
            }
        }
    }

    /// The bytes of the file in which it begins; None for all of them, and for rows in memory.
    pub fn byte_range(&self) -> Option<Range<u64>> {
        match *self {
            Self::Units { byte_start, byte_end, .. } => Some(byte_start..byte_end),
            Self::Bytes { start, end } => Some(start..end),
            Self::Rows(_) | Self::File => None,
        }
    }

    /// First and one past the last row group, stripe, record batch or block.
    pub fn units(&self) -> Option<Range<u32>> {
        match *self {
            Self::Units { first, count, .. } => Some(first..first + count),
            Self::Bytes { .. } | Self::Rows(_) | Self::File => None,
        }
    }
}

impl Split {
    /// The whole of file `index`, which has so many bytes.
    pub fn whole(index: usize, bytes: u64) -> Self {
        let (file, unit) = (index as u32, SplitUnit::File);
        Self { scan: 0, file, unit, rows: None, deleted: 0, first_row: 0, bytes }
    }

    /// The physical rows this split reads, where the format says.
    pub fn row_range(&self) -> Option<RowRange> {
        let end = |rows| self.first_row + rows + self.deleted;
        self.rows.map(|rows| RowRange { start: self.first_row, end: end(rows) })
    }
}

impl fmt::Display for SplitUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units { kind, first, count: 1, .. } => write!(f, "{} {first}", kind.names().0),
            Self::Units { kind, first, count, .. } => {
                write!(f, "{} {first} to {}", kind.names().1, first + count - 1)
            }
            Self::Bytes { start, end } => write!(f, "bytes {start} to {end}"),
            Self::Rows(rows) => write!(f, "rows {} to {}", rows.start, rows.end),
            Self::File => f.write_str("whole file"),
        }
    }
}
