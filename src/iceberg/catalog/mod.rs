//! Iceberg catalogs: where a table's metadata is, and how its files are reached.
//!
//! A catalog takes pyiceberg's properties. Of the `iceberg` crates, those for Glue and S3 Tables
//! are used, reading through [`RoutedStore`](crate::storage::RoutedStore); REST and SQL are asked
//! directly, since the crate for REST drops the credentials that a catalog gives, and the one for
//! SQL creates tables before it reads.

mod access;
mod aws;
mod connect;
mod error;
mod file_io;
mod foreign;
mod hive;
mod memory;
mod metadata;
mod properties;
mod registered;
mod rest;
mod sql;
mod unsupported;

pub use access::StorageAccess;
pub use error::iceberg_error;
pub use file_io::{RoutedStorage, RoutedStorageFactory};
pub use metadata::load_metadata;
pub use registered::{IcebergCatalog, LoadedTable};
