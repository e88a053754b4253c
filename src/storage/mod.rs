//! From what a user types to bytes: locations, object stores, listing, pinned reads, hive
//! directories and the record borders of text files.

mod glob;
mod hive;
mod list;
mod location;
mod opaque;
mod options;
mod pin;
mod pinned;
mod read;
mod store;
mod text;
mod text_scan;

pub use hive::{HivePartitions, Partitioning, decode};
pub use list::{Listing, list_all, list_files};
pub use location::{Location, Scheme};
pub use pin::FilePin;
pub use pinned::{IoCounters, PinnedStore};
pub use store::open_store;
pub use text::{TextDialect, record_boundaries};
