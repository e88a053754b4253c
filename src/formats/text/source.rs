//! How DataFusion reads text files.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow::{csv, json};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectStore};

use super::records::{batches, objects};
use super::values::{Notation, decoded, parsed};
use crate::formats::source::{BATCH_ROWS, Reader};
use crate::formats::{CsvFormat, Format, JsonFormat};

/// The text formats.
#[derive(Clone, Debug)]
pub enum TextFormat {
    /// Delimited text.
    Csv(CsvFormat),
    /// One object per line, or one array of objects.
    Json(JsonFormat),
}

impl TextFormat {
    fn notation(&self) -> Notation {
        match self {
            Self::Csv(_) => Notation::Csv,
            Self::Json(_) => Notation::Json,
        }
    }

    fn compression(&self) -> FileCompressionType {
        match self.clone() {
            Self::Csv(csv) => Format::Csv(csv).file_compression_type(),
            Self::Json(json) => Format::Json(json).file_compression_type(),
        }
    }
}

/// Reads text files as a table: of CSV the columns by their place, of JSON by name.
///
/// A byte range must begin and end on a record.
#[derive(Clone)]
pub struct TextSource {
    format: TextFormat,
    schema: TableSchema,
    projection: ProjectionExprs,
    batch_rows: usize,
    metrics: ExecutionPlanMetricsSet,
}

impl TextSource {
    /// A source of all columns.
    pub fn new(format: TextFormat, schema: TableSchema) -> Self {
        let all: Vec<usize> = (0..schema.table_schema().fields().len()).collect();
        let projection = ProjectionExprs::from_indices(&all, schema.table_schema());
        let metrics = ExecutionPlanMetricsSet::new();
        Self { format, schema, projection, batch_rows: BATCH_ROWS, metrics }
    }
}

impl FileSource for TextSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _base_config: &FileScanConfig,
        _partition: usize,
    ) -> DfResult<Arc<dyn FileOpener>> {
        let output = self.projection.project_schema(self.schema.table_schema())?;
        Ok(Arc::new(TextOpener { source: self.clone(), output: Arc::new(output), store }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn table_schema(&self) -> &TableSchema {
        &self.schema
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        Arc::new(Self { batch_rows: batch_size, ..self.clone() })
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        Some(&self.projection)
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    fn file_type(&self) -> &str {
        match self.format {
            TextFormat::Csv(_) => "csv",
            TextFormat::Json(_) => "json",
        }
    }

    // DataFusion would cut a file at any byte.
    fn supports_repartitioning(&self) -> bool {
        false
    }

    fn try_pushdown_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> DfResult<Option<Arc<dyn FileSource>>> {
        let projection = self.projection.try_merge(projection)?;
        Ok(Some(Arc::new(Self { projection, ..self.clone() })))
    }
}

struct TextOpener {
    source: TextSource,
    /// The schema of the projected columns.
    output: SchemaRef,
    store: Arc<dyn ObjectStore>,
}

impl FileOpener for TextOpener {
    fn open(&self, file: PartitionedFile) -> DfResult<FileOpenFuture> {
        let (source, output) = (self.source.clone(), Arc::clone(&self.output));
        let store = Arc::clone(&self.store);
        Ok(Box::pin(async move {
            let table = Arc::clone(source.schema.file_schema());
            let reader = Reader::try_new(&source.schema, &source.projection, &file, table)?;
            let wanted = reader.physical.project(&reader.columns)?;
            let mut records = 0;
            let batches = source.open(store.as_ref(), &file, &reader).await?.map(move |batch| {
                let batch = batch?;
                let first = records + 1;
                records += batch.num_rows();
                let batch = parsed(&batch, &wanted, first)?;
                reader.adapt(&batch, &output)
            });
            Ok(batches.boxed())
        }))
    }
}

impl TextSource {
    /// The batches of a part of a file, in the types that they are decoded in.
    async fn open(
        &self,
        store: &dyn ObjectStore,
        file: &PartitionedFile,
        reader: &Reader,
    ) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>> {
        let range = file.range.as_ref().map(|range| range.start as u64..range.end as u64);
        let is_start = range.as_ref().is_none_or(|range| range.start == 0);
        let range = range.map(GetRange::Bounded);
        let stored = store
            .get_opts(&file.object_meta.location, GetOptions { range, ..GetOptions::default() })
            .await?
            .into_stream()
            .map_err(DataFusionError::from);
        let text = self.format.compression().convert_stream(stored.boxed())?;
        let schema = decoded(&reader.physical, self.format.notation());
        Ok(match &self.format {
            TextFormat::Csv(csv) => {
                let options = self.csv_decoder(csv, schema, is_start);
                batches(text, options.with_projection(reader.columns.clone()).build_decoder())
            }
            TextFormat::Json(json) => {
                let decoder = json::ReaderBuilder::new(Arc::new(schema.project(&reader.columns)?))
                    .with_batch_size(self.batch_rows)
                    // Numbers that are decoded as text.
                    .with_coerce_primitive(true)
                    .build_decoder()?;
                match json.is_array() {
                    true => batches(objects(text), decoder),
                    false => batches(text, decoder),
                }
            }
        })
    }

    fn csv_decoder(&self, csv: &CsvFormat, schema: Schema, is_start: bool) -> csv::ReaderBuilder {
        let mut decoder = csv::ReaderBuilder::new(Arc::new(schema))
            .with_batch_size(self.batch_rows)
            .with_header(csv.header && is_start)
            .with_delimiter(csv.delimiter())
            .with_quote(csv.quote);
        if let Some(escape) = csv.escape {
            decoder = decoder.with_escape(escape);
        }
        if let Some(comment) = csv.comment {
            decoder = decoder.with_comment(comment);
        }
        decoder
    }
}
