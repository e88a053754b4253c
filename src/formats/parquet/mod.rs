//! Parquet: finding and pruning splits, checks of footers and pages, and the reader of single
//! columns.
//!
//! The footer is read once (`footer.rs`), looked at before it is decoded (`thrift.rs`, `check.rs`),
//! and tells bounds of columns (`bounds.rs`), by which row groups and pages are pruned
//! (`prune.rs`). `reader/` decodes.

pub(super) mod access;
pub(super) mod blooms;
mod bounds;
mod check;
pub(super) mod discover;
pub(super) mod footer;
mod group_numbers;
pub(super) mod pages;
pub(super) mod prune;
pub(super) mod reader;
mod shapes;
pub(super) mod sorted;
mod thrift;
pub(super) mod types;

pub(super) use discover::discover;
