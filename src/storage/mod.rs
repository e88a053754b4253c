//! From a user's path to bytes: locations, object stores, listing, pinned reads, hive directories
//! and the record borders of text files.

mod access;
mod aliases;
mod aws_http;
mod aws_keys;
mod azure;
mod cache;
mod change_time;
mod checked;
mod decoded_text;
mod file_guard;
mod foreign;
mod foreign_store;
mod glob;
mod hidden;
mod hive;
mod io_counters;
mod known;
mod layer;
mod list;
mod location;
mod machine_keys;
mod mapped;
mod mark;
mod members;
mod network;
mod open;
mod options;
mod own_files;
mod pin;
mod pinned;
mod profiles;
mod properties;
mod provided;
mod read;
mod read_only;
mod requests;
mod resumable_body;
mod routed;
mod scoped;
mod scopes;
mod secrets;
mod stepped;
mod steps;
mod store;
mod table_folders;
mod text;
mod text_scan;
mod uri;
mod vended;
mod walk;

pub use access::AccessConfig;
pub use cache::{CacheOptions, RangeCache};
pub use change_time::{ChangeTime, pin_change_times};
pub use decoded_text::with_decoded_text;
pub use foreign::{
    Foreign, ForeignCredentials, ForeignFile, ForeignFiles, ForeignFunction, ForeignListing,
    ForeignOpener, set_foreign_opener,
};
pub use hive::{HivePartitions, Partitioning, decode};
pub use io_counters::IoCounters;
pub use list::{Listing, list_all, list_files, list_within};
pub use location::{Location, Scheme};
pub use mapped::MappedFile;
pub use members::Members;
pub use open::{OpenedPaths, StoreAccess};
pub use pin::FilePin;
pub use pinned::PinnedStore;
pub use read::LocalFile;
pub use routed::RoutedStore;
pub use scopes::StorageOptions;
pub use secrets::scrub;
pub use store::open_store;
pub use table_folders::is_delta_folder;
pub use text::{TextDialect, WholeRecords, record_boundaries};
pub use uri::is_local_file;
pub use vended::Refresh;

pub(crate) use access::lay_over;
pub(crate) use aws_keys::aws_identity;
pub(crate) use known::{slip_among, slip_of};
pub(crate) use mapped::{buffer_of, map_private};
pub(crate) use network::{client_builder, error_text, retry_after, send, whole};
pub(crate) use options::{redact, shown, without_password};
pub(crate) use own_files::{
    check_private, is_decimal, is_digest, is_hexadecimal, is_own_folder, open_lock, open_own,
    read_own, remove_own, write_own,
};
pub(crate) use properties::is_storage_property;
pub(crate) use secrets::note_secrets;
