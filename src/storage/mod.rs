//! From what a user types to bytes: locations, object stores, listing, pinned reads, hive
//! directories and the record borders of text files.

mod access;
mod azure;
mod glob;
mod hive;
mod known;
mod list;
mod location;
mod opaque;
mod options;
mod pin;
mod pinned;
mod properties;
mod read;
mod routed;
mod store;
mod text;
mod text_scan;
mod uri;
mod vended;

pub use access::AccessConfig;
pub use hive::{HivePartitions, Partitioning, decode};
pub use list::{Listing, list_all, list_files};
pub use location::{Location, Scheme};
pub use pin::FilePin;
pub use pinned::{IoCounters, PinnedStore};
pub use routed::RoutedStore;
pub use store::open_store;
pub use text::{TextDialect, record_boundaries};
pub use vended::Refresh;

pub(crate) use known::{slip_among, slip_of};
pub(crate) use options::{redact, shown, without_password};
pub(crate) use properties::is_storage_property;
