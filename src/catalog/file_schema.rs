//! The schema of one file, and its rows where the format says them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Fields, Schema, TimeUnit};
use arrow::json::reader::infer_json_schema;
use datafusion::error::DataFusionError;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore};

use super::agree::possible;
use super::csv_schema;
use super::json_array;
use super::long_lines::{first_lines, text_of};
use crate::formats::avro::read_avro_head;
use crate::formats::ipc::{MessageIndex, read_ipc_head};
use crate::formats::orc::read_orc_footer;
use crate::formats::{
    ArrowFormat, CsvFormat, FooterCache, Format, JsonFormat, caught, concurrent_files, read_footer,
};
use crate::{Error, Result};

/// Reads the schemas of files.
#[derive(Clone, Copy)]
pub(super) struct Infer<'a> {
    pub store: &'a Arc<dyn ObjectStore>,
    /// The store for whole files read as text.
    pub unpacked: &'a Arc<dyn ObjectStore>,
    pub footers: &'a FooterCache,
    pub format: &'a Format,
    /// Records of each text file from which its schema is inferred.
    pub rows: usize,
    /// Whether the user declared the schema, so that the files need only say which columns they
    /// have.
    pub is_declared: bool,
}

/// Schema and facts found in one file.
pub(super) struct FileSchema {
    pub schema: Schema,
    /// Exact; None where the format does not say before the file is planned.
    pub rows: Option<u64>,
    /// The format with the file's own properties: array or lines, file or stream.
    pub format: Format,
}

impl Infer<'_> {
    /// Reads the schemas of all files, in their order.
    pub async fn all(&self, files: &[ObjectMeta], names: &[String]) -> Result<Vec<FileSchema>> {
        futures::stream::iter(files.iter().zip(names).map(|(meta, name)| async move {
            self.one(meta).await.map_err(|error| error.with_context("file", name))
        }))
        .buffered(concurrent_files(self.format))
        .try_collect()
        .await
    }

    /// Reads the schema of one file; the caller adds its name to errors. Decoders panic on some
    /// damaged files.
    pub async fn one(&self, meta: &ObjectMeta) -> Result<FileSchema> {
        let read = caught(self.read(meta)).await?;
        Ok(FileSchema { schema: possible(read.schema)?, ..read })
    }

    async fn read(&self, meta: &ObjectMeta) -> Result<FileSchema> {
        let (schema, format) = match self.format {
            Format::Parquet => return self.parquet(meta).await,
            Format::Csv(csv) => (self.csv(csv, meta).await?, self.format.clone()),
            Format::Json(json) => self.json(json, meta).await?,
            Format::Arrow(arrow) => self.arrow(arrow, meta).await?,
            Format::Avro => self.avro(meta).await?,
            Format::Orc => return self.orc(meta).await,
        };
        Ok(FileSchema { schema, rows: None, format })
    }

    async fn csv(&self, csv: &CsvFormat, meta: &ObjectMeta) -> Result<Schema> {
        let text = text_of(self.unpacked, meta, self.format.compression()).await?;
        let rows = if self.is_declared { 0 } else { self.rows };
        Ok(in_microseconds(&csv_schema::infer(csv, text, rows).await?))
    }

    async fn json(&self, json: &JsonFormat, meta: &ObjectMeta) -> Result<(Schema, Format)> {
        let compression = self.format.compression();
        let array = match json.array {
            Some(array) => array,
            None => json_array::is_array(self.unpacked, meta, compression).await?,
        };
        let chosen = JsonFormat { array: Some(array), ..json.clone() };
        let schema = match array {
            true => json_array::infer(self.store, meta, compression, self.rows).await?,
            false => self.json_lines(meta).await?,
        };
        Ok((schema, Format::Json(chosen)))
    }

    async fn json_lines(&self, meta: &ObjectMeta) -> Result<Schema> {
        let compression = self.format.compression();
        let lines = first_lines(self.unpacked, meta, compression, self.rows).await?;
        let read = infer_json_schema(lines.as_slice(), Some(self.rows));
        let (schema, _) = read.map_err(|error| match error.to_string() {
            // The parser's own message would print the whole value.
            text if text.contains("JSON record to be an object") => Error::data(
                "this is not one JSON object per line; pass array=True for a file that is one array \
                 of objects",
            ),
            _ => Error::from(DataFusionError::from(error)),
        })?;
        Ok(schema)
    }

    async fn arrow(&self, arrow: &ArrowFormat, meta: &ObjectMeta) -> Result<(Schema, Format)> {
        let head = read_ipc_head(self.store, meta, self.footers).await?;
        let stream = matches!(head.layout(), MessageIndex::Stream { .. });
        let format = Format::Arrow(ArrowFormat { stream, ..arrow.clone() });
        Ok((head.schema().as_ref().clone(), format))
    }

    async fn avro(&self, meta: &ObjectMeta) -> Result<(Schema, Format)> {
        let head = read_avro_head(self.store, meta, self.footers).await?;
        Ok((head.schema().as_ref().clone(), Format::Avro))
    }

    async fn orc(&self, meta: &ObjectMeta) -> Result<FileSchema> {
        let footer = read_orc_footer(self.store, meta, self.footers).await?;
        let (schema, rows) = (footer.plain_schema(), Some(footer.rows()));
        Ok(FileSchema { schema, rows, format: Format::Orc })
    }

    async fn parquet(&self, meta: &ObjectMeta) -> Result<FileSchema> {
        let footer = read_footer(self.store, meta, self.footers, false).await?;
        let file = footer.file_metadata();
        let schema = self.footers.schema(&footer)?.as_ref().clone();
        let rows = u64::try_from(file.num_rows())
            .map_err(|_| Error::data("its footer says a negative number of rows"))?;
        Ok(FileSchema { schema, rows: Some(rows), format: Format::Parquet })
    }
}

/// Times of text are microseconds at least: a later row may be finer than the rows read here.
fn in_microseconds(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, zone) => {
            let data_type = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
            Arc::new(field.as_ref().clone().with_data_type(data_type))
        }
        _ => Arc::clone(field),
    });
    Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone())
}
