//! How DataFusion reads text files.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow::{csv, json};
use async_trait::async_trait;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::error::{DataFusionError, Result as DfResult};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectStore};

use super::records::{batches, objects};
use super::values::{Notation, decoded, parsed};
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
