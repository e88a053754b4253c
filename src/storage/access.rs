//! How a table's files are reached: properties, and credentials for parts of its stores.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::options::shown;
use super::properties::is_storage_property;

/// Properties of a catalog or table, and the credentials that it gives for prefixes of URIs.
///
/// The serialised form holds secrets: it is for a worker process, and never for a checkpoint or a
/// log. The `Debug` form shows none.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessConfig {
    /// Iceberg's names (`s3.endpoint`, `gcs.oauth2.token`, `adls.account-name`, `client.region`, …)
    /// and those of `object_store` (`aws_endpoint`); others are no business of a store.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// What is added for URIs that start with the prefix; the longest prefix wins.
    #[serde(default)]
    pub credentials: Vec<(String, BTreeMap<String, String>)>,
}

impl AccessConfig {
    /// Access by properties alone, of which those of no store are left out: a worker needs no
    /// password of a catalog.
    pub fn new(properties: &BTreeMap<String, String>) -> Self {
        let properties = properties
            .iter()
            .filter(|(name, _)| is_storage_property(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        Self { properties, credentials: Vec::new() }
    }

    /// The longest prefix of credentials that `uri` starts with; empty where none does.
    pub(super) fn prefix_of(&self, uri: &str) -> &str {
        self.credentials_of(uri).map_or("", |(prefix, _)| prefix)
    }

    /// All properties for a URI, those of its credentials before those of the table.
    pub(super) fn properties_of(&self, uri: &str) -> BTreeMap<String, String> {
        let mut properties = self.properties.clone();
        if let Some((_, given)) = self.credentials_of(uri) {
            properties.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        properties
    }

    fn credentials_of(&self, uri: &str) -> Option<&(String, BTreeMap<String, String>)> {
        let uri = one_spelling(uri);
        self.credentials
            .iter()
            .filter(|(prefix, _)| uri.starts_with(&one_spelling(prefix)))
            .max_by_key(|(prefix, _)| prefix.len())
    }
}

/// `s3a` and `s3n` are Hadoop's names of `s3`.
fn one_spelling(uri: &str) -> String {
    for alias in ["s3a:", "s3n:"] {
        if let Some(rest) = uri.strip_prefix(alias) {
            return format!("s3:{rest}");
        }
    }
    uri.to_owned()
}

impl fmt::Debug for AccessConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let credentials: BTreeMap<&str, _> = self
            .credentials
            .iter()
            .map(|(prefix, given)| (prefix.as_str(), shown(given)))
            .collect();
        f.debug_struct("AccessConfig")
            .field("properties", &shown(&self.properties))
            .field("credentials", &credentials)
            .finish()
    }
}
