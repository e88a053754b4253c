//! CSV and JSON: cut into ranges that begin and end on records, and read.
//!
//! What is plain in them is searched and parsed here ([`plain`]), the rest by the decoders of `arrow`.
//!
//! The decoders of `arrow` cut off parts of a value that the column's type cannot hold: fractions
//! of whole numbers in JSON, the time of dates, digits below a unit. So columns of such types are
//! decoded as text, and parsed by [`values`], which takes exactly the values of the type.

mod discover;
mod plain;
mod records;
mod source;
mod values;

pub use discover::csv_dialect;
pub(super) use discover::{discover, json_dialect};
pub use source::{TextFormat, TextSource};
