//! The questions that a Unity Catalog is asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::super::connect::{Client, DeltaPlace};
use super::super::error::{dotted, no_namespace, not_found};
use super::super::registered::LoadedTable;
use super::super::rest::{Http, Refusal, all_pages, encode, parse};
use super::credentials::UnityCredentials;
use crate::storage::{Location, Scheme, StorageOptions, StoreAccess, without_password};
use crate::{Error, Result};

/// The path of the API below a server's address.
const API: &str = "/api/2.1/unity-catalog";

/// The format of the tables that are read.
const DELTA: &str = "DELTA";

/// A connection to a Unity Catalog.
#[derive(Clone)]
pub(in super::super) struct UnityClient {
    inner: Arc<Inner>,
}

struct Inner {
    http: Http,
    /// `https://host/api/2.1/unity-catalog`.
    base: String,
    /// The name of the catalog on its server.
    catalog: String,
    /// Properties from the user, for processes that connect again.
    properties: BTreeMap<String, String>,
    /// The user's options of the stores.
    options: StorageOptions,
}

#[derive(Deserialize)]
struct SchemasAnswer {
    #[serde(default)]
    schemas: Option<Vec<Named>>,
    #[serde(default)]
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct TablesAnswer {
    #[serde(default)]
    tables: Option<Vec<Named>>,
    #[serde(default)]
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// `TableInfo` of the specification.
#[derive(Deserialize)]
struct TableAnswer {
    #[serde(default)]
    table_type: Option<String>,
    #[serde(default)]
    data_source_format: Option<String>,
    #[serde(default)]
    storage_location: Option<String>,
    #[serde(default)]
    table_id: Option<String>,
}

impl UnityClient {
    /// Checks the properties; sends nothing.
    ///
    /// # Errors
    ///
    /// `Config` for malformed properties.
    pub(in super::super) fn try_new(
        name: &str,
        properties: &BTreeMap<String, String>,
        options: &StorageOptions,
    ) -> Result<Self> {
        let get = |name: &str| properties.get(name).map(String::as_str);
        let uri = get("uri").unwrap_or_default().trim_end_matches('/');
        if !uri.starts_with("http://") && !uri.starts_with("https://") {
            return Err(Error::config(format!(
                "the uri of a Unity Catalog must start with http:// or https://, got {:?}",
                without_password(uri)
            )));
        }
        let base = match uri.ends_with(API) {
            true => uri.to_owned(),
            false => format!("{uri}{API}"),
        };
        let catalog = get("catalog").filter(|name| !name.is_empty()).unwrap_or(name).to_owned();
        let (properties, options) = (properties.clone(), options.clone());
        let http = Http::try_new(&properties)?;
        Ok(Self { inner: Arc::new(Inner { http, base, catalog, properties, options }) })
    }

    /// The answer to the question for a table's credentials.
    pub(super) async fn credentials(&self, table_id: &str) -> Result<Vec<u8>, Refusal> {
        let url = format!("{}/temporary-table-credentials", self.inner.base);
        let question = serde_json::json!({ "table_id": table_id, "operation": "READ" });
        self.inner.http.post(&url, &question.to_string()).await
    }

    /// All names of a listing.
    async fn names<T: serde::de::DeserializeOwned>(
        &self,
        url: &str,
        parts: impl Fn(T) -> (Option<Vec<Named>>, Option<String>),
    ) -> Result<Vec<String>, Refusal> {
        let mut all = Vec::new();
        let page = |token: &str| format!("page_token={}", encode(token));
        let listed = all_pages(&self.inner.http, url, None, page, |answer: T| {
            let (names, next) = parts(answer);
            all.extend(names.unwrap_or_default().into_iter().map(|named| named.name));
            next
        });
        listed.await?;
        Ok(all)
    }

    async fn table(&self, schema: &str, name: &str) -> Result<TableAnswer, Refusal> {
        let full = [&self.inner.catalog, schema, name].map(encode).join(".");
        let url = format!("{}/tables/{full}", self.inner.base);
        Ok(parse(&self.inner.http.get(&url).await?, &url)?)
    }

    /// The place of a table, where it is one that is read.
    fn place(&self, full: &str, table: TableAnswer) -> Result<DeltaPlace> {
        let (kind, format) = (table.table_type.unwrap_or_default(), table.data_source_format);
        let Some(location) = table.storage_location.filter(|place| !place.is_empty()) else {
            return Err(Error::config(match kind.contains("VIEW") {
                true => format!(
                    "{full} is a view (table_type {kind}) of a Unity Catalog, which has no files to read; write its \
                     query in SQL, or register it with session.register_view"
                ),
                false => format!("the Unity Catalog gives no storage_location of {full}"),
            }));
        };
        let shown = without_password(&location);
        if !format.as_deref().is_some_and(|format| format.eq_ignore_ascii_case(DELTA)) {
            return Err(Error::config(format!(
                "{full} is a table of format {} (table_type {kind}), and of a Unity Catalog only Delta tables are \
                 read; register its files at {shown:?} by their format, as with session.register_parquet",
                format.as_deref().unwrap_or("unknown"),
            )));
        }
        // A path without a scheme is one of the server's file system, and must not be taken as
        // relative to this process's folder: `dbfs:/…`.
        let is_whole =
            location.contains("://") || location.starts_with("file:/") || location.starts_with('/');
        let scheme = match is_whole {
            true => Location::parse(&location)
                .map_err(|error| error.with_context("storage_location of table", full))?
                .scheme(),
            false => Scheme::Foreign,
        };
        let gives_credentials = match scheme {
            Scheme::Local => false,
            Scheme::S3 | Scheme::Gcs | Scheme::Azure => true,
            Scheme::Http | Scheme::Foreign => {
                return Err(Error::config(format!(
                    "the files of {full} lie at {shown:?}; of a Unity Catalog tables in S3, Google Cloud Storage, \
                     Azure and on local disk are read"
                )));
            }
        };
        let mut access = StoreAccess::default();
        if gives_credentials {
            access.options = self.inner.options.clone();
            let table_id = table.table_id.filter(|id| !id.is_empty()).ok_or_else(|| {
                Error::storage(format!("the Unity Catalog gives no table_id of {full}"))
            })?;
            let properties = self.inner.properties.clone();
            access.credentials = Some(Arc::new(UnityCredentials::new(
                properties,
                full.to_owned(),
                table_id,
                self.clone(),
            )));
        }
        Ok(DeltaPlace { location, access })
    }
}

#[async_trait]
impl Client for UnityClient {
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        if !parent.is_empty() {
            return Ok(Vec::new());
        }
        let url =
            format!("{}/schemas?catalog_name={}", self.inner.base, encode(&self.inner.catalog));
        let parts = |answer: SchemasAnswer| (answer.schemas, answer.next_page_token);
        match self.names(&url, parts).await {
            Ok(names) => Ok(names.into_iter().map(|name| vec![name]).collect()),
            Err(Refusal::NotFound { .. }) => Err(Error::new(
                crate::ErrorKind::TableNotFound,
                format!(
                    "the server has no catalog {:?}; the property \"catalog\" says another name",
                    self.inner.catalog
                ),
            )),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        let [schema] = namespace else { return Err(no_namespace(namespace)) };
        let (base, catalog) = (&self.inner.base, encode(&self.inner.catalog));
        let url = format!("{base}/tables?catalog_name={catalog}&schema_name={}", encode(schema));
        let parts = |answer: TablesAnswer| (answer.tables, answer.next_page_token);
        match self.names(&url, parts).await {
            Ok(names) => Ok(names),
            Err(Refusal::NotFound { .. }) => Err(no_namespace(namespace)),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        Err(Error::config(format!(
            "{} is a table of a Unity Catalog, of which Delta tables are read; their metadata tables are $history and \
             $files",
            dotted(namespace, name)
        )))
    }

    async fn delta_place(&self, namespace: &[String], name: &str) -> Result<DeltaPlace> {
        let [schema] = namespace else { return Err(not_found(namespace, name)) };
        match self.table(schema, name).await {
            Ok(table) => self.place(&dotted(namespace, name), table),
            Err(Refusal::NotFound { is_namespace: true }) => Err(no_namespace(namespace)),
            Err(Refusal::NotFound { is_namespace: false }) => Err(not_found(namespace, name)),
            Err(refusal) => Err(refusal.into()),
        }
    }
}
