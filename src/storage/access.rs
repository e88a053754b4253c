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
    /// Properties added for URIs that start with the prefix; the longest prefix wins.
    #[serde(default)]
    pub credentials: Vec<(String, BTreeMap<String, String>)>,
}

impl AccessConfig {
    /// Access by properties alone. Properties of no store are left out: a worker needs no password
    /// of a catalog.
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

    /// All properties for a URI; credentials' properties override the table's.
    pub(super) fn properties_of(&self, uri: &str) -> BTreeMap<String, String> {
        let mut properties = self.properties.clone();
        if let Some((_, given)) = self.credentials_of(uri) {
            lay_over(&mut properties, given);
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

/// The properties of one credential, and its expiry.
const CREDENTIALS: &[&[&str]] = &[
    &[
        "s3.access-key-id",
        "s3.secret-access-key",
        "s3.session-token",
        "s3.session-token-expires-at-ms",
    ],
    &["client.access-key-id", "client.secret-access-key", "client.session-token"],
    &["gcs.oauth2.token", "gcs.oauth2.token-expires-at"],
];

/// Puts `over` into `under`; a credential is replaced as a whole, since the token of one key does
/// not go with another.
pub(crate) fn lay_over(under: &mut BTreeMap<String, String>, over: &BTreeMap<String, String>) {
    for names in CREDENTIALS {
        if names.iter().any(|name| over.contains_key(*name)) {
            under.retain(|name, _| !names.contains(&name.as_str()));
        }
    }
    under.extend(over.iter().map(|(name, value)| (name.clone(), value.clone())));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_credential_is_replaced_as_a_whole() {
        let mut under = map(&[
            ("s3.access-key-id", "user"),
            ("s3.secret-access-key", "user"),
            ("s3.session-token", "user"),
            ("s3.region", "user"),
            ("gcs.oauth2.token", "user"),
        ]);
        let vended = map(&[("s3.access-key-id", "vended"), ("s3.secret-access-key", "vended")]);
        lay_over(&mut under, &vended);
        let mut expected = vended;
        expected.extend(map(&[("s3.region", "user"), ("gcs.oauth2.token", "user")]));
        assert_eq!(under, expected);
    }
}
