//! Stores that write nothing: a query never changes its inputs.

use std::future::ready;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result,
};

use super::foreign_store::ForeignStore;
use super::pinned::PinnedStore;
use super::routed::RoutedStore;
use crate::Error;

/// The reads of a store; [`read_only_stores`] makes an `ObjectStore` of them.
#[async_trait]
pub(super) trait Reads: Send + Sync {
    /// Answers `get_opts`.
    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult>;
    /// Answers `get_ranges`.
    async fn ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>>;
    /// Answers `list`.
    fn files(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>>;
    /// Answers `list_with_delimiter`.
    async fn folder(&self, prefix: Option<&Path>) -> Result<ListResult>;
}

/// The refusal of an operation.
pub(super) fn read_only(operation: &str) -> StoreError {
    let error = Error::storage(format!("cannot {operation}: tables are read-only"));
    StoreError::NotSupported { source: Box::new(error) }
}

/// Implements `ObjectStore` for types that are [`Reads`].
macro_rules! read_only_stores {
    ($($store:ty),*) => {$(
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl ObjectStore for $store {
            async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
                self.get(location, options).await
            }

            async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
                self.ranges(at, ranges).await
            }

            fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
                self.files(prefix)
            }

            fn list_with_offset(
                &self,
                prefix: Option<&Path>,
                offset: &Path,
            ) -> BoxStream<'static, Result<ObjectMeta>> {
                let offset = offset.clone();
                let is_after = move |meta: &ObjectMeta| ready(meta.location > offset);
                self.files(prefix).try_filter(is_after).boxed()
            }

            async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
                self.folder(prefix).await
            }

            async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
                Err(read_only("write a file"))
            }

            async fn put_multipart_opts(
                &self,
                _: &Path,
                _: PutMultipartOptions,
            ) -> Result<Box<dyn MultipartUpload>> {
                Err(read_only("write a file"))
            }

            fn delete_stream(
                &self,
                locations: BoxStream<'static, Result<Path>>,
            ) -> BoxStream<'static, Result<Path>> {
                locations.map(|_| Err(read_only("delete a file"))).boxed()
            }

            async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
                Err(read_only("copy a file"))
            }

            async fn rename_opts(&self, _: &Path, _: &Path, _: RenameOptions) -> Result<()> {
                Err(read_only("rename a file"))
            }
        }
    )*};
}

read_only_stores!(ForeignStore, PinnedStore, RoutedStore);
