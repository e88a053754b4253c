//! A catalog that is its properties.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::access::StorageAccess;
use super::connect::Client;
use super::error::{no_namespace, not_found};
use super::metadata::load_known;
use super::registered::LoadedTable;
use crate::{Error, Result};

/// Tables by name: the property `table.<namespace>.<name>` is where the table's `metadata.json` is.
///
/// pyiceberg's catalog of this type is a database in the memory of its own process, which no other
/// one can read; this one gives names to tables that have no catalog.
pub(super) struct MemoryClient {
    tables: BTreeMap<(Vec<String>, String), String>,
    access: StorageAccess,
}

impl MemoryClient {
    pub(super) fn try_new(properties: &BTreeMap<String, String>) -> Result<Self> {
        let mut tables = BTreeMap::new();
        for (property, location) in properties {
            let Some(path) = property.strip_prefix("table.") else { continue };
            let mut names: Vec<String> = path.split('.').map(str::to_owned).collect();
            let name = names.pop().unwrap_or_default();
            if names.is_empty() || name.is_empty() || names.iter().any(String::is_empty) {
                return Err(Error::config(format!(
                    "the property {property:?} must be \"table.<namespace>.<name>\""
                )));
            }
            tables.insert((names, name), location.clone());
        }
        Ok(Self { tables, access: StorageAccess::new(properties) })
    }
}

#[async_trait]
impl Client for MemoryClient {
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        let depth = parent.len();
        let below = self.tables.keys().filter(|(namespace, _)| namespace.starts_with(parent));
        Ok(below
            .filter_map(|(namespace, _)| namespace.get(..=depth).map(<[String]>::to_vec))
            .collect())
    }

    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        if !self.tables.keys().any(|(known, _)| known.starts_with(namespace)) {
            return Err(no_namespace(namespace));
        }
        let inside = self.tables.keys().filter(|(known, _)| known == namespace);
        Ok(inside.map(|(_, name)| name.clone()).collect())
    }

    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        let key = (namespace.to_vec(), name.to_owned());
        let location = self.tables.get(&key).ok_or_else(|| not_found(namespace, name))?;
        load_known(location.clone(), self.access.open()?, self.access.clone()).await
    }
}
