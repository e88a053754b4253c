//! A catalog as a session knows it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use iceberg::spec::TableMetadata;

use super::access::StorageAccess;
use super::connect::{Client, DeltaPlace, connect, on_io};
use super::error::dotted;
use super::properties::{CatalogType, catalog_type, name_of};
use crate::iceberg::Defaults;
use crate::runtime::PerProcess;
use crate::storage::{RoutedStore, StorageOptions, note_secrets, redact, shown};
use crate::{Error, ErrorKind, Result, list_names, suggestion};

/// A catalog's name and properties, and the connection, made when it is first used and made again
/// in a forked process.
///
/// Properties are those of pyiceberg. `type` is one of:
/// - `rest`: `uri`; `warehouse`, `prefix`; `credential` (with `scope`, `oauth2-server-uri`,
///   `audience`, `resource`) or `token`; `header.*`; `rest.sigv4-enabled`.
/// - `sql` or `jdbc`: `uri` (`sqlite:///relative`, `sqlite:////absolute`, `postgresql://…`). A
///   database keeps several catalogs by name: this one's name, or `catalog_name`, or the only one
///   there is.
/// - `glue`: `glue.*`, `client.*`. `hive`: `uri` (`thrift://host:port`, several separated by
///   commas). `s3tables`: `s3tables.warehouse` (the ARN of the table bucket), `s3tables.*`.
/// - `in-memory` or `memory`: the tables that the properties name, `table.<namespace>.<name>` being
///   the location of a `metadata.json`.
/// - `unity`: `uri`, `catalog` (the name on the server); `token` or `credential` as of `rest`;
///   `header.*`. Its tables are Delta's.
///
/// Without a type, the scheme of `uri` decides.
pub struct IcebergCatalog {
    name: String,
    kind: CatalogType,
    properties: Arc<BTreeMap<String, String>>,
    /// Of the stores of Delta tables.
    options: Arc<StorageOptions>,
    client: PerProcess<Arc<dyn Client>>,
}

/// A table as its catalog told it.
#[derive(Clone, Debug)]
pub struct LoadedTable {
    /// Where the metadata was read; None where a REST catalog keeps it to itself.
    pub metadata_location: Option<String>,
    /// Schemas, snapshots, properties.
    pub metadata: Arc<TableMetadata>,
    /// The defaults of columns that its schemas lack.
    pub defaults: Defaults,
    /// The table's files by their URIs; renews credentials that end.
    pub store: Arc<RoutedStore>,
    /// How another process opens the same files.
    pub access: StorageAccess,
}

impl IcebergCatalog {
    /// Checks the properties; connects to nothing.
    ///
    /// # Errors
    ///
    /// `Config`, for an empty name, an unknown `type` (with the nearest name), and missing, unknown
    /// or unsupported properties; never a value of a secret.
    pub fn try_new(name: &str, properties: BTreeMap<String, String>) -> Result<Self> {
        if name.trim().is_empty() {
            return Err(Error::config("a catalog needs a name"));
        }
        note_secrets(&properties);
        let kind = catalog_type(&properties)?;
        let (name, client) = (name.to_owned(), PerProcess::default());
        let (properties, options) = (Arc::new(properties), Arc::default());
        Ok(Self { name, kind, properties, options, client })
    }

    /// With the user's options of the stores of Delta tables.
    #[must_use]
    pub fn with_options(self, options: StorageOptions) -> Self {
        Self { options: Arc::new(options), ..self }
    }

    /// The name it was registered with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The properties as they were given, secrets included.
    pub fn properties(&self) -> &BTreeMap<String, String> {
        &self.properties
    }

    /// The namespaces directly below `parent`, each with all its names and sorted; an empty parent
    /// is the root.
    ///
    /// # Errors
    ///
    /// `Storage` where the catalog does not answer; `TableNotFound` for an unknown parent, where
    /// the catalog knows nested namespaces.
    pub async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        let client = self.client().await?;
        let parent = parent.to_vec();
        let listed = on_io(async move { client.list_namespaces(&parent).await }).await;
        let mut names = listed.map_err(|error| self.describe(error))?;
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The names of a namespace's tables, sorted. Loads none of them.
    ///
    /// # Errors
    ///
    /// `Storage` where the catalog does not answer; `TableNotFound` for an unknown namespace.
    pub async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        let client = self.client().await?;
        let wanted = namespace.to_vec();
        let listed = on_io(async move { client.list_tables(&wanted).await }).await;
        let mut names = listed.map_err(|error| self.describe(error))?;
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// A table as it is now: asked for on every call.
    ///
    /// # Errors
    ///
    /// `TableNotFound` with the names that are near, `Storage` where the catalog or its metadata
    /// file cannot be read, `Data` for metadata that is none.
    pub async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        let client = self.client().await?;
        let (wanted, table) = (namespace.to_vec(), name.to_owned());
        let found = on_io(async move {
            let found = client.load_table(&wanted, &table).await;
            with_candidates(found, &*client, &wanted, &table).await
        });
        found.await.map_err(|error| self.describe(error))
    }

    /// Returns true if its tables are Delta's.
    pub fn keeps_delta(&self) -> bool {
        self.kind == CatalogType::Unity
    }

    /// The place of a Delta table as it is now: asked for on every call.
    ///
    /// # Errors
    ///
    /// As [`load_table`](Self::load_table); `Config` for a table of another format, and for a view.
    pub async fn delta_place(&self, namespace: &[String], name: &str) -> Result<DeltaPlace> {
        let client = self.client().await?;
        let (wanted, table) = (namespace.to_vec(), name.to_owned());
        let found = on_io(async move {
            let found = client.delta_place(&wanted, &table).await;
            with_candidates(found, &*client, &wanted, &table).await
        });
        found.await.map_err(|error| self.describe(error))
    }

    async fn client(&self) -> Result<Arc<dyn Client>> {
        let (kind, name) = (self.kind, self.name.clone());
        let (properties, options) = (Arc::clone(&self.properties), Arc::clone(&self.options));
        let connect = on_io(async move { connect(kind, &name, &properties, &options).await });
        self.client.get_or_make(connect).await.map_err(|error| self.describe(error))
    }

    /// Adds the catalog's name, and removes secrets that a server or a driver may have repeated.
    fn describe(&self, error: Error) -> Error {
        let text = error.to_string();
        let safe = redact(&text, &self.properties);
        let error = match safe == text {
            true => error,
            false => Error::new(error.kind(), safe),
        };
        error.with_context("catalog", &self.name)
    }
}

impl fmt::Debug for IcebergCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IcebergCatalog")
            .field("name", &self.name)
            .field("type", &name_of(self.kind))
            .field("properties", &shown(&self.properties))
            .finish()
    }
}

/// Adds existing names to the error about a table that is not there. A user without permission to
/// list sees the wanted name alone.
async fn with_candidates<T>(
    found: Result<T>,
    client: &dyn Client,
    namespace: &[String],
    name: &str,
) -> Result<T> {
    let error = match found {
        Err(error) if error.kind() == ErrorKind::TableNotFound => error,
        other => return other,
    };
    let not_found = |message: String| Err(Error::new(ErrorKind::TableNotFound, message));
    if let Ok(tables) = client.list_tables(namespace).await
        && !tables.is_empty()
    {
        let mut names: Vec<&str> = tables.iter().map(String::as_str).collect();
        names.sort_unstable();
        return not_found(format!(
            "unknown table {}{}; the tables of {} are {}",
            dotted(namespace, name),
            suggestion(name, names.iter().copied()),
            namespace.join("."),
            list_names(&names),
        ));
    }
    // Which of the names of the namespace is the first that is not there?
    for depth in 0..namespace.len() {
        let Ok(known) = client.list_namespaces(&namespace[..depth]).await else {
            return Err(error);
        };
        let wanted = &namespace[..=depth];
        if known.iter().any(|known| known == wanted) {
            continue;
        }
        let mut known: Vec<String> = known.iter().map(|names| names.join(".")).collect();
        known.sort_unstable();
        known.dedup();
        let wanted = wanted.join(".");
        let names: Vec<&str> = known.iter().map(String::as_str).collect();
        return not_found(format!(
            "unknown namespace {wanted} of the table {}{}; the namespaces are {}",
            dotted(namespace, name),
            suggestion(&wanted, names.iter().copied()),
            if names.is_empty() { "none".to_owned() } else { list_names(&names) },
        ));
    }
    Err(error)
}
