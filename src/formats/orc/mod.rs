//! Apache ORC: stripes are discovered from the file's footer, pruned by its statistics, and read
//! column by column.
//!
//! `orc-rust` decodes, once [`chunks`] and [`declared`] have checked what it would take memory for.
//! Facts that it does not expose (the attributes of types, absent statistics,
//! streams of a stripe before it is read) are read from the metadata by [`wire`]. Timestamps
//! without a zone show the writer's clock, as in other readers. Dates are days of the proleptic
//! Gregorian calendar, as stored: dates before 1582-10-15 from a writer with the hybrid calendar
//! (Hive, Spark 2) are not moved.

mod chunks;
mod declared;
mod discover;
mod footer;
mod rle;
mod source;
mod statistics;
mod streams;
mod stripe;
mod timestamps;
mod types;
mod wire;

pub(super) use discover::discover;
pub use footer::{OrcFooter, read_orc_footer};
pub use source::{Orc, OrcSource};
pub use statistics::kept_stripes;
pub use stripe::{OrcRead, open};
pub use types::{FIELD_ID, with_units, with_units_of};
