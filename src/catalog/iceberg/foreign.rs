//! Catalogs of the `iceberg` crates: Glue, the Hive metastore, S3 Tables.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use iceberg::{Catalog, CatalogBuilder, NamespaceIdent, TableIdent};
use iceberg_catalog_glue::GlueCatalogBuilder;
use iceberg_catalog_hms::HmsCatalogBuilder;
use iceberg_catalog_s3tables::S3TablesCatalogBuilder;

use super::access::StorageAccess;
use super::aws::{glue_files, glue_properties, s3tables_files, s3tables_properties};
use super::catalog::LoadedTable;
use super::connect::Client;
use super::error::{dotted, iceberg_error, no_namespace, not_found, own_error, words_of};
use super::file_io::RoutedStorageFactory;
use crate::storage::{RoutedStore, without_password};
use crate::{Error, ErrorKind, Result};

/// One catalog, or several metastores of which any answers.
struct ForeignClient {
    /// What it is, and where it was looked for.
    service: String,
    catalogs: Vec<Arc<dyn Catalog>>,
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

/// A Hive metastore; `uri` may name several.
pub(super) async fn connect_hive(
    name: &str,
    properties: &BTreeMap<String, String>,
) -> Result<Arc<dyn Client>> {
    let access = StorageAccess::new(properties);
    let store = access.open()?;
    let uris = properties.get("uri").map(String::as_str).unwrap_or_default();
    let (mut catalogs, mut failure) = (Vec::<Arc<dyn Catalog>>::new(), None);
    for uri in uris.split(',').map(str::trim).filter(|uri| !uri.is_empty()) {
        let address = uri.strip_prefix("thrift://").unwrap_or(uri).trim_end_matches('/');
        if !address.contains(':') {
            return Err(Error::config(format!(
                "the uri of a Hive metastore must be thrift://host:port, not {uri:?}"
            )));
        }
        // The crate demands a warehouse, and only writers use it.
        let mut known = HashMap::from([
            ("uri".to_owned(), address.to_owned()),
            ("warehouse".to_owned(), "none".to_owned()),
        ]);
        if let Some(transport) = properties.get("thrift_transport") {
            known.insert("thrift_transport".into(), transport.clone());
        }
        let factory = RoutedStorageFactory::sharing(access.clone(), Arc::clone(&store));
        let builder = HmsCatalogBuilder::default().with_storage_factory(Arc::new(factory));
        match builder.load(name, known).await {
            Ok(catalog) => catalogs.push(Arc::new(catalog)),
            // Its host is unknown; another one may answer.
            Err(error) => failure = Some(unreachable("the Hive metastore", &iceberg_error(error))),
        }
    }
    match failure {
        Some(error) if catalogs.is_empty() => Err(error.with_context("uri", uris)),
        _ => {
            let service = format!("the Hive metastore {uris}");
            Ok(Arc::new(ForeignClient { service, catalogs, access, store }))
        }
    }
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
    Ok(Arc::new(ForeignClient { service, catalogs: vec![catalog], access, store }))
}

impl ForeignClient {
    /// The first answer; the next catalog is asked where one cannot be reached.
    async fn ask<'a, T, F>(&'a self, question: impl Fn(&'a dyn Catalog) -> F) -> iceberg::Result<T>
    where
        F: Future<Output = iceberg::Result<T>>,
    {
        let mut last = None;
        for catalog in &self.catalogs {
            match question(&**catalog).await {
                Err(error) if is_unreachable(&error) => last = Some(error),
                other => return other,
            }
        }
        Err(last.unwrap_or_else(|| {
            iceberg::Error::new(iceberg::ErrorKind::Unexpected, "the catalog has no address")
        }))
    }

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

/// Whether no server answered, as far as the crate tells.
fn is_unreachable(error: &iceberg::Error) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    error.kind() == iceberg::ErrorKind::Unexpected
        && ["connect", "timed out", "timeout", "broken pipe", "transport"]
            .iter()
            .any(|sign| text.contains(sign))
}

fn unreachable(service: &str, error: &Error) -> Error {
    let told = words_of(error.message());
    Error::new(error.kind(), format!("{service} did not answer as it should: {told}"))
}

#[async_trait]
impl Client for ForeignClient {
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        // None of them nests namespaces.
        if !parent.is_empty() {
            return Ok(Vec::new());
        }
        let listed = self.ask(|catalog| catalog.list_namespaces(None)).await;
        let listed = listed.map_err(|error| self.failed(error))?;
        Ok(listed.into_iter().map(NamespaceIdent::inner).collect())
    }

    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        let ident = ident(namespace)?;
        let ident = &ident;
        match self.ask(|catalog| catalog.list_tables(ident)).await {
            Ok(tables) => Ok(tables.into_iter().map(|table| table.name).collect()),
            Err(error) => match self.ask(|catalog| catalog.namespace_exists(ident)).await {
                Ok(false) => Err(no_namespace(namespace)),
                _ => Err(self.failed(error)),
            },
        }
    }

    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        let ident = &TableIdent::new(ident(namespace)?, name.to_owned());
        match self.ask(|catalog| catalog.load_table(ident)).await {
            Ok(table) => Ok(LoadedTable {
                metadata_location: table.metadata_location().map(str::to_owned),
                metadata: table.metadata_ref(),
                store: Arc::clone(&self.store),
                access: self.access.clone(),
            }),
            // The crates tell a missing table by a dump of the answer.
            Err(error) => match self.ask(|catalog| catalog.table_exists(ident)).await {
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
