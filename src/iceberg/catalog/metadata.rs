//! Reading `metadata.json`, by its own name or by the table's directory.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::GzDecoder;
use futures::TryStreamExt;
use iceberg::spec::TableMetadata;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::access::StorageAccess;
use super::connect::on_io;
use super::registered::LoadedTable;
use super::unsupported::{Schemas, embedded_manifests};
use crate::bounds::{TABLE_METADATA, check_json};
use crate::iceberg::Defaults;
use crate::storage::RoutedStore;
use crate::{Error, ErrorKind, Result};

/// A table without a catalog: by a metadata file (`….metadata.json`, compressed with gzip or not),
/// or by the table's directory, whose newest metadata is taken: the one that
/// `metadata/version-hint.text` names, else the one with the highest version. A relative local path
/// starts at the current directory.
///
/// # Errors
///
/// `TableNotFound` where there is no such file, `Data` for metadata that is none, `Storage` for a
/// store that does not answer, `Config` for a malformed location or property.
pub async fn load_metadata(location: &str, access: &StorageAccess) -> Result<LoadedTable> {
    let location = absolute(location)?;
    let access = access.clone();
    let store = access.open()?;
    on_io(async move {
        let location = match is_metadata_file(&location) {
            true => location,
            false => newest_metadata(&store, &location).await?,
        };
        load_through(location, store, access).await
    })
    .await
}

/// Reads the metadata at a location that a catalog told. That there is no such file is the
/// storage's failure, since the table is known.
pub(super) async fn load_known(
    location: String,
    store: Arc<RoutedStore>,
    access: StorageAccess,
) -> Result<LoadedTable> {
    load_through(location, store, access).await.map_err(|error| match error.kind() {
        ErrorKind::TableNotFound => Error::storage(format!("the table is known, but {error}")),
        _ => error,
    })
}

/// Reads the metadata at a location.
async fn load_through(
    location: String,
    store: Arc<RoutedStore>,
    access: StorageAccess,
) -> Result<LoadedTable> {
    let bytes = read(&store, &location).await?;
    let (metadata, defaults) = parse_metadata(&bytes, &location)?;
    let metadata = Arc::new(metadata);
    Ok(LoadedTable { metadata_location: Some(location), metadata, defaults, store, access })
}

/// Parses metadata, compressed or not. With the defaults that it leaves out.
pub(super) fn parse_metadata(bytes: &[u8], location: &str) -> Result<(TableMetadata, Defaults)> {
    let damaged = |error: String| {
        Error::data(format!("{location} is no Iceberg table metadata that can be read: {error}"))
    };
    let mut unpacked = Vec::new();
    let json = match bytes.starts_with(&[0x1f, 0x8b]) {
        true => {
            GzDecoder::new(bytes)
                .take(TABLE_METADATA.most() + 1)
                .read_to_end(&mut unpacked)
                .map_err(|error| damaged(error.to_string()))?;
            check_size(unpacked.len() as u64, location)?;
            &unpacked
        }
        false => bytes,
    };
    let located = |error: Error| error.with_context("metadata", location);
    check_json(json).map_err(located)?;
    // What is in no schema is passed over, so that this costs little.
    let schemas: Option<Schemas> = serde_json::from_slice(json).ok();
    let metadata = serde_json::from_slice(json).map_err(|error| {
        // The crate's own message does not say what it missed.
        if let Some(unsupported) = schemas.as_ref().and_then(Schemas::unsupported_type) {
            return located(unsupported);
        }
        let value = serde_json::from_slice::<serde_json::Value>(json).ok();
        if let Some(embedded) = value.as_ref().and_then(embedded_manifests) {
            return located(embedded);
        }
        match value.and_then(|value| value.get("format-version").cloned()) {
            Some(version) => damaged(format!("format version {version}: {error}")),
            None => damaged(error.to_string()),
        }
    })?;
    let defaults = schemas.as_ref().map(Schemas::defaults).transpose().map_err(located)?;
    Ok((metadata, defaults.unwrap_or_default()))
}

async fn read(store: &RoutedStore, location: &str) -> Result<Bytes> {
    let path = RoutedStore::path_of(location)?;
    let told = |error| match error {
        object_store::Error::NotFound { .. } => Error::new(
            ErrorKind::TableNotFound,
            format!("there is no table metadata at {location}: it does not exist or was removed"),
        ),
        other => Error::from(other).with_context("metadata", location),
    };
    let found = store.get(&path).await.map_err(told)?;
    check_size(found.meta.size, location)?;
    found.bytes().await.map_err(told)
}

fn check_size(bytes: u64, location: &str) -> Result<()> {
    TABLE_METADATA.check(bytes, &format!("the table metadata {location} has"))
}

/// A local path without a scheme may be relative.
fn absolute(location: &str) -> Result<String> {
    if location.is_empty() {
        return Err(Error::config(
            "a location is empty; name a metadata.json or a table's directory",
        ));
    }
    let has_scheme = location.split_once(':').is_some_and(|(scheme, rest)| {
        !scheme.contains('/') && (rest.starts_with("//") || scheme == "file")
    });
    if has_scheme || location.starts_with('/') {
        return Ok(location.to_owned());
    }
    let current = std::env::current_dir().map_err(|error| {
        Error::config(format!("{location:?} is relative, and the current directory is unknown"))
            .with_source(error)
    })?;
    Ok(format!("{}/{location}", current.display()))
}

fn is_metadata_file(location: &str) -> bool {
    location.ends_with(".json") || location.ends_with(".json.gz")
}

/// The newest metadata file of a table's directory.
async fn newest_metadata(store: &RoutedStore, table: &str) -> Result<String> {
    let table = table.trim_end_matches('/');
    let directory = format!("{table}/metadata");
    let hint = match read(store, &format!("{directory}/version-hint.text")).await {
        Ok(hint) => Some(String::from_utf8_lossy(&hint).trim().to_owned()),
        // Only tables without a catalog have one.
        Err(error) if error.kind() == ErrorKind::TableNotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(hint) = hint.filter(|hint| !hint.is_empty()) {
        let stem = match hint.bytes().all(|byte| byte.is_ascii_digit()) {
            true => format!("v{hint}"),
            false => hint.clone(),
        };
        for end in [".metadata.json", ".gz.metadata.json", ".metadata.json.gz", ""] {
            let location = format!("{directory}/{stem}{end}");
            if is_metadata_file(&location) && exists(store, &location).await? {
                return Ok(location);
            }
        }
        return Err(Error::data(format!(
            "{directory}/version-hint.text names version {hint:?}, whose metadata file is not there"
        )));
    }
    let listed: Vec<object_store::ObjectMeta> =
        store.list(Some(&RoutedStore::path_of(&directory)?)).try_collect().await.or_else(
            |error| match error {
                object_store::Error::NotFound { .. } => Ok(Vec::new()),
                other => Err(Error::from(other)),
            },
        )?;
    let newest = listed
        .iter()
        .filter_map(|meta| Some((version_of(&meta.location)?, meta.last_modified, &meta.location)))
        .max();
    match newest {
        Some((_, _, path)) => Ok(RoutedStore::uri_of(path)),
        None => Err(Error::new(
            ErrorKind::TableNotFound,
            format!(
                "there is no Iceberg table at {table}: {directory} has no metadata.json; name the \
                 metadata file or the table's directory"
            ),
        )),
    }
}

async fn exists(store: &RoutedStore, location: &str) -> Result<bool> {
    match store.head(&RoutedStore::path_of(location)?).await {
        Ok(_) => Ok(true),
        Err(object_store::Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The version in `v12.metadata.json` or `00012-<uuid>.gz.metadata.json`.
fn version_of(path: &Path) -> Option<u64> {
    let name = path.filename()?;
    if !name.ends_with(".metadata.json") && !name.ends_with(".metadata.json.gz") {
        return None;
    }
    let digits = name.strip_prefix('v').unwrap_or(name);
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}
