//! Footers: read once per file and process, then shared by planning and execution. Also the reading
//! of Parquet footers.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, Field, FieldRef, Fields, IntervalUnit, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::{AsyncFileReader, ParquetObjectReader};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, parquet_to_arrow_schema};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue, ParquetMetaData};
use parquet::schema::types::{ColumnPath, SchemaDescriptor};

use super::avro::AvroHead;
use super::ipc::IpcHead;
use super::orc::OrcFooter;
use super::parquet::blooms::with_known_filters;
use super::parquet::footer::{FooterOf, without_index};
use super::parquet::pages::{check_pages, wrong};
use super::parquet::types::{has_element, is_interval};
use super::table_metadata::FooterNames;
use super::unreadable::{is_misread, readable, with_reasons, without_odd_dictionaries};
use crate::error::plain_text;
use crate::storage::is_local_file;
use crate::{Error, Result};

/// Decoded footers kept per table and format, in bytes of memory.
const CACHE_BYTES: usize = 512 << 20;

/// Gates kept before unused ones are dropped.
const GATES: usize = 1024;

/// The decoded footers of one table's files.
#[derive(Debug, Default)]
pub struct FooterCache {
    parquet: Kept<ParquetMetaData>,
    orc: Kept<OrcFooter>,
    ipc: Kept<IpcHead>,
    avro: Kept<AvroHead>,
    /// For an Iceberg table, how its columns are found in its Parquet files.
    columns: Option<Arc<dyn FooterNames>>,
    /// The root of the files' store.
    root: String,
    schema: Mutex<Option<Arc<FileSchema>>>,
    reading: Mutex<HashMap<Path, FooterLock>>,
}

/// Held by the one who reads a footer; others wait for it and then find the footer.
type FooterLock = Arc<tokio::sync::Mutex<()>>;

/// The schema that was asked for last, which most files of a table have: making it takes as long as
/// decoding a small footer.
struct FileSchema {
    stored: Arc<SchemaDescriptor>,
    /// Key-value metadata of the footer, which includes the Arrow schema of the columns.
    notes: Option<Vec<KeyValue>>,
    schema: SchemaRef,
}

impl fmt::Debug for FileSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.schema.fmt(f)
    }
}

impl FooterCache {
    /// For files whose columns are found by field id.
    pub fn by_field_id(columns: Arc<dyn FooterNames>) -> Self {
        Self { columns: Some(columns), ..Self::default() }
    }

    /// Returns true if a file lies on the local file system.
    pub fn is_local(&self, location: &Path) -> bool {
        is_local_file(&self.root, location)
    }

    /// For files of the store with this root: see
    /// [`PinnedStore::new`](crate::storage::PinnedStore::new).
    #[must_use]
    pub fn in_store(self, root: &str) -> Self {
        Self { root: root.to_owned(), ..self }
    }

    /// The Parquet footer of a file, if it was read before.
    pub(super) fn get(&self, path: &Path) -> Option<Arc<ParquetMetaData>> {
        self.parquet.get(path)
    }

    /// The Arrow schema of a file, as the `parquet` crate has it.
    ///
    /// # Errors
    /// Set if the footer has a type without an Arrow equivalent.
    pub fn schema(&self, footer: &ParquetMetaData) -> ParquetResult<SchemaRef> {
        let file = footer.file_metadata();
        let (stored, notes) = (file.schema_descr_ptr(), file.key_value_metadata());
        let last = || self.schema.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last().clone();
        if let Some(last) = known
            && (Arc::ptr_eq(&last.stored, &stored) || last.stored == stored)
            && last.notes.as_ref() == notes
        {
            return Ok(Arc::clone(&last.schema));
        }
        let schema = with_reasons(parquet_to_arrow_schema(&stored, notes)?);
        let schema = Arc::new(with_whole_intervals(schema, &stored, notes));
        let (notes, found) = (notes.cloned(), Arc::clone(&schema));
        *last() = Some(Arc::new(FileSchema { stored, notes, schema: found }));
        Ok(schema)
    }

    /// The gate of a file's footer: splits of one file that are opened at once read it once.
    pub(super) fn gate(&self, path: &Path) -> FooterLock {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if reading.len() > GATES {
            reading.retain(|_, gate| Arc::strong_count(gate) > 1);
        }
        Arc::clone(reading.entry(path.clone()).or_default())
    }

    /// The footers of ORC files.
    pub(super) fn orc(&self) -> &Kept<OrcFooter> {
        &self.orc
    }

    /// The cached heads of Arrow IPC files.
    pub(super) fn ipc(&self) -> &Kept<IpcHead> {
        &self.ipc
    }

    /// The cached heads of Avro files.
    pub(super) fn avro(&self) -> &Kept<AvroHead> {
        &self.avro
    }
}

/// A footer that knows how many bytes of memory it takes.
pub(super) trait MemorySize {
    /// Bytes of memory, about.
    fn memory_size(&self) -> usize;
}

impl MemorySize for ParquetMetaData {
    fn memory_size(&self) -> usize {
        Self::memory_size(self)
    }
}

/// Footers of one format by path, the oldest dropped beyond [`CACHE_BYTES`].
#[derive(Debug)]
pub(super) struct Kept<F> {
    inner: Mutex<Inner<F>>,
}

#[derive(Debug)]
struct Inner<F> {
    footers: HashMap<Path, Arc<F>>,
    order: VecDeque<Path>,
    bytes: usize,
}

impl<F> Default for Kept<F> {
    fn default() -> Self {
        let inner = Inner { footers: HashMap::new(), order: VecDeque::new(), bytes: 0 };
        Self { inner: Mutex::new(inner) }
    }
}

impl<F: MemorySize> Kept<F> {
    /// The footer of a file, if it was read before.
    pub(super) fn get(&self, path: &Path) -> Option<Arc<F>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).footers.get(path).cloned()
    }

    /// Keeps a footer, replacing an earlier one (which may lack the page index).
    pub(super) fn put(&self, path: &Path, footer: &Arc<F>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.bytes += footer.memory_size();
        match inner.footers.insert(path.clone(), Arc::clone(footer)) {
            Some(old) => inner.bytes = inner.bytes.saturating_sub(old.memory_size()),
            None => inner.order.push_back(path.clone()),
        }
        while inner.bytes > CACHE_BYTES && inner.order.len() > 1 {
            if let Some(oldest) = inner.order.pop_front()
                && let Some(old) = inner.footers.remove(&oldest)
            {
                inner.bytes = inner.bytes.saturating_sub(old.memory_size());
            }
        }
    }
}

/// Reads a footer, with its page index where `page_index` asks for it and the file has one.
///
/// # Errors
/// `Data` where the footer is damaged (the caller names the file); storage errors as they are.
pub async fn read_footer(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    cache: &FooterCache,
    page_index: bool,
) -> Result<Arc<ParquetMetaData>> {
    if let Some(footer) = known(cache, meta, page_index) {
        return Ok(footer);
    }
    let gate = cache.gate(&meta.location);
    let _held = gate.lock().await;
    if let Some(footer) = known(cache, meta, page_index) {
        return Ok(footer);
    }
    let (store, file) = (Arc::clone(store), meta.clone());
    let (before, columns) = (cache.get(&meta.location), cache.columns.clone());
    let is_local = cache.is_local(&meta.location);
    // A task of its own: planning asks for those of many files at once, and decoding one takes
    // milliseconds where it has thousands of column chunks.
    let task = SpawnedTask::spawn(async move {
        let file = FooterOf::open(&store, &file, is_local).await?;
        read(file, before, columns, page_index).await
    });
    let stopped = |error| Error::data("the process is ending").with_source(error);
    let mut footer = task.join_unwind().await.map_err(stopped)??;
    if is_misread(&footer) || cache.schema(&footer).is_err() {
        footer = Arc::new(readable(Arc::unwrap_or_clone(footer)).map_err(damaged)?);
    }
    let schema = cache.schema(&footer).map_err(damaged)?;
    if let Some(plain) = without_odd_dictionaries(&footer, &schema).map_err(damaged)? {
        footer = Arc::new(plain);
    }
    cache.parquet.put(&meta.location, &footer);
    Ok(footer)
}

/// Reads the bytes that `before` lacks.
async fn read(
    mut file: FooterOf<'_>,
    before: Option<Arc<ParquetMetaData>>,
    columns: Option<Arc<dyn FooterNames>>,
    page_index: bool,
) -> Result<Arc<ParquetMetaData>> {
    let mut footer = match before {
        Some(footer) => Arc::unwrap_or_clone(footer),
        None => plain(&mut file, columns.as_deref()).await?,
    };
    if page_index {
        footer = match file.with_page_index(footer).await.map_err(damaged)? {
            Some(footer) => footer,
            None => {
                let footer = plain(&mut file, columns.as_deref()).await?;
                without_index(footer).map_err(damaged)?
            }
        };
    }
    Ok(Arc::new(with_known_filters(footer).map_err(damaged)?))
}

/// The footer under the table's names.
async fn plain(
    file: &mut FooterOf<'_>,
    columns: Option<&dyn FooterNames>,
) -> Result<ParquetMetaData> {
    let footer = file.footer().await.map_err(damaged)?;
    match columns {
        Some(columns) => columns.apply(footer),
        None => Ok(footer),
    }
}

/// The footer as it was read before, if that was with all that is asked for now.
fn known(cache: &FooterCache, meta: &ObjectMeta, page_index: bool) -> Option<Arc<ParquetMetaData>> {
    cache.get(&meta.location).filter(|footer| !page_index || has_page_index(footer))
}

/// The schema in which intervals have months, days and nanoseconds. The `parquet` crate reads
/// intervals as days and milliseconds unless an Arrow schema in the file says more.
fn with_whole_intervals(
    schema: Schema,
    stored: &SchemaDescriptor,
    notes: Option<&Vec<KeyValue>>,
) -> Schema {
    let is_said =
        notes.is_some_and(|notes| notes.iter().any(|note| note.key == ARROW_SCHEMA_META_KEY));
    if is_said || !has_element(stored.root_schema(), &is_interval) {
        return schema;
    }
    let fields: Fields = schema.fields().iter().map(with_whole_interval).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

fn with_whole_interval(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Interval(_) => DataType::Interval(IntervalUnit::MonthDayNano),
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(with_whole_interval).collect())
        }
        DataType::List(item) => DataType::List(with_whole_interval(item)),
        DataType::Map(entries, sorted) => DataType::Map(with_whole_interval(entries), *sorted),
        _ => return Arc::clone(field),
    };
    Arc::new(Field::clone(field).with_data_type(data_type))
}

/// Returns true if the page index was read, or is known to be absent from the file.
fn has_page_index(footer: &ParquetMetaData) -> bool {
    footer.offset_index().is_some()
        || footer.row_groups().iter().all(|group| {
            group.columns().iter().all(|column| column.offset_index_offset().is_none())
        })
}

fn damaged(error: ParquetError) -> Error {
    match error {
        external @ ParquetError::External(_) => Error::from(external),
        other => Error::data(format!(
            "this is not a readable Parquet file: {}",
            plain_text(&other.to_string())
        )),
    }
}

/// Makes readers that take footers from the cache.
#[derive(Debug)]
pub struct CachedFooters {
    store: Arc<dyn ObjectStore>,
    cache: Arc<FooterCache>,
    page_index: bool,
}

impl CachedFooters {
    /// Readers over `store` whose footers come from `cache`. With `page_index` (a scan with a
    /// predicate) they bring their page index: DataFusion would read it again for every split.
    pub fn new(store: Arc<dyn ObjectStore>, cache: Arc<FooterCache>, page_index: bool) -> Self {
        Self { store, cache, page_index }
    }
}

impl ParquetFileReaderFactory for CachedFooters {
    fn create_reader(
        &self,
        _partition_index: usize,
        file: PartitionedFile,
        _metadata_size_hint: Option<usize>,
        _metrics: &ExecutionPlanMetricsSet,
    ) -> datafusion::error::Result<Box<dyn AsyncFileReader + Send>> {
        let inner =
            ParquetObjectReader::new(Arc::clone(&self.store), file.object_meta.location.clone())
                .with_file_size(file.object_meta.size);
        Ok(Box::new(CachedFooterReader {
            inner,
            store: Arc::clone(&self.store),
            meta: file.object_meta,
            cache: Arc::clone(&self.cache),
            page_index: self.page_index,
        }))
    }
}

/// The column whose pages lie at a place of the file.
fn column_at(footer: &ParquetMetaData, place: u64) -> Option<&ColumnPath> {
    let groups = footer.row_groups().iter().filter(|group| group.num_rows() > 0);
    let mut columns = groups.flat_map(|group| group.columns());
    let holds = |column: &&ColumnChunkMetaData| {
        let (start, length) = column.byte_range();
        (start..start.saturating_add(length)).contains(&place)
    };
    columns.find(holds).map(ColumnChunkMetaData::column_path)
}

struct CachedFooterReader {
    inner: ParquetObjectReader,
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    cache: Arc<FooterCache>,
    page_index: bool,
}

impl AsyncFileReader for CachedFooterReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.inner.get_bytes(range)
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        async move {
            let read = self.inner.get_byte_ranges(ranges.clone()).await?;
            for (range, pages) in ranges.iter().zip(&read) {
                check_pages(pages).map_err(|what| {
                    let footer = self.cache.get(&self.meta.location);
                    let column = footer.as_ref().and_then(|footer| column_at(footer, range.start));
                    column.map_or(ParquetError::General(what.clone()), |path| wrong(path, &what))
                })?;
            }
            Ok(read)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        async move {
            read_footer(&self.store, &self.meta, &self.cache, self.page_index)
                .await
                .map_err(|error| ParquetError::External(Box::new(error)))
        }
        .boxed()
    }
}
