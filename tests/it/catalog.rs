//! One table has one schema: files widen safely, or disagree loudly with the names of both files and
//! the column.

mod files;
mod merge;
