//! Iceberg catalogs: where a table's metadata is, and how its files are reached.
//!
//! A Unity Catalog tells places of Delta tables instead.
//!
//! A catalog takes pyiceberg's properties. Each kind is asked directly, without the crates for
//! catalogs: the one for REST drops the credentials that a catalog gives, the one for SQL creates
//! tables before it reads, and those for Glue and S3 Tables compile two clients of AWS with all
//! their operations for three requests each.

mod access;
mod aws;
mod connect;
mod error;
mod file_io;
mod hive;
mod memory;
mod metadata;
mod properties;
mod registered;
mod rest;
mod sql;
mod unity;
mod unsupported;

pub use access::StorageAccess;
pub use connect::DeltaPlace;
pub use error::iceberg_error;
pub use file_io::{RoutedStorage, RoutedStorageFactory};
pub use metadata::load_metadata;
pub use registered::{IcebergCatalog, LoadedTable};
pub use unity::UnityCredentials;
