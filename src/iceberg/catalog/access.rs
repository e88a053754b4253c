//! How any process opens the files of a table, and asks for new credentials.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use iceberg::io::{FileIO, FileIOBuilder};
use serde::{Deserialize, Serialize};

use super::file_io::RoutedStorageFactory;
use super::rest::{RestRefresh, RestTable};
use crate::Result;
use crate::storage::{AccessConfig, Refresh, RoutedStore};

/// The access that a worker process needs to open a table's files without planning again: storage
/// properties, credentials, and for a REST catalog the address of newer ones.
///
/// The serialised form holds secrets: it is for a worker process, and never for a checkpoint or a
/// log. The `Debug` form shows none.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct StorageAccess {
    config: AccessConfig,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rest: Option<RestTable>,
}

impl StorageAccess {
    /// Access by properties alone: `s3.*`, `gcs.*`, `adls.*`, `client.*`, or names of
    /// `object_store`.
    pub fn new(properties: &BTreeMap<String, String>) -> Self {
        Self { config: AccessConfig::new(properties), rest: None }
    }

    pub(super) fn of_rest(config: AccessConfig, table: RestTable) -> Self {
        Self { config, rest: Some(table) }
    }

    /// A store of the table's files. Opens no connection.
    ///
    /// # Errors
    ///
    /// None today; a malformed property is told when the first file of its store is read.
    pub fn open(&self) -> Result<Arc<RoutedStore>> {
        let refresh = self
            .rest
            .clone()
            .map(|table| Arc::new(RestRefresh::new(table, None)) as Arc<dyn Refresh>);
        Ok(Arc::new(RoutedStore::new(self.config.clone(), refresh)))
    }

    /// Read-only access to the files for the `iceberg` crate.
    pub fn file_io(&self) -> FileIO {
        FileIOBuilder::new(Arc::new(RoutedStorageFactory::new(self.clone()))).build()
    }
}

impl fmt::Debug for StorageAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageAccess")
            .field("config", &self.config)
            .field("rest", &self.rest)
            .finish()
    }
}
