//! The interface of every kind of catalog, and the way to connect to one.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;

use super::aws::{GlueClient, S3TablesClient};
use super::error::not_found;
use super::hive::HiveClient;
use super::memory::MemoryClient;
use super::properties::CatalogType;
use super::registered::LoadedTable;
use super::rest::RestClient;
use super::sql::SqlClient;
use super::unity::UnityClient;
use crate::runtime::Runtimes;
use crate::storage::{StorageOptions, StoreAccess};
use crate::{Error, Result};

/// The place of a Delta table, as its catalog told it.
#[derive(Clone, Debug)]
pub struct DeltaPlace {
    /// The table's directory.
    pub location: String,
    /// How its store is reached, with credentials that the catalog gives.
    pub access: StoreAccess,
}

/// A catalog, read-only. An unknown namespace or table is `TableNotFound`; only its name needs to
/// be told, since the caller adds those that exist.
#[async_trait]
pub(super) trait Client: Send + Sync {
    /// The namespaces directly below `parent`, each with all its names; an empty parent is the
    /// root.
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>>;

    /// The names of a namespace's tables.
    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>>;

    /// A table as it is now.
    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable>;

    /// The place of a Delta table as it is now.
    async fn delta_place(&self, namespace: &[String], name: &str) -> Result<DeltaPlace> {
        Err(not_found(namespace, name))
    }
}

/// Reaches a catalog; runs on the threads for network I/O.
pub(super) async fn connect(
    kind: CatalogType,
    name: &str,
    properties: &BTreeMap<String, String>,
    options: &StorageOptions,
) -> Result<Arc<dyn Client>> {
    Ok(match kind {
        CatalogType::Rest => Arc::new(RestClient::connect(properties).await?),
        CatalogType::Sql => Arc::new(SqlClient::try_new(name, properties)?),
        CatalogType::Memory => Arc::new(MemoryClient::try_new(properties)?),
        CatalogType::Glue => Arc::new(GlueClient::try_new(properties)?),
        CatalogType::Hive => Arc::new(HiveClient::try_new(properties)?),
        CatalogType::S3Tables => Arc::new(S3TablesClient::try_new(properties)?),
        CatalogType::Unity => Arc::new(UnityClient::try_new(name, properties, options)?),
    })
}

/// Runs `work` on the threads for network I/O, so that it does not wait behind decoding.
pub(super) async fn on_io<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    match Runtimes::current()?.io().spawn(work).await {
        Ok(result) => result,
        Err(stopped) => {
            Err(Error::storage("a request to the catalog stopped").with_source(stopped))
        }
    }
}
