//! File formats and how DataFusion reads them.

use std::sync::Arc;

use datafusion::common::config::TableParquetOptions;
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::datasource::physical_plan::{FileSource, ParquetSource};
use datafusion::datasource::table_schema::TableSchema;
use serde::{Deserialize, Serialize};

use super::avro::{Avro, AvroSource};
use super::footers::FooterCache;
use super::ipc::{Ipc, IpcSource};
use super::orc::{Orc, OrcSource};
use super::text::{TextFormat, TextSource};
use crate::fingerprint::Form;
use crate::storage::Members;
use crate::{Error, Result, suggestion};

/// How text files are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not compressed.
    #[default]
    None,
    /// `.gz`
    Gzip,
    /// `.bz2`
    Bz2,
    /// `.xz`
    Xz,
    /// `.zst`
    Zstd,
}

impl Compression {
    /// The word a user writes for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Bz2 => "bz2",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }

    /// How the store unpacks such a file, where DataFusion would not read all of it.
    pub fn members(self) -> Option<Members> {
        match self {
            Self::None | Self::Gzip => None,
            Self::Bz2 => Some(Members::Bz2),
            Self::Xz => Some(Members::Xz),
            Self::Zstd => Some(Members::Zstd),
        }
    }

    /// The compression that DataFusion itself has to undo, after a store has unpacked
    /// [`members`](Self::members).
    pub fn left(self) -> CompressionTypeVariant {
        match self.members() {
            Some(_) => CompressionTypeVariant::UNCOMPRESSED,
            None => self.variant(),
        }
    }

    /// DataFusion's name for it.
    pub fn variant(self) -> CompressionTypeVariant {
        match self {
            Self::None => CompressionTypeVariant::UNCOMPRESSED,
            Self::Gzip => CompressionTypeVariant::GZIP,
            Self::Bz2 => CompressionTypeVariant::BZIP2,
            Self::Xz => CompressionTypeVariant::XZ,
            Self::Zstd => CompressionTypeVariant::ZSTD,
        }
    }

    /// From the last extension of a file name.
    fn from_extension(extension: &str) -> Self {
        match extension {
            "gz" => Self::Gzip,
            "bz2" => Self::Bz2,
            "xz" => Self::Xz,
            "zst" => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// How CSV files are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsvFormat {
    /// Whether the first line names the columns.
    pub header: bool,
    /// The byte between two fields; None: a comma that nobody has asked for, and neither has a
    /// file's name.
    pub delimiter: Option<u8>,
    /// The byte around fields that hold delimiters or newlines.
    pub quote: u8,
    /// The byte that escapes a quote; None: quotes are doubled.
    pub escape: Option<u8>,
    /// Lines that begin with this byte are ignored.
    pub comment: Option<u8>,
    /// How the files are compressed; None until their names were looked at.
    pub compression: Option<Compression>,
}

impl Default for CsvFormat {
    fn default() -> Self {
        Self {
            header: true,
            delimiter: None,
            quote: b'"',
            escape: None,
            comment: None,
            compression: None,
        }
    }
}

impl CsvFormat {
    /// The byte between two fields.
    pub fn delimiter(&self) -> u8 {
        self.delimiter.unwrap_or(b',')
    }
}

/// How JSON files are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JsonFormat {
    /// One JSON array per file instead of one object per line; None until the files were looked at.
    pub array: Option<bool>,
    /// How the files are compressed; None until their names were looked at.
    pub compression: Option<Compression>,
}

impl JsonFormat {
    /// Returns true if each file is one array.
    pub fn is_array(&self) -> bool {
        self.array == Some(true)
    }
}

/// How Arrow IPC files are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArrowFormat {
    /// The stream form, without the file form's footer; known once the files were looked at.
    pub stream: bool,
    /// Local files are read instead of mapped: for files that others write to in place.
    pub unmapped: bool,
}

/// The format of all files of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Delimited text.
    Csv(CsvFormat),
    /// Newline-delimited JSON or JSON arrays.
    Json(JsonFormat),
    /// Arrow IPC files or streams.
    Arrow(ArrowFormat),
    /// Apache ORC.
    Orc,
    /// Apache Avro object container files.
    Avro,
}

/// File name endings and the format each one means; a compression ending may follow text formats.
const ENDINGS: &[(&str, &str)] = &[
    ("parquet", "parquet"),
    ("pq", "parquet"),
    ("parq", "parquet"),
    ("csv", "csv"),
    ("tsv", "tsv"),
    ("json", "json"),
    ("ndjson", "json"),
    ("jsonl", "json"),
    ("arrow", "arrow"),
    ("feather", "arrow"),
    ("ipc", "arrow"),
    ("arrows", "arrow"),
    ("orc", "orc"),
    ("avro", "avro"),
];

impl Format {
    /// Writes the format into a form.
    pub fn write(&self, form: &mut Form) {
        let compressed = |form: &mut Form, compression: Option<Compression>| {
            form.optional_text("compression", compression.map(Compression::name));
        };
        form.text("kind", self.name());
        match self {
            Self::Parquet | Self::Orc | Self::Avro => {}
            Self::Csv(csv) => {
                form.flag("header", csv.header);
                form.optional_number("delimiter", csv.delimiter.map(u64::from));
                form.number("quote", u64::from(csv.quote));
                form.optional_number("escape", csv.escape.map(u64::from));
                form.optional_number("comment", csv.comment.map(u64::from));
                compressed(form, csv.compression);
            }
            Self::Json(json) => {
                form.optional_number("array", json.array.map(u64::from));
                compressed(form, json.compression);
            }
            Self::Arrow(arrow) => {
                form.flag("stream", arrow.stream).flag("unmapped", arrow.unmapped);
            }
        }
    }

    /// The format that a file's name says, or an error that lists the known endings.
    pub fn from_path(path: &str) -> Result<Self> {
        let name = path.rsplit('/').next().unwrap_or(path).to_lowercase();
        let mut parts: Vec<&str> = name.split('.').collect();
        let mut compression =
            Compression::from_extension(parts.last().copied().unwrap_or_default());
        if compression != Compression::None {
            parts.pop();
        }
        let ending = if parts.len() > 1 { parts.last().copied().unwrap_or_default() } else { "" };
        let kind = ENDINGS.iter().find(|(known, _)| *known == ending).map(|(_, kind)| *kind);
        if matches!(kind, Some("parquet" | "arrow" | "orc" | "avro"))
            && compression != Compression::None
        {
            return Err(Error::config(format!(
                "{path}: a compressed {ending} file cannot be read; decompress it"
            )));
        }
        if kind.is_none() {
            compression = Compression::None;
        }
        match kind {
            Some("parquet") => Ok(Self::Parquet),
            Some("orc") => Ok(Self::Orc),
            Some("avro") => Ok(Self::Avro),
            Some("csv") => {
                Ok(Self::Csv(CsvFormat { compression: Some(compression), ..CsvFormat::default() }))
            }
            Some("tsv") => Ok(Self::Csv(CsvFormat {
                compression: Some(compression),
                delimiter: Some(b'\t'),
                ..CsvFormat::default()
            })),
            Some("json") => {
                Ok(Self::Json(JsonFormat { compression: Some(compression), array: None }))
            }
            Some(_) => Ok(Self::Arrow(ArrowFormat::default())),
            None => Err(Error::config(format!(
                "the name {name:?} does not say a file format{}; known endings are {}; \
                 say it: format=\"parquet\" | \"csv\" | \"json\" | \"arrow\" | \"orc\" | \"avro\"",
                suggestion(ending, ENDINGS.iter().map(|(known, _)| *known)),
                ENDINGS.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", "),
            ))
            .with_context("path", path)),
        }
    }

    /// `parquet`, `csv`, `json`, `arrow`, `orc` or `avro`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Csv(_) => "csv",
            Self::Json(_) => "json",
            Self::Arrow(_) => "arrow",
            Self::Orc => "orc",
            Self::Avro => "avro",
        }
    }

    /// The format in words: name, form and compression.
    pub fn describe(&self) -> String {
        let form = match self {
            Self::Json(json) if json.is_array() => "a JSON array".to_owned(),
            Self::Arrow(ArrowFormat { stream: true, .. }) => "an arrow stream".to_owned(),
            Self::Arrow(_) => "an arrow file".to_owned(),
            Self::Csv(csv) => match csv.delimiter() {
                b',' => "csv".to_owned(),
                other => format!("csv with the delimiter {:?}", char::from(other)),
            },
            other => other.name().to_owned(),
        };
        match self.compression() {
            Compression::None => form,
            other => format!("{form} compressed by {}", other.name()),
        }
    }

    /// How the files are compressed as a whole (Parquet, ORC, Arrow and Avro compress inside).
    pub fn compression(&self) -> Compression {
        match self {
            Self::Csv(csv) => csv.compression.unwrap_or_default(),
            Self::Json(json) => json.compression.unwrap_or_default(),
            Self::Parquet | Self::Arrow(_) | Self::Orc | Self::Avro => Compression::None,
        }
    }

    /// The compression as DataFusion's scan configuration wants it.
    pub fn file_compression_type(&self) -> FileCompressionType {
        self.compression().left().into()
    }

    /// A DataFusion source of this format with fresh metrics and no projection.
    pub fn file_source(
        &self,
        schema: TableSchema,
        parquet: &TableParquetOptions,
        readers: Arc<dyn ParquetFileReaderFactory>,
        footers: &Arc<FooterCache>,
    ) -> Arc<dyn FileSource> {
        match self {
            Self::Parquet => Arc::new(
                ParquetSource::new(schema)
                    .with_table_parquet_options(parquet.clone())
                    .with_parquet_file_reader_factory(readers),
            ),
            Self::Csv(csv) => {
                Arc::new(TextSource::new(TextFormat::Csv(csv.clone()), schema, Arc::clone(footers)))
            }
            Self::Json(json) => Arc::new(TextSource::new(
                TextFormat::Json(json.clone()),
                schema,
                Arc::clone(footers),
            )),
            Self::Arrow(arrow) => {
                let format = Ipc { unmapped: arrow.unmapped };
                Arc::new(IpcSource::new(format, schema, Arc::clone(footers)))
            }
            Self::Orc => Arc::new(OrcSource::new(Orc, schema, Arc::clone(footers))),
            Self::Avro => Arc::new(AvroSource::new(Avro, schema, Arc::clone(footers))),
        }
    }
}
