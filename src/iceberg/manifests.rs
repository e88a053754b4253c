//! The live files of a snapshot, from its manifest list and manifests, read side by side.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use iceberg::spec::{
    DataContentType, Manifest, ManifestContentType, ManifestEntryRef, ManifestFile, ManifestList,
    ManifestStatus, Snapshot, TableMetadata,
};
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::task::JoinHandle;

use super::partition_names::{Sources, sources, with_plain_names};
use crate::bounds::MANIFEST;
use crate::formats::avro::vetted;
use crate::panics::caught;
use crate::runtime::Runtimes;
use crate::storage::RoutedStore;
use crate::{Error, Result};

/// Manifests that are fetched and decoded at the same time.
const CONCURRENT_MANIFESTS: usize = 16;

/// Items of lists as which an entry counts, by the memory that it takes.
const ENTRY_ITEMS: u64 = 16;

/// One live entry of a manifest, with the values inherited from the manifest list.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The manifest's entry.
    pub entry: ManifestEntryRef,
    /// The data sequence number.
    pub sequence: i64,
    /// The snapshot that added the file.
    pub added_by: i64,
    /// The partition spec of the manifest.
    pub spec: i32,
}

impl Entry {
    /// Returns true if it is a data file, not a delete file.
    pub fn is_data(&self) -> bool {
        self.entry.content_type() == DataContentType::Data
    }
}

/// The entries of a snapshot that are live.
///
/// # Errors
/// `Data` where a manifest cannot be decoded, is encrypted or is gone (the snapshot expired);
/// storage errors as they are.
pub async fn live_entries(
    store: &Arc<dyn ObjectStore>,
    metadata: &TableMetadata,
    snapshot: &Snapshot,
) -> Result<Vec<Entry>> {
    let list = manifest_list(store, metadata, snapshot).await?;
    read_all(store, metadata, list).await
}

/// The entries that a snapshot itself added.
///
/// # Errors
/// As [`live_entries`].
pub async fn added_entries(
    store: &Arc<dyn ObjectStore>,
    metadata: &TableMetadata,
    snapshot: &Snapshot,
) -> Result<Vec<Entry>> {
    let mut list = manifest_list(store, metadata, snapshot).await?;
    list.retain(|manifest| manifest.added_snapshot_id == snapshot.snapshot_id());
    let mut entries = read_all(store, metadata, list).await?;
    entries.retain(|entry| {
        entry.entry.status() == ManifestStatus::Added && entry.added_by == snapshot.snapshot_id()
    });
    Ok(entries)
}

async fn read_all(
    store: &Arc<dyn ObjectStore>,
    metadata: &TableMetadata,
    list: Vec<ManifestFile>,
) -> Result<Vec<Entry>> {
    let sources = Arc::new(sources(metadata));
    let read = |manifest: ManifestFile| {
        let (store, sources) = (Arc::clone(store), Arc::clone(&sources));
        Box::pin(async move { read_manifest(&store, sources, manifest).await })
    };
    let manifests: Vec<Vec<Entry>> =
        futures::stream::iter(list).map(read).buffered(CONCURRENT_MANIFESTS).try_collect().await?;
    Ok(manifests.into_iter().flatten().collect())
}

/// The manifests of a snapshot.
///
/// # Errors
/// As [`live_entries`].
pub async fn manifest_list(
    store: &Arc<dyn ObjectStore>,
    metadata: &TableMetadata,
    snapshot: &Snapshot,
) -> Result<Vec<ManifestFile>> {
    let uri = snapshot.manifest_list();
    if snapshot.encryption_key_id().is_some() {
        return Err(Error::data(format!(
            "the manifest list {uri} is encrypted; encrypted tables are not supported"
        )));
    }
    let bytes = vetted(&fetch(store, uri).await?, ENTRY_ITEMS)
        .map_err(|error| error.with_context("manifest list", uri))?;
    let version = metadata.format_version();
    let list = decoded(uri, || ManifestList::parse_with_version(&bytes, version))?;
    Ok(list.consume_entries().into_iter().collect())
}

async fn read_manifest(
    store: &Arc<dyn ObjectStore>,
    sources: Arc<Sources>,
    file: ManifestFile,
) -> Result<Vec<Entry>> {
    let has_live = file.has_added_files() || file.has_existing_files();
    if !has_live {
        return Ok(Vec::new());
    }
    if file.key_metadata.as_ref().is_some_and(|key| !key.is_empty()) {
        return Err(Error::data(format!(
            "the manifest {} is encrypted; encrypted tables are not supported",
            file.manifest_path
        )));
    }
    let bytes = fetch(store, &file.manifest_path).await?;
    let uri = file.manifest_path.clone();
    // Decoding Avro takes the processor, so it goes where decoding goes.
    let task: JoinHandle<Result<Vec<Entry>>> = Runtimes::current()?.cpu().spawn(async move {
        let bytes = vetted(&bytes, ENTRY_ITEMS)
            .map_err(|error| error.with_context("manifest", &file.manifest_path))?;
        let renamed = with_plain_names(&bytes, &sources);
        let bytes = renamed.as_deref().unwrap_or(&bytes);
        let manifest = decoded(&file.manifest_path, || Manifest::parse_avro(bytes))?;
        let (entries, _) = manifest.into_parts();
        entries.into_iter().filter(|entry| entry.is_alive()).map(|e| inherit(&file, e)).collect()
    });
    task.await.map_err(|stopped| {
        Error::data(format!(
            "{uri} was not decoded to its end; if other programs read it, please report it"
        ))
        .with_source(stopped)
    })?
}

/// An entry with the sequence number and the snapshot that it inherits:
/// <https://iceberg.apache.org/spec/#sequence-number-inheritance>.
fn inherit(file: &ManifestFile, entry: ManifestEntryRef) -> Result<Entry> {
    let is_new = entry.status() == ManifestStatus::Added || file.sequence_number == 0;
    let inherited = is_new.then_some(file.sequence_number);
    let sequence = entry.sequence_number().or(inherited).ok_or_else(|| {
        Error::data(format!(
            "the manifest {} has an existing file without a sequence number: {}",
            file.manifest_path,
            entry.file_path()
        ))
    })?;
    let is_delete = entry.content_type() != DataContentType::Data;
    if is_delete != (file.content == ManifestContentType::Deletes) {
        return Err(Error::data(format!(
            "the manifest {} mixes data files and delete files",
            file.manifest_path
        )));
    }
    let added_by = entry.snapshot_id().unwrap_or(file.added_snapshot_id);
    Ok(Entry { entry, sequence, added_by, spec: file.partition_spec_id })
}

async fn fetch(store: &Arc<dyn ObjectStore>, uri: &str) -> Result<bytes::Bytes> {
    let missing = |error| match error {
        object_store::Error::NotFound { .. } => Error::data(format!(
            "{uri} is gone: the snapshot has expired; choose a snapshot that the table still has (SELECT * FROM \
             …\"$snapshots\"), or refresh the query"
        )),
        other => Error::from(other).with_context("file", uri),
    };
    let found = store.get(&RoutedStore::path_of(uri)?).await.map_err(missing)?;
    MANIFEST.check(found.meta.size, &format!("{uri} has"))?;
    Ok(found.bytes().await?)
}

/// Runs a decoder of Avro, which panics where a schema has a type whose name is none.
fn decoded<T>(uri: &str, decode: impl FnOnce() -> iceberg::Result<T>) -> Result<T> {
    let failed = |message: &str| Error::data(format!("{uri} cannot be decoded: {message}"));
    caught(|| decode().map_err(|error| failed(error.message()).with_source(error)), failed)
}
