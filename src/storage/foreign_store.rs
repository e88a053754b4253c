//! A foreign file system as an object store.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, Error as StoreError, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    ObjectMeta, Result,
};

use super::foreign::{ForeignFile, ForeignFiles};
use super::list::names_below;
use super::location::describe;
use super::pin::FilePin;
use super::read_only::Reads;
use crate::Error;

/// The name of this store in errors of `object_store`.
const STORE: &str = "ForeignStore";
/// Bytes that are asked for at once where a whole file is read.
const CHUNK: u64 = 8 * 1024 * 1024;
/// Files that are looked up at the same time, if a listing does not give their identity.
const REQUESTS: usize = 16;

/// Reads a [`ForeignFiles`], and writes nothing.
///
/// Such a file system knows no condition on a read. So a file is looked up after each read: the
/// bytes belong to the version found then, unless the file changed twice.
pub(super) struct ForeignStore {
    files: Arc<dyn ForeignFiles>,
    root: Arc<str>,
}

impl ForeignStore {
    pub(super) fn new(files: Arc<dyn ForeignFiles>) -> Self {
        let root = files.root().into();
        Self { files, root }
    }

    async fn meta(&self, location: &Path) -> Result<ObjectMeta> {
        match self.files.info(location.as_ref()).await.map_err(failed)? {
            Some(file) => meta_of(file),
            None => Err(StoreError::NotFound {
                path: describe(&self.root, location),
                source: "there is no such file".into(),
            }),
        }
    }

    async fn read(&self, location: &Path, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let bytes = self.files.read(location.as_ref(), range.clone()).await.map_err(failed)?;
        let wanted = range.end - range.start;
        if bytes.len() as u64 != wanted {
            return Err(failed(Error::storage(format!(
                "the file system returned {} bytes of {} where the {wanted} from {} on were asked for",
                bytes.len(),
                describe(&self.root, location),
                range.start,
            ))));
        }
        Ok(bytes)
    }

    /// The pieces of a range of an unchanged file.
    fn stream(&self, before: ObjectMeta, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
        let store = Self { files: Arc::clone(&self.files), root: Arc::clone(&self.root) };
        let pin: FilePin = before.into();
        let start = range.start;
        stream::try_unfold((store, pin, start), move |(store, pin, at)| async move {
            if at >= range.end {
                return Ok(None);
            }
            let end = range.end.min(at + CHUNK);
            let bytes = store.read(&pin.location, at..end).await?;
            let now = store.meta(&pin.location).await?;
            if let Some(difference) = pin.difference(&now) {
                return Err(failed(Error::data(format!(
                    "file {} changed while it was read ({difference})",
                    describe(&store.root, &pin.location)
                ))));
            }
            Ok(Some((bytes, (store, pin, end))))
        })
        .boxed()
    }

    /// Files with their identity. Files in a listing without identities are looked up one by one,
    /// since identities of two sources cannot be compared.
    async fn identified(&self, files: Vec<ForeignFile>) -> Result<Vec<ObjectMeta>> {
        stream::iter(files)
            .map(|file| async move {
                if file.e_tag.is_some() {
                    return meta_of(file).map(Some);
                }
                match self.files.info(&file.path).await.map_err(failed)? {
                    Some(file) => meta_of(file).map(Some),
                    // It went away meanwhile.
                    None => Ok(None),
                }
            })
            .buffered(REQUESTS)
            .try_filter_map(|found| std::future::ready(Ok(found)))
            .try_collect()
            .await
    }

    async fn list_in(&self, prefix: &Path, recursive: bool) -> Result<ListResult> {
        let found = self.files.list(prefix.as_ref(), recursive).await.map_err(failed)?;
        let is_below = |path: &Path| !names_below(path, prefix).is_empty();
        let files = found
            .files
            .into_iter()
            .filter(|file| Path::parse(&file.path).map_or(true, |path| is_below(&path)));
        let objects = self.identified(files.collect()).await?;
        let mut common_prefixes = Vec::new();
        for directory in found.directories {
            let path = Path::parse(directory)?;
            if is_below(&path) {
                common_prefixes.push(path);
            }
        }
        Ok(ListResult { objects, common_prefixes })
    }
}

fn meta_of(file: ForeignFile) -> Result<ObjectMeta> {
    Ok(ObjectMeta {
        location: Path::parse(&file.path)?,
        // Equal for all files, so that size and etag decide.
        last_modified: file.last_modified.unwrap_or(DateTime::UNIX_EPOCH),
        size: file.size,
        e_tag: file.e_tag,
        version: None,
    })
}

fn failed(error: Error) -> StoreError {
    StoreError::Generic { store: STORE, source: Box::new(error) }
}

#[async_trait]
impl Reads for ForeignStore {
    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let attributes = Attributes::new();
        if let Some(GetRange::Bounded(range)) = &options.range
            && !options.head
            && range.end - range.start.min(range.end) <= CHUNK
        {
            // Read first: the identity that is found after it is that of the bytes.
            let range = range.clone();
            let read = self.read(location, range.clone()).await;
            let meta = self.meta(location).await?;
            options.check_preconditions(&meta)?;
            // A range that ends behind the file ends with it.
            let range = range.start.min(meta.size)..range.end.min(meta.size);
            let bytes = match read {
                Err(_) if range.end < options_end(&options) => {
                    self.read(location, range.clone()).await?
                }
                other => other?,
            };
            let payload = stream::once(async { Ok(bytes) }).boxed();
            let payload = GetResultPayload::Stream(payload);
            return Ok(GetResult { payload, meta, range, attributes });
        }
        let meta = self.meta(location).await?;
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => range
                .as_range(meta.size)
                .map_err(|source| StoreError::Generic { store: STORE, source: Box::new(source) })?,
            None => 0..meta.size,
        };
        let payload = match options.head {
            true => stream::empty().boxed(),
            false => self.stream(meta.clone(), range.clone()),
        };
        Ok(GetResult { payload: GetResultPayload::Stream(payload), meta, range, attributes })
    }

    async fn ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        stream::iter(ranges.to_vec())
            .map(|range| self.read(location, range))
            .buffered(REQUESTS)
            .try_collect()
            .await
    }

    fn files(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = Self { files: Arc::clone(&self.files), root: Arc::clone(&self.root) };
        let prefix = prefix.cloned().unwrap_or_default();
        let listing = async move {
            let listed = store.list_in(&prefix, true).await?;
            Ok::<_, StoreError>(stream::iter(listed.objects.into_iter().map(Ok)))
        };
        stream::once(listing).try_flatten().boxed()
    }

    async fn folder(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.list_in(&prefix.cloned().unwrap_or_default(), false).await
    }
}

fn options_end(options: &GetOptions) -> u64 {
    match &options.range {
        Some(GetRange::Bounded(range)) => range.end,
        _ => 0,
    }
}

impl fmt::Display for ForeignStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE}({})", self.root)
    }
}

impl fmt::Debug for ForeignStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
