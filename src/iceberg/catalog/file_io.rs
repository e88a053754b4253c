//! The storage traits of the `iceberg` crate over our one storage stack.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use iceberg::io::{
    FileMetadata, FileRead, FileWrite, InputFile, OutputFile, Storage, StorageConfig,
    StorageFactory,
};
use iceberg::{Error as IcebergError, ErrorKind as IcebergErrorKind};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::access::StorageAccess;
use crate::Error;
use crate::bounds::TABLE_METADATA;
use crate::storage::RoutedStore;

/// Makes [`RoutedStorage`]; the properties that the crate hands over are not used, since they are
/// the catalog's, and the access knows the table's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoutedStorageFactory {
    access: StorageAccess,
}

impl RoutedStorageFactory {
    /// Opens a store of its own.
    pub fn new(access: StorageAccess) -> Self {
        Self { access }
    }
}

#[typetag::serde(name = "TensorqueryRoutedStorageFactory")]
impl StorageFactory for RoutedStorageFactory {
    fn build(&self, _: &StorageConfig) -> iceberg::Result<Arc<dyn Storage>> {
        let store = self.access.open().map_err(into_iceberg)?;
        Ok(Arc::new(RoutedStorage { access: self.access.clone(), store }))
    }
}

/// Read-only files by their full URIs.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "StorageAccess", into = "StorageAccess")]
pub struct RoutedStorage {
    access: StorageAccess,
    store: Arc<RoutedStore>,
}

impl From<RoutedStorage> for StorageAccess {
    fn from(storage: RoutedStorage) -> Self {
        storage.access
    }
}

impl TryFrom<StorageAccess> for RoutedStorage {
    type Error = Error;

    fn try_from(access: StorageAccess) -> Result<Self, Error> {
        let store = access.open()?;
        Ok(Self { access, store })
    }
}

impl fmt::Debug for RoutedStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RoutedStorage({:?})", self.store)
    }
}

#[async_trait]
#[typetag::serde(name = "TensorqueryRoutedStorage")]
impl Storage for RoutedStorage {
    async fn exists(&self, path: &str) -> iceberg::Result<bool> {
        match self.store.head(&location(path)?).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(into_iceberg(error.into())),
        }
    }

    async fn metadata(&self, path: &str) -> iceberg::Result<FileMetadata> {
        let meta = self.store.head(&location(path)?).await;
        Ok(FileMetadata { size: meta.map_err(|error| into_iceberg(error.into()))?.size })
    }

    async fn read(&self, path: &str) -> iceberg::Result<Bytes> {
        let failed = |error: object_store::Error| into_iceberg(error.into());
        let found = self.store.get(&location(path)?).await.map_err(failed)?;
        let checked = TABLE_METADATA.check(found.meta.size, &format!("{path} has"));
        checked.map_err(into_iceberg)?;
        found.bytes().await.map_err(failed)
    }

    async fn reader(&self, path: &str) -> iceberg::Result<Box<dyn FileRead>> {
        Ok(Box::new(Reader { store: Arc::clone(&self.store), location: location(path)? }))
    }

    async fn write(&self, path: &str, _: Bytes) -> iceberg::Result<()> {
        Err(read_only("write", path))
    }

    async fn writer(&self, path: &str) -> iceberg::Result<Box<dyn FileWrite>> {
        Err(read_only("write", path))
    }

    async fn delete(&self, path: &str) -> iceberg::Result<()> {
        Err(read_only("delete", path))
    }

    async fn delete_prefix(&self, path: &str) -> iceberg::Result<()> {
        Err(read_only("delete", path))
    }

    async fn delete_stream(&self, _: BoxStream<'static, String>) -> iceberg::Result<()> {
        Err(read_only("delete", "files"))
    }

    fn new_input(&self, path: &str) -> iceberg::Result<InputFile> {
        Ok(InputFile::new(Arc::new(self.clone()), path.to_owned()))
    }

    fn new_output(&self, path: &str) -> iceberg::Result<OutputFile> {
        Err(read_only("write", path))
    }
}

/// One file, read in ranges.
struct Reader {
    store: Arc<RoutedStore>,
    location: Path,
}

#[async_trait]
impl FileRead for Reader {
    async fn read(&self, range: Range<u64>) -> iceberg::Result<Bytes> {
        let read = self.store.get_range(&self.location, range).await;
        read.map_err(|error| into_iceberg(error.into()))
    }
}

fn location(uri: &str) -> Result<Path, BadPath> {
    RoutedStore::path_of(uri).map_err(BadPath)
}

/// A path that is none, on its way to either kind of error.
struct BadPath(Error);

impl From<BadPath> for IcebergError {
    fn from(error: BadPath) -> Self {
        into_iceberg(error.0)
    }
}

impl From<BadPath> for object_store::Error {
    fn from(error: BadPath) -> Self {
        Self::Generic { store: "RoutedStore", source: Box::new(error.0) }
    }
}

/// Carries our error through the crate; [`iceberg_error`](super::iceberg_error) takes it out again.
fn into_iceberg(error: Error) -> IcebergError {
    IcebergError::new(IcebergErrorKind::Unexpected, error.message().to_owned()).with_source(error)
}

fn read_only(operation: &str, path: &str) -> IcebergError {
    IcebergError::new(
        IcebergErrorKind::FeatureUnsupported,
        format!("cannot {operation} {path}: tables are read-only"),
    )
}
