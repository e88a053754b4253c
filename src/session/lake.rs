//! Iceberg and Delta in a session: catalogs by name, tables loaded when a query names them, and
//! pinned then.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, PoisonError};

use object_store::ObjectStore;
use serde::{Deserialize, Serialize};

use super::delta::is_delta_kind;
use super::metadata_tables;
use super::registered::{Registered, TableKey};
use super::registry::Session;
use crate::catalog::open_lake;
use crate::formats::{PinnedVersion, TableFiles, TableMetadata};
use crate::iceberg::catalog::{IcebergCatalog, LoadedTable, StorageAccess, load_metadata};
use crate::iceberg::{LakeTable, TravelTo, load};
use crate::query::LakeName;
use crate::storage::{StorageOptions, StoreAccess};
use crate::{Error, ErrorKind, Result, list_names, suggestion};

/// Where an Iceberg or Delta table comes from: enough to ask for it again.
#[derive(Clone, Debug)]
pub struct LakeSource {
    /// Its catalog and name, or its metadata file.
    pub origin: LakeOrigin,
    /// The point in its history that was asked for.
    pub at: TravelTo,
    /// A predicate by which files are pruned, and no other.
    pub scan_filter: Option<String>,
}

/// A table's place.
#[derive(Clone, Serialize, Deserialize)]
pub enum LakeOrigin {
    /// In a registered catalog.
    Catalog {
        /// The catalog's name in the session.
        catalog: String,
        /// Its namespaces.
        namespace: Vec<String>,
        /// Its name.
        table: String,
    },
    /// Where the table of this name in the session comes from.
    Registered {
        /// The name.
        name: String,
    },
    /// A metadata file, or a table's directory.
    Path {
        /// Where.
        location: String,
        /// Properties for its files, secrets among them.
        properties: BTreeMap<String, String>,
    },
    /// The directory of a Delta table.
    Delta {
        /// Where.
        location: String,
        /// How its store is reached.
        access: StoreAccess,
    },
}

impl std::fmt::Debug for LakeOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Catalog { catalog, namespace, table } => {
                write!(f, "{catalog}.{}.{table}", namespace.join("."))
            }
            Self::Registered { name } => f.write_str(name),
            Self::Path { location, .. } | Self::Delta { location, .. } => f.write_str(location),
        }
    }
}

/// The changes that a refresh found in one table.
#[derive(Clone, Debug)]
pub struct LakeChange {
    /// The table's name in the query.
    pub table: String,
    /// The snapshot before; None where the table had none.
    pub before: Option<i64>,
    /// The snapshot now.
    pub after: Option<i64>,
    /// Data files that came.
    pub files_added: usize,
    /// Data files that went.
    pub files_removed: usize,
    /// Delete files that came.
    pub deletes_added: usize,
    /// Delete files that went.
    pub deletes_removed: usize,
}

impl LakeChange {
    fn between(table: &str, before: &dyn TableMetadata, after: &dyn TableMetadata) -> Self {
        let count = |of: &[String], other: &[String]| {
            let other: HashSet<&String> = other.iter().collect();
            of.iter().filter(|name| !other.contains(name)).count()
        };
        let (data, deletes) = before.names();
        let (data_now, deletes_now) = after.names();
        Self {
            table: table.to_owned(),
            before: before.pinned().version,
            after: after.pinned().version,
            files_added: count(&data_now, &data),
            files_removed: count(&data, &data_now),
            deletes_added: count(&deletes_now, &deletes),
            deletes_removed: count(&deletes, &deletes_now),
        }
    }
}

/// How another process opens the files of a table.
#[derive(Clone, Debug)]
pub enum LakeAccess {
    /// Of an Iceberg table.
    Iceberg(StorageAccess),
    /// Of a Delta table.
    Delta(StoreAccess),
}

/// A pinned table and where it came from.
#[derive(Clone, Debug)]
pub struct Lake {
    /// The pinned files.
    pub table: Arc<TableFiles>,
    /// How another process opens them.
    pub access: LakeAccess,
    /// Where it came from; None in a process that has it from a recipe.
    pub source: Option<LakeSource>,
}

impl Lake {
    /// The identity of its rows; see [`TableMetadata::identity`].
    ///
    /// # Errors
    /// As there.
    pub fn identity(&self) -> Result<String> {
        self.table.metadata.as_ref().map_or_else(|| Ok(String::new()), |lake| lake.identity())
    }

    /// The point in the table's history.
    pub fn pinned(&self) -> Option<PinnedVersion<'_>> {
        self.table.metadata.as_ref().map(|lake| lake.pinned())
    }
}

impl Session {
    /// Registers a catalog, replacing an earlier one of that name. Connects to nothing. `options` are
    /// those of the stores of Delta tables.
    ///
    /// # Errors
    /// `Config` for a name that is no SQL identifier, an unknown type and malformed properties.
    pub fn register_catalog(
        &self,
        name: &str,
        properties: BTreeMap<String, String>,
        options: StorageOptions,
    ) -> Result<()> {
        if name.trim().is_empty() || name.contains('.') {
            return Err(Error::config(format!(
                "the catalog name {name:?} must be one word without a dot"
            )));
        }
        let catalog = Arc::new(IcebergCatalog::try_new(name, properties)?.with_options(options));
        let mut catalogs = self.catalogs.write().unwrap_or_else(PoisonError::into_inner);
        catalogs.insert(name.to_owned(), Some(catalog));
        Ok(())
    }

    /// The names of the registered catalogs.
    pub fn catalogs(&self) -> Vec<String> {
        self.catalogs.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Returns true if a catalog of this name was registered, here or where this session's tables
    /// were pinned, or if it is the name of a metadata table.
    pub(super) fn is_catalog(&self, name: &str) -> bool {
        self.catalogs.read().unwrap_or_else(PoisonError::into_inner).contains_key(name)
            || self.is_delta_metadata(name)
    }

    /// The catalog of a name.
    ///
    /// # Errors
    /// `TableNotFound` with the nearest name.
    pub fn catalog(&self, name: &str) -> Result<Arc<IcebergCatalog>> {
        let catalogs = self.catalogs.read().unwrap_or_else(PoisonError::into_inner);
        match catalogs.get(name) {
            Some(Some(catalog)) => Ok(Arc::clone(catalog)),
            _ => {
                let names: Vec<&str> = catalogs.keys().map(String::as_str).collect();
                Err(Error::new(
                    ErrorKind::TableNotFound,
                    format!(
                        "no catalog {name:?} is registered{}; registered are {}",
                        suggestion(name, names.iter().copied()),
                        if names.is_empty() { "none".to_owned() } else { list_names(&names) }
                    ),
                ))
            }
        }
    }

    /// Registers one Iceberg or Delta table, at a point of its history, under a name of its own.
    ///
    /// # Errors
    /// As [`load`]; `TableNotFound` for an unknown catalog or table.
    pub async fn register_lake(&self, name: &str, source: LakeSource) -> Result<()> {
        self.check_name(name)?;
        let source = match &source.origin {
            LakeOrigin::Registered { name } => {
                let parts = vec![name.clone()];
                let named = LakeName { parts, at: source.at.clone(), key: name.clone() };
                LakeSource { scan_filter: source.scan_filter, ..self.source_of(&named)?.0 }
            }
            _ => source,
        };
        let lake = self.load_lake(name, &source).await?;
        self.bind(
            (super::registry::TABLE_SCHEMA.to_owned(), name.to_owned()),
            Registered::Lake(Arc::new(lake)),
        )
    }

    /// Loads and pins a table that a query names, or keeps the pin if the table has not changed.
    pub(super) async fn loaded(&self, name: &LakeName) -> Result<Registered> {
        if let [only] = name.parts.as_slice()
            && let Some(rows) = self.delta_metadata(only, &name.at).await?
        {
            return Ok(rows);
        }
        let (source, metadata_table) = self.source_of(name)?;
        let Some(kind) = metadata_table else {
            return Ok(Registered::Lake(Arc::new(self.load_lake(&name.key, &source).await?)));
        };
        if is_delta_kind(&kind) && self.keeps_delta(&source.origin) {
            return self.delta_rows(&name.key, &kind, &source).await;
        }
        if !metadata_tables::is_known(&kind)
            && let LakeOrigin::Catalog { catalog, namespace, .. } = &source.origin
            && let Some(whole) = name.parts.last()
        {
            // A table's own name may hold a dollar sign, too.
            let (catalog, namespace) = (catalog.clone(), namespace.clone());
            let origin = LakeOrigin::Catalog { catalog, namespace, table: whole.clone() };
            match self.load_lake(&name.key, &LakeSource { origin, ..source.clone() }).await {
                Err(error) if error.kind() == ErrorKind::TableNotFound => {}
                loaded => return Ok(Registered::Lake(Arc::new(loaded?))),
            }
        }
        let loaded = self.load_table(&source).await?;
        let (schema, batches) = metadata_tables::read(&loaded, &source.at, &kind).await?;
        Registered::of_batches(schema, batches)
    }

    /// Where a named table comes from, and the metadata table of it that is meant: `t$snapshots`.
    fn source_of(&self, name: &LakeName) -> Result<(LakeSource, Option<String>)> {
        let (Some(last), parents) = (name.parts.last(), &name.parts[..name.parts.len() - 1]) else {
            return Err(Error::query("a table name is empty"));
        };
        let (table, kind) = match last.rsplit_once('$') {
            Some((table, kind)) if !parents.is_empty() && !table.is_empty() => {
                (table.to_owned(), Some(kind.to_lowercase()))
            }
            _ => (last.clone(), None),
        };
        let Some((catalog, namespace)) = parents.split_first() else {
            // A table with a name of its own: its other points in history come from where it came
            // from.
            let key = (super::registry::TABLE_SCHEMA.to_owned(), table.clone());
            let registered = self.registered(&key);
            if let Some(Registered::Lake(lake)) = &registered
                && let Some(source) = &lake.source
            {
                return Ok((LakeSource { at: name.at.clone(), ..source.clone() }, None));
            }
            return Err(match registered {
                Some(_) => Error::query(format!(
                    "table {table:?} is no Iceberg or Delta table, so it has no history to travel in"
                )),
                None => self.table_not_found(&table),
            });
        };
        if namespace.is_empty() {
            return Err(Error::new(
                ErrorKind::TableNotFound,
                format!(
                    "{catalog}.{table} lacks its namespace: write FROM {catalog}.namespace.table"
                ),
            ));
        }
        let origin =
            LakeOrigin::Catalog { catalog: catalog.clone(), namespace: namespace.to_vec(), table };
        Ok((LakeSource { origin, at: name.at.clone(), scan_filter: None }, kind))
    }

    pub(super) async fn load_table(&self, source: &LakeSource) -> Result<LoadedTable> {
        match &source.origin {
            LakeOrigin::Catalog { catalog, namespace, table } => {
                self.catalog(catalog)?.load_table(namespace, table).await
            }
            LakeOrigin::Registered { name } => Err(self.table_not_found(name)),
            LakeOrigin::Path { location, properties } => {
                load_metadata(location, &StorageAccess::new(properties)).await
            }
            LakeOrigin::Delta { location, .. } => {
                Err(Error::config(format!("{location} is a Delta table and no Iceberg table")))
            }
        }
    }

    pub(super) async fn load_lake(&self, name: &str, source: &LakeSource) -> Result<Lake> {
        if let Some(place) = self.delta_place(&source.origin).await? {
            return self.load_delta(name, &place, source).await;
        }
        let loaded = self.load_table(source).await?;
        let store: Arc<dyn ObjectStore> = loaded.store.clone();
        let (spec, values) = load(
            &store,
            &loaded.metadata,
            &loaded.defaults,
            name,
            loaded.metadata_location.clone(),
            &source.at,
            source.scan_filter.clone(),
        )
        .await?;
        let lake = LakeTable::try_new(spec, values)?;
        let url = self.new_store_url()?;
        let table = open_lake(lake, store, url, Arc::clone(self.counters()), self.cache())?;
        let access = LakeAccess::Iceberg(loaded.access);
        Ok(Lake { table: Arc::new(table), access, source: Some(source.clone()) })
    }

    /// These tables, with Iceberg and Delta tables loaded again: at the requested point in history, or at the
    /// one in `at` for their names. Also returns the changes.
    pub(super) async fn reload(
        &self,
        tables: &[(TableKey, Registered)],
        at: &BTreeMap<String, (i64, i32)>,
    ) -> Result<(Vec<(TableKey, Registered)>, Vec<LakeChange>)> {
        let mut found = Vec::with_capacity(tables.len());
        let mut changes = Vec::new();
        for (key, registered) in tables {
            let Registered::Lake(lake) = registered else {
                found.push((key.clone(), registered.clone()));
                continue;
            };
            let Some(source) = &lake.source else {
                return Err(Error::config(format!("table {} cannot be loaded again here", key.1)));
            };
            let wanted = match at.get(&key.1) {
                Some((snapshot, schema)) => {
                    LakeSource { at: source.at.pinned(*snapshot, *schema), ..source.clone() }
                }
                None => source.clone(),
            };
            let mut reloaded = self.load_lake(&key.1, &wanted).await?;
            reloaded.source = Some(source.clone());
            if reloaded.identity()? == lake.identity()? {
                found.push((key.clone(), registered.clone()));
                continue;
            }
            if let (Some(before), Some(after)) = (&lake.table.metadata, &reloaded.table.metadata) {
                changes.push(LakeChange::between(&key.1, before.as_ref(), after.as_ref()));
            }
            found.push((key.clone(), Registered::Lake(Arc::new(reloaded))));
        }
        Ok((found, changes))
    }
}
