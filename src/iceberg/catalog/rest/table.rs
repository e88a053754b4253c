//! Loading a table from a REST catalog, and asking it for new credentials.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::access::StorageAccess;
use super::super::connect::on_io;
use super::super::metadata::parse_metadata;
use super::super::registered::LoadedTable;
use super::client::{RestClient, parse, texts};
use super::http::{Refusal, encode};
use super::trust::{of_answer, servers_of};
use crate::runtime::PerProcess;
use crate::storage::{AccessConfig, Refresh, RoutedStore, lay_over, shown};
use crate::{Error, Result};

/// An endpoint that a catalog may list (`endpoints` of its configuration).
const CREDENTIALS: &str = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials";

/// Where a table's own configuration may say that new credentials are: Java's names, per store.
const CREDENTIALS_AT: &[&str] = &[
    "client.refresh-credentials-endpoint",
    "gcs.oauth2.refresh-credentials-endpoint",
    "adls.refresh-credentials-endpoint",
];

/// Whom a process asks for a table's credentials. Holds the catalog's secrets.
#[derive(Clone, Serialize, Deserialize)]
pub(in super::super) struct RestTable {
    properties: BTreeMap<String, String>,
    namespace: Vec<String>,
    name: String,
    /// The table's configuration from when it was loaded. A later answer may have credentials
    /// alone.
    #[serde(default)]
    config: BTreeMap<String, String>,
    /// The URL of new credentials where the table's configuration tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    credentials_at: Option<String>,
}

impl fmt::Debug for RestTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestTable")
            .field("properties", &shown(&self.properties))
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish()
    }
}

/// `LoadTableResult` of the specification; the metadata is parsed by the `iceberg` crate.
#[derive(Deserialize)]
struct LoadAnswer {
    #[serde(default, rename = "metadata-location")]
    metadata_location: Option<String>,
    metadata: Value,
    #[serde(default)]
    config: Option<BTreeMap<String, Value>>,
    #[serde(default, rename = "storage-credentials")]
    credentials: Option<Vec<Credential>>,
}

/// The parts of a table's answer that hold credentials.
#[derive(Deserialize)]
struct CredentialsAnswer {
    #[serde(default)]
    config: Option<BTreeMap<String, Value>>,
    #[serde(default, rename = "storage-credentials")]
    credentials: Option<Vec<Credential>>,
}

#[derive(Deserialize)]
struct Credential {
    prefix: String,
    #[serde(default)]
    config: BTreeMap<String, Value>,
}

/// Loads a table with the credentials for its files.
pub(super) async fn load(
    client: &RestClient,
    namespace: &[String],
    name: &str,
) -> Result<LoadedTable, Refusal> {
    let url = client.table_url(namespace, name);
    let asked = match client.properties().get("snapshot-loading-mode") {
        Some(mode) => format!("{url}?snapshots={}", encode(&mode.to_ascii_lowercase())),
        None => url.clone(),
    };
    let answer: LoadAnswer = parse(&client.get(&asked).await?, &url)?;
    let metadata = serde_json::to_vec(&answer.metadata).map_err(|error| {
        Error::data("the catalog's table metadata is no JSON").with_source(error)
    })?;
    let place = answer.metadata_location.as_deref().unwrap_or(&url);
    let (metadata, defaults) = parse_metadata(&metadata, place)?;
    let table_config = of_answer(texts(answer.config.unwrap_or_default()));
    let credentials_at = CREDENTIALS_AT
        .iter()
        .find_map(|name| Some((name, table_config.get(*name)?)))
        .map(|(name, url)| client.resolve(name, url))
        .transpose()?;
    let config = access_config(client, table_config.clone(), answer.credentials)?;
    let table = RestTable {
        properties: client.given().clone(),
        namespace: namespace.to_vec(),
        name: name.to_owned(),
        config: table_config,
        credentials_at,
    };
    let access = StorageAccess::of_rest(config.clone(), table.clone());
    let refresh = Arc::new(RestRefresh::new(table, Some(client.clone())));
    let store = Arc::new(RoutedStore::new(config, Some(refresh)));
    let (metadata_location, metadata) = (answer.metadata_location, Arc::new(metadata));
    Ok(LoadedTable { metadata_location, metadata, defaults, store, access })
}

/// The catalog's properties, the table's over them, and credentials by prefix.
///
/// # Errors
///
/// `Config`, for a server of files that the user does not trust.
fn access_config(
    client: &RestClient,
    mut table: BTreeMap<String, String>,
    credentials: Option<Vec<Credential>>,
) -> Result<AccessConfig> {
    let mut credentials: Vec<(String, BTreeMap<String, String>)> = credentials
        .unwrap_or_default()
        .into_iter()
        .map(|credential| (credential.prefix, of_answer(texts(credential.config))))
        .collect();
    if let Err(error) = client.trust().check_files(&table) {
        if credentials.is_empty() {
            return Err(error);
        }
        // The server is for the files that the catalog gives credentials for, and for no others.
        for (property, address) in servers_of(&mut table) {
            for (_, given) in &mut credentials {
                given.entry(property.clone()).or_insert_with(|| address.clone());
            }
        }
    }
    for (_, given) in &credentials {
        let mut said = table.clone();
        said.extend(given.clone());
        client.trust().check_files(&said)?;
    }
    let mut properties = client.properties().clone();
    lay_over(&mut properties, &table);
    let mut config = AccessConfig::new(&properties);
    config.credentials = credentials;
    Ok(config)
}

/// Asks a REST catalog for the credentials of one table: by the endpoint for that where the catalog
/// has one, else by loading the table again.
pub(in super::super) struct RestRefresh {
    table: RestTable,
    client: PerProcess<RestClient>,
}

impl RestRefresh {
    /// With a connection that is open already, or without.
    pub(in super::super) fn new(table: RestTable, client: Option<RestClient>) -> Self {
        let client = client.map_or_else(PerProcess::default, PerProcess::of);
        Self { table, client }
    }

    async fn client(&self) -> Result<RestClient> {
        let properties = self.table.properties.clone();
        let connect = on_io(async move { RestClient::connect(&properties).await });
        self.client.get_or_make(connect).await
    }
}

#[async_trait]
impl Refresh for RestRefresh {
    async fn refresh(&self) -> Result<AccessConfig> {
        let client = self.client().await?;
        let table = self.table.clone();
        on_io(async move { ask(&client, &table).await }).await
    }
}

async fn ask(client: &RestClient, table: &RestTable) -> Result<AccessConfig> {
    let url = client.table_url(&table.namespace, &table.name);
    let endpoint = match &table.credentials_at {
        Some(url) => Some(url.clone()),
        None => client.has_endpoint(CREDENTIALS).then(|| format!("{url}/credentials")),
    };
    if let Some(endpoint) = endpoint {
        match client.get(&endpoint).await {
            Ok(body) => {
                let answer: CredentialsAnswer = parse(&body, &endpoint)?;
                if answer.credentials.as_ref().is_some_and(|given| !given.is_empty()) {
                    let mut config = table.config.clone();
                    config.extend(of_answer(texts(answer.config.unwrap_or_default())));
                    return access_config(client, config, answer.credentials);
                }
            }
            // It has no such endpoint after all.
            Err(Refusal::NotFound { .. } | Refusal::Unsupported(_)) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    match client.get(&url).await {
        Ok(body) => {
            let answer: CredentialsAnswer = parse(&body, &url)?;
            let config = of_answer(texts(answer.config.unwrap_or_default()));
            access_config(client, config, answer.credentials)
        }
        Err(Refusal::NotFound { .. }) => Err(Error::storage(format!(
            "the table {} is no longer in the catalog, which gives no credentials for its files",
            super::super::error::dotted(&table.namespace, &table.name)
        ))),
        Err(refusal) => Err(refusal.into()),
    }
}
