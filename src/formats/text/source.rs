//! How DataFusion reads text files.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::error::{DataFusionError, Result as DfResult};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectStore};

use super::plain::PlainText;
use super::plain::csv::{CsvRead, PlainCsv};
use super::plain::json::{JsonRead, PlainJson};
use super::records::{batches, objects};
use super::values::parsed;
use crate::formats::source::{Reader, RowFormat, RowSource};
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
pub type TextSource = RowSource<TextFormat>;

#[async_trait]
impl RowFormat for TextFormat {
    // DataFusion would cut a file at any byte.
    const HAS_UNITS: bool = false;

    fn name(&self) -> &'static str {
        match self {
            Self::Csv(_) => "csv",
            Self::Json(_) => "json",
        }
    }

    async fn open(
        source: TextSource,
        store: Arc<dyn ObjectStore>,
        file: PartitionedFile,
        output: SchemaRef,
    ) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>> {
        let table = Arc::clone(source.schema.file_schema());
        let reader = Reader::try_new(&source.schema, &source.projection, &file, table)?;
        let wanted = reader.physical.project(&reader.columns)?;
        let mut records = 0;
        let batches = source.decoded(store.as_ref(), &file, &reader).await?.map(move |batch| {
            let batch = batch?;
            let first = records + 1;
            records += batch.num_rows();
            let batch = parsed(&batch, &wanted, first)?;
            reader.adapt(&batch, &output)
        });
        Ok(batches.boxed())
    }
}

impl TextSource {
    /// The batches of a part of a file, in the types that they are decoded in.
    async fn decoded(
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
        let (schema, rows) = (Arc::new(reader.physical.project(&reader.columns)?), self.batch_rows);
        Ok(match &self.format {
            TextFormat::Csv(format) => {
                let read = CsvRead {
                    format: format.clone(),
                    table: Arc::clone(&reader.physical),
                    columns: reader.columns.clone(),
                    rows,
                    has_names: format.header && is_start,
                };
                match read.is_plain() {
                    true => batches(
                        text,
                        PlainText::new(PlainCsv::new(read, Arc::clone(&schema)), schema, rows),
                    ),
                    false => batches(text, read.thorough(0)?),
                }
            }
            TextFormat::Json(format) => {
                let text = if format.is_array() { objects(text) } else { text };
                let read = JsonRead { schema: Arc::clone(&schema), rows };
                match read.is_plain() {
                    true => batches(text, PlainText::new(PlainJson::new(read), schema, rows)),
                    false => batches(text, read.thorough()?),
                }
            }
        })
    }
}
