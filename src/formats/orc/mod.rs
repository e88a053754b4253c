//! Apache ORC: stripes are discovered from the file's footer, pruned by its statistics, and read column by column.
//!
//! `orc-rust` decodes; what it does not say of a file (the attributes of types, statistics that are absent, streams of a
//! stripe before it is read) is taken from the metadata by [`wire`]. Timestamps without a zone are what the writer's
//! clock said, as other readers have them. Dates are days of the proleptic Gregorian calendar, as they are stored: those
//! before 1582-10-15 of a writer with the hybrid calendar (Hive, Spark 2) are not moved.

mod discover;
mod footer;
mod rle;
mod source;
mod statistics;
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
