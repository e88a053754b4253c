//! Catalogs of the `iceberg` crates: Glue and S3 Tables.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use iceberg::spec::FormatVersion;
use iceberg::{Catalog, CatalogBuilder, NamespaceIdent, TableIdent};
use iceberg_catalog_glue::GlueCatalogBuilder;
use iceberg_catalog_s3tables::S3TablesCatalogBuilder;

use super::access::StorageAccess;
use super::aws::{glue_files, glue_properties, s3tables_files, s3tables_properties};
use super::connect::Client;
use super::error::{dotted, iceberg_error, no_namespace, not_found, own_error, words_of};
use super::file_io::RoutedStorageFactory;
use super::metadata::load_known;
use super::registered::LoadedTable;
use crate::iceberg::Defaults;
use crate::storage::{RoutedStore, without_password};
use crate::{Error, ErrorKind, Result};

/// A catalog of one of those crates.
struct ForeignClient {
    /// The service's name and address, for error messages.
    service: String,
    catalog: Arc<dyn Catalog>,
    access: StorageAccess,
    store: Arc<RoutedStore>,
}

/// AWS Glue.
pub(super) async fn connect_glue(
    name: &str,
    properties: &BTreeMap<String, String>,
) -> Result<Arc<dyn Client>> {
    let builder = GlueCatalogBuilder::default();
    let access = StorageAccess::new(&glue_files(properties));
    one("AWS Glue", builder, name, glue_properties(properties)?, access).await
}

/// Amazon S3 Tables.
pub(super) async fn connect_s3tables(
    name: &str,
    properties: &BTreeMap<String, String>,
) -> Result<Arc<dyn Client>> {
    let builder = S3TablesCatalogBuilder::default();
    let access = StorageAccess::new(&s3tables_files(properties));
    one("Amazon S3 Tables", builder, name, s3tables_properties(properties)?, access).await
}

async fn one<B>(
    service: &'static str,
    builder: B,
    name: &str,
    properties: HashMap<String, String>,
    access: StorageAccess,
) -> Result<Arc<dyn Client>>
where
    B: CatalogBuilder,
    B::C: 'static,
{
    let store = access.open()?;
    let endpoint = ["uri", "endpoint_url"].iter().find_map(|name| properties.get(*name));
    let service = match endpoint {
        Some(endpoint) => format!("{service} at {}", without_password(endpoint)),
        None => service.to_owned(),
    };
    let factory = RoutedStorageFactory::sharing(access.clone(), Arc::clone(&store));
    let catalog = builder.with_storage_factory(Arc::new(factory)).load(name, properties).await;
    let catalog: Arc<dyn Catalog> =
        Arc::new(catalog.map_err(|error| unreachable(&service, &iceberg_error(error)))?);
    Ok(Arc::new(ForeignClient { service, catalog, access, store }))
}

impl ForeignClient {
    fn failed(&self, error: iceberg::Error) -> Error {
        // A file that cannot be read is no fault of the service.
        if let Some(own) = own_error(&error) {
            return own;
        }
        match iceberg_error(error) {
            own if own.kind() == ErrorKind::Storage => unreachable(&self.service, &own),
            own => own,
        }
    }
}

fn unreachable(service: &str, error: &Error) -> Error {
    let told = words_of(error.message());
    Error::new(error.kind(), format!("{service} did not answer as it should: {told}"))
}

#[async_trait]
impl Client for ForeignClient {
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        // Neither of them nests namespaces.
        if !parent.is_empty() {
            return Ok(Vec::new());
        }
        let listed = self.catalog.list_namespaces(None).await;
        let listed = listed.map_err(|error| self.failed(error))?;
        Ok(listed.into_iter().map(NamespaceIdent::inner).collect())
    }

    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        let ident = ident(namespace)?;
        let ident = &ident;
        match self.catalog.list_tables(ident).await {
            Ok(tables) => Ok(tables.into_iter().map(|table| table.name).collect()),
            Err(error) => match self.catalog.namespace_exists(ident).await {
                Ok(false) => Err(no_namespace(namespace)),
                _ => Err(self.failed(error)),
            },
        }
    }

    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        let ident = &TableIdent::new(ident(namespace)?, name.to_owned());
        let (store, access) = (Arc::clone(&self.store), self.access.clone());
        match self.catalog.load_table(ident).await {
            Ok(table) => match table.metadata_location() {
                // The crate leaves out defaults, which there are from version 3 on, so it is read
                // again.
                Some(location) if table.metadata().format_version() >= FormatVersion::V3 => {
                    load_known(location.to_owned(), store, access).await
                }
                location => Ok(LoadedTable {
                    metadata_location: location.map(str::to_owned),
                    metadata: table.metadata_ref(),
                    defaults: Defaults::new(),
                    store,
                    access,
                }),
            },
            // The crates tell a missing table by a dump of the answer.
            Err(error) => match self.catalog.table_exists(ident).await {
                Ok(false) => Err(not_found(namespace, name)),
                _ => match self.failed(error) {
                    own if own.message().contains("metadata_location") => {
                        Err(Error::data(format!(
                            "{} is no Iceberg table: the catalog knows no metadata of it",
                            dotted(namespace, name)
                        )))
                    }
                    own => Err(own),
                },
            },
        }
    }
}

fn ident(namespace: &[String]) -> Result<NamespaceIdent> {
    match namespace {
        [one] => Ok(NamespaceIdent::new(one.clone())),
        _ => Err(no_namespace(namespace)),
    }
}
