//! From paths to a table: list, pin, find the format, infer or check the schema.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat as ArrowFileFormat;
use datafusion::datasource::file_format::csv::CsvFormat as DfCsvFormat;
use datafusion::datasource::file_format::json::JsonFormat as DfJsonFormat;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use parquet::arrow::parquet_to_arrow_schema;
use serde::{Deserialize, Serialize};

use super::json_array;
use super::merge::{column_names, merge_schemas};
use crate::split::orc::read_orc_footer;
use crate::split::{
    ArrowFormat, Compression, CsvFormat, FooterCache, Format, JsonFormat, TableFile, TableFiles,
    read_footer,
};
use crate::storage::{
    FilePin, IoCounters, Location, Partitioning, PinnedStore, decode, list_all, open_store,
};
use crate::{Error, ErrorKind, Result, list_names, suggestion};

/// Files whose schemas are read at the same time.
const CONCURRENT_FILES: usize = 32;

/// Records of each text file from which its schema is inferred.
const DEFAULT_INFER_ROWS: usize = 1000;

/// The first bytes of the file form of Arrow IPC; the stream form has none of its own.
const ARROW_FILE_MAGIC: &[u8] = b"ARROW1";

/// How a table's files are found and read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableOptions {
    /// The format; None: by the file names.
    pub format: Option<Format>,
    /// Whether `key=value` directories are columns.
    pub partitioning: Partitioning,
    /// Records of each text file from which its schema is inferred.
    pub infer_rows: Option<usize>,
    /// Options and credentials of the object store.
    pub storage_options: BTreeMap<String, String>,
    /// The declared schema of the files, hive columns included where their type matters.
    #[serde(skip)]
    pub schema: Option<SchemaRef>,
}

/// A table's files as a recipe carries them: opening it again lists nothing and reads no footer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilesSpec {
    /// The format.
    pub format: Format,
    /// The root of the store.
    pub root: String,
    /// Options and credentials of the object store.
    pub storage_options: BTreeMap<String, String>,
    /// The pinned files with their rows, where known.
    pub files: Vec<(FilePin, Option<u64>)>,
    /// How many of the schema's last columns come from hive directories.
    pub partition_columns: usize,
}

/// Lists, pins and opens the files of a table.
///
/// # Errors
/// `TableNotFound` for a path without files; `Data` naming both files where two disagree; `Config`
/// for options that do not fit.
pub async fn open_files(
    session: &dyn Session,
    paths: &[String],
    options: &TableOptions,
    store_url: ObjectStoreUrl,
    counters: Arc<IoCounters>,
) -> Result<(TableFiles, FilesSpec)> {
    let locations = paths.iter().map(|path| Location::parse(path)).collect::<Result<Vec<_>>>()?;
    let Some(first) = locations.first() else {
        return Err(Error::config("an empty list of paths was given; name at least one file"));
    };
    if let Some(other) = locations.iter().find(|other| other.store_root() != first.store_root()) {
        return Err(Error::config(format!(
            "one table reads one store, but {first} and {other} are in two; register two tables and \
             join them with UNION ALL"
        )));
    }
    let inner = open_store(first, &options.storage_options)?;
    let listing = list_all(&inner, &locations).await?;
    let display = |pin: &FilePin| format!("{}{}", display_root(first.store_root()), pin.location);
    let format = common_format(&listing.pins, options.format.as_ref(), &display)?;
    let declared_types = declared_types(options.schema.as_ref());
    let hive = decode(&listing.pins, &listing.roots, options.partitioning, &declared_types)
        .map_err(|error| error.with_context("path", first))?;
    let spec_files = listing.pins.clone();
    let store: Arc<dyn ObjectStore> =
        Arc::new(PinnedStore::new(inner, first.store_root(), listing.pins).with_counters(counters));
    let footers = Arc::new(FooterCache::default());
    let metas: Vec<ObjectMeta> = spec_files.iter().map(|pin| pin.clone().into()).collect();
    let names: Vec<String> = spec_files.iter().map(&display).collect();
    let infer = Infer {
        session,
        store: &store,
        footers: &footers,
        format: &format,
        rows: options.infer_rows.unwrap_or(DEFAULT_INFER_ROWS),
    };
    let mut read = infer.all(&metas, &names).await?;
    let format = one_format(&names, &read, format)?;
    if matches!(format, Format::Csv(_) | Format::Json(_)) {
        align_numbers(&mut read);
    }
    let file_schemas = names.iter().map(String::as_str).zip(read.iter().map(|file| &file.schema));
    let inferred = match &options.schema {
        Some(_) => column_names(read.iter().map(|file| &file.schema)),
        None => merge_schemas(file_schemas.clone())?,
    };
    if matches!(format, Format::Csv(_) | Format::Arrow(_)) {
        same_positions(file_schemas.clone(), format.name())?;
    }
    let schema = match &options.schema {
        Some(declared) => declare(declared, &inferred, &hive.fields, &format)?,
        None => without_null_types(&inferred),
    };
    if format.name() == "arrow" {
        same_types(&schema, file_schemas)?;
    }
    if let Some(field) = hive.fields.iter().find(|field| schema.index_of(field.name()).is_ok()) {
        return Err(Error::data(format!(
            "column {:?} is both in the files and in their directories' names; pass \
             partitioning=False to read the files' own",
            field.name()
        ))
        .with_context("file", &names[0]));
    }
    let spec = FilesSpec {
        format: format.clone(),
        root: first.store_root().to_owned(),
        storage_options: options.storage_options.clone(),
        files: spec_files.iter().cloned().zip(read.iter().map(|file| file.rows)).collect(),
        partition_columns: hive.fields.len(),
    };
    let partition_fields = hive.fields.iter().map(|field| Arc::new(field.clone())).collect();
    let files = metas.into_iter().zip(hive.values).zip(&read).map(|((meta, values), file)| {
        TableFile { meta, partition_values: values, rows: file.rows }
    });
    let table = TableFiles {
        format,
        schema: TableSchema::new(Arc::new(schema), partition_fields),
        store,
        store_url,
        root: display_root(first.store_root()),
        files: files.collect(),
        footers,
        lake: None,
    };
    Ok((table, spec))
}

impl FilesSpec {
    /// Opens the pinned files again, without listing and without reading a footer.
    ///
    /// # Errors
    /// `Config` where the store's options are not valid in this process.
    pub fn open(
        &self,
        schema: &SchemaRef,
        partition_values: Vec<Vec<datafusion::scalar::ScalarValue>>,
        store_url: ObjectStoreUrl,
        counters: Arc<IoCounters>,
    ) -> Result<TableFiles> {
        let location = Location::of_store(&self.root)?;
        let inner = open_store(&location, &self.storage_options)?;
        let pins: Vec<FilePin> = self.files.iter().map(|(pin, _)| pin.clone()).collect();
        let store = Arc::new(PinnedStore::new(inner, &self.root, pins).with_counters(counters));
        let fields = schema.fields();
        let file_columns = fields.len().saturating_sub(self.partition_columns);
        let file_schema =
            Schema::new_with_metadata(fields[..file_columns].to_vec(), schema.metadata().clone());
        let files = self.files.iter().zip(partition_values).map(|((pin, rows), values)| {
            TableFile { meta: pin.clone().into(), partition_values: values, rows: *rows }
        });
        Ok(TableFiles {
            format: self.format.clone(),
            schema: TableSchema::new(Arc::new(file_schema), fields[file_columns..].to_vec()),
            store,
            store_url,
            root: display_root(&self.root),
            files: files.collect(),
            footers: Arc::new(FooterCache::default()),
            lake: None,
        })
    }
}

/// What stands before an object's path when it is shown to the user.
fn display_root(root: &str) -> String {
    format!("{}/", root.strip_prefix("file://").unwrap_or(root))
}

/// The format of all files; by their names where none was given.
fn common_format(
    pins: &[FilePin],
    given: Option<&Format>,
    display: &impl Fn(&FilePin) -> String,
) -> Result<Format> {
    let mut found: Option<(Format, &FilePin)> = None;
    for pin in pins {
        let by_name = Format::from_path(pin.location.as_ref());
        let format = match (given, by_name) {
            (Some(Format::Csv(given)), by_name) => {
                let compression = Some(compression_of(given.compression, by_name.as_ref().ok()));
                Format::Csv(CsvFormat { compression, ..given.clone() })
            }
            (Some(Format::Json(given)), by_name) => {
                let compression = Some(compression_of(given.compression, by_name.as_ref().ok()));
                Format::Json(JsonFormat { compression, ..given.clone() })
            }
            (Some(given), _) => given.clone(),
            (None, by_name) => by_name?,
        };
        match &found {
            None => found = Some((format, pin)),
            Some((first, _)) if *first == format => {}
            Some((first, first_pin)) => {
                return Err(two_formats(&display(first_pin), first, &display(pin), &format));
            }
        }
    }
    found.map(|(format, _)| format).ok_or_else(|| Error::config("no file was given"))
}

fn compression_of(given: Option<Compression>, by_name: Option<&Format>) -> Compression {
    given.or(by_name.map(Format::compression)).unwrap_or_default()
}

fn two_formats(first_file: &str, first: &Format, file: &str, format: &Format) -> Error {
    Error::config(format!(
        "one table has one format, but {first_file} is {} and {file} is {}; narrow the path with a \
         glob, or register two tables",
        first.describe(),
        format.describe(),
    ))
}

/// The one format that all files turned out to have; an empty text file has any.
fn one_format(names: &[String], read: &[FileSchema], by_name: Format) -> Result<Format> {
    let mut found: Option<(&str, &Format)> = None;
    for (name, file) in names.iter().zip(read) {
        match found {
            _ if file.schema.fields().is_empty() => {}
            None => found = Some((name, &file.format)),
            Some((_, first)) if *first == file.format => {}
            Some((first_name, first)) => {
                return Err(two_formats(first_name, first, name, &file.format));
            }
        }
    }
    Ok(found.map_or(by_name, |(_, format)| format.clone()))
}

/// Text has one kind of number: where one file's values are whole and another's are not, both are
/// read as floats, as if they stood in one file.
fn align_numbers(read: &mut [FileSchema]) {
    let floats: HashSet<String> = read
        .iter()
        .flat_map(|file| file.schema.fields())
        .filter(|field| *field.data_type() == DataType::Float64)
        .map(|field| field.name().clone())
        .collect();
    for file in read {
        let fields: Fields = file
            .schema
            .fields()
            .iter()
            .map(|field| match field.data_type() {
                DataType::Int64 if floats.contains(field.name()) => {
                    Arc::new(field.as_ref().clone().with_data_type(DataType::Float64))
                }
                _ => Arc::clone(field),
            })
            .collect();
        file.schema = Schema::new_with_metadata(fields, file.schema.metadata().clone());
    }
}

fn declared_types(schema: Option<&SchemaRef>) -> BTreeMap<String, DataType> {
    let fields = schema.map(|schema| schema.fields().clone()).unwrap_or_default();
    fields.iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
}

/// CSV and Arrow columns are read by position, so every file must have the same in the same order.
fn same_positions<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a Schema)>,
    format: &str,
) -> Result<()> {
    let names = |schema: &Schema| -> Vec<String> {
        schema.fields().iter().map(|field| field.name().clone()).collect()
    };
    let mut first: Option<(&str, Vec<String>)> = None;
    for (file, schema) in files {
        let found = names(schema);
        // A file without any record has no columns, and no rows to misread.
        if found.is_empty() {
            continue;
        }
        let Some((first_file, wanted)) = &first else {
            first = Some((file, found));
            continue;
        };
        if found != *wanted {
            let at = found.iter().zip(wanted).take_while(|(a, b)| a == b).count();
            let show = |names: &[String]| match names.get(at) {
                Some(name) => format!("{name:?}"),
                None => "none".to_owned(),
            };
            return Err(Error::data(format!(
                "the files disagree: {format} files of one table need the same columns in the same \
                 order, but column {} is {} in {first_file} and {} in {file}; register the files \
                 apart and join them with UNION ALL",
                at + 1,
                show(wanted),
                show(&found),
            )));
        }
    }
    Ok(())
}

/// Arrow columns come as they lie in the file, without a cast.
fn same_types<'a>(
    schema: &Schema,
    files: impl IntoIterator<Item = (&'a str, &'a Schema)>,
) -> Result<()> {
    for (file, found) in files {
        for (field, wanted) in found.fields().iter().zip(schema.fields()) {
            if field.data_type() != wanted.data_type() {
                return Err(Error::data(format!(
                    "Arrow files are read as they are, but column {:?} is {} in {file} and {} in the \
                     table; write the files with one schema, or register them apart and cast in SQL",
                    field.name(),
                    field.data_type(),
                    wanted.data_type(),
                )));
            }
        }
    }
    Ok(())
}

/// The declared schema without the hive columns, checked against what the files hold.
fn declare(
    declared: &SchemaRef,
    inferred: &Schema,
    hive: &[Field],
    format: &Format,
) -> Result<Schema> {
    let fields: Fields = declared
        .fields()
        .iter()
        .filter(|field| !hive.iter().any(|hive| hive.name() == field.name()))
        .cloned()
        .collect();
    let known: Vec<&str> = inferred.fields().iter().map(|field| field.name().as_str()).collect();
    let headless = matches!(format, Format::Csv(csv) if !csv.header);
    if matches!(format, Format::Csv(_)) && !known.is_empty() {
        let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        if fields.len() != known.len() || (!headless && names != known) {
            return Err(Error::data(format!(
                "the declared columns are {}, but the CSV files have {}; declare all of them, in the \
                 files' order",
                list_names(&names),
                list_names(&known),
            )));
        }
    } else if let Some(odd) = fields.iter().find(|field| !known.contains(&field.name().as_str())) {
        return Err(Error::data(format!(
            "the declared column {:?} is in no file{}; the files' columns are {}",
            odd.name(),
            suggestion(odd.name(), known.iter().copied()),
            list_names(&known),
        )));
    }
    Ok(Schema::new_with_metadata(fields, inferred.metadata().clone()))
}

/// A text column without any value is text.
fn without_null_types(schema: &Schema) -> Schema {
    let fields: Vec<Arc<Field>> = schema
        .fields()
        .iter()
        .map(|field| match field.data_type() {
            DataType::Null => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
            _ => Arc::clone(field),
        })
        .collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

struct Infer<'a> {
    session: &'a dyn Session,
    store: &'a Arc<dyn ObjectStore>,
    footers: &'a FooterCache,
    format: &'a Format,
    rows: usize,
}

struct FileSchema {
    schema: Schema,
    rows: Option<u64>,
    /// The format with what the file itself says: array or lines, file or stream.
    format: Format,
}

impl Infer<'_> {
    async fn all(&self, files: &[ObjectMeta], names: &[String]) -> Result<Vec<FileSchema>> {
        futures::stream::iter(files.iter().zip(names).map(|(meta, name)| async move {
            self.one(meta).await.map_err(|error| error.with_context("file", name))
        }))
        .buffered(CONCURRENT_FILES)
        .try_collect()
        .await
    }

    async fn one(&self, meta: &ObjectMeta) -> Result<FileSchema> {
        let (schema, format) = match self.format {
            Format::Parquet => return self.parquet(meta).await,
            Format::Csv(csv) => (self.csv(csv, meta).await?, self.format.clone()),
            Format::Json(json) => self.json(json, meta).await?,
            Format::Arrow(_) => self.arrow(meta).await?,
            Format::Orc => return self.orc(meta).await,
        };
        Ok(FileSchema { schema, rows: None, format })
    }

    async fn csv(&self, csv: &CsvFormat, meta: &ObjectMeta) -> Result<Schema> {
        let format = DfCsvFormat::default().with_options(csv.options());
        self.text(&format.with_schema_infer_max_rec(self.rows), meta).await
    }

    async fn json(&self, json: &JsonFormat, meta: &ObjectMeta) -> Result<(Schema, Format)> {
        let compression = self.format.compression();
        let array = match json.array {
            Some(array) => array,
            None => json_array::is_array(self.store, meta, compression).await?,
        };
        let chosen = JsonFormat { array: Some(array), ..json.clone() };
        let schema = match array {
            true => json_array::infer(self.store, meta, compression, self.rows).await?,
            false => self.json_lines(&chosen, meta).await?,
        };
        Ok((schema, Format::Json(chosen)))
    }

    async fn json_lines(&self, json: &JsonFormat, meta: &ObjectMeta) -> Result<Schema> {
        let format = DfJsonFormat::default().with_options(json.options());
        let read = self.text(&format.with_schema_infer_max_rec(self.rows), meta).await;
        read.map_err(|error| match error.to_string().contains("JSON record to be an object") {
            // The parser's own message would print the whole value.
            true => Error::data(
                "this is not one JSON object per line; pass array=True for a file that is one array \
                 of objects",
            ),
            false => error,
        })
    }

    /// The schema of a text file, decompressed where the format says so.
    async fn text(&self, format: &dyn FileFormat, meta: &ObjectMeta) -> Result<Schema> {
        let compression = self.format.compression();
        self.by(format, meta).await.map_err(|error| {
            match compression != Compression::None && error.kind() == ErrorKind::Storage {
                true => json_array::undecompressable(compression, error),
                false => error,
            }
        })
    }

    async fn arrow(&self, meta: &ObjectMeta) -> Result<(Schema, Format)> {
        if meta.size == 0 {
            return Err(Error::data("this is neither an Arrow IPC file nor a stream: it is empty"));
        }
        let length = meta.size.min(ARROW_FILE_MAGIC.len() as u64);
        let magic = self.store.get_range(&meta.location, 0..length).await?;
        let stream = magic.as_ref() != ARROW_FILE_MAGIC;
        let schema = self.by(&ArrowFileFormat, meta).await.map_err(|error| {
            match error.kind() == ErrorKind::Storage {
                true => error,
                false => Error::data("this is neither an Arrow IPC file nor an Arrow IPC stream")
                    .with_source(error),
            }
        })?;
        Ok((schema, Format::Arrow(ArrowFormat { stream })))
    }

    async fn by(&self, format: &dyn FileFormat, meta: &ObjectMeta) -> Result<Schema> {
        let schema =
            format.infer_schema(self.session, self.store, std::slice::from_ref(meta)).await?;
        Ok(schema.as_ref().clone())
    }

    async fn orc(&self, meta: &ObjectMeta) -> Result<FileSchema> {
        let footer = read_orc_footer(self.store, meta, self.footers).await?;
        let (schema, rows) = (footer.plain_schema(), Some(footer.rows()));
        Ok(FileSchema { schema, rows, format: Format::Orc })
    }

    async fn parquet(&self, meta: &ObjectMeta) -> Result<FileSchema> {
        let footer = read_footer(self.store, meta, self.footers, false).await?;
        let file = footer.file_metadata();
        let schema = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata())?;
        let rows = u64::try_from(file.num_rows())
            .map_err(|_| Error::data("its footer says a negative number of rows"))?;
        Ok(FileSchema { schema, rows: Some(rows), format: Format::Parquet })
    }
}
