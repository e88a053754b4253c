//! From paths to a table: list, pin, find the format, infer or check the schema.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use object_store::{ObjectMeta, ObjectStore};
use serde::{Deserialize, Serialize};

use super::agree::{
    align_text, common_format, declare, declared_types, one_format, same_positions,
    without_null_types,
};
use super::bad_files::BadFiles;
use super::file_schema::Infer;
use super::merge::{column_names, merge_schemas};
use super::text_types::readable;
use crate::fingerprint::{self, Form};
use crate::formats::{FooterCache, Format, Scans, TableFile, TableFiles};
use crate::storage::{
    FilePin, ForeignCredentials, ForeignFiles, IoCounters, Listing, OpenedPaths, Partitioning,
    PinnedStore, RangeCache, Scheme, StorageOptions, StoreAccess, decode, list_within,
    with_decoded_text,
};
use crate::{Error, Result};

/// Records of each text file from which its schema is inferred.
const DEFAULT_INFER_ROWS: usize = 1000;

/// How a table's files are found and read.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableOptions {
    /// The format; None: by the file names.
    pub format: Option<Format>,
    /// Whether `key=value` directories are columns.
    pub partitioning: Partitioning,
    /// Records of each text file from which its schema is inferred.
    pub infer_rows: Option<usize>,
    /// Whether files that cannot be read, or contradict the others, are left out instead of being
    /// an error.
    pub skip_bad: bool,
    /// Options of the object store.
    pub storage_options: StorageOptions,
    /// Who is asked for credentials.
    #[serde(skip)]
    pub credentials: Option<Arc<dyn ForeignCredentials>>,
    /// The file system, where it is no store of `object_store`; the paths are then below its root.
    #[serde(skip)]
    pub files: Option<Arc<dyn ForeignFiles>>,
    /// The declared schema of the files, hive columns included where their type matters.
    #[serde(skip)]
    pub schema: Option<SchemaRef>,
}

impl TableOptions {
    /// How the store is reached.
    pub fn access(&self) -> StoreAccess {
        StoreAccess {
            options: self.storage_options.clone(),
            credentials: self.credentials.clone(),
            files: self.files.clone(),
        }
    }
}

/// A table's files as a recipe carries them: opening it again lists nothing and reads no footer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilesSpec {
    /// The format.
    pub format: Format,
    /// The root of the store.
    pub root: String,
    /// How the store is reached.
    pub access: StoreAccess,
    /// The pinned files with their rows, where known.
    pub files: Vec<(FilePin, Option<u64>)>,
    /// How many of the schema's last columns come from hive directories.
    pub partition_columns: usize,
    /// Files that were left out, since they cannot be read or contradict the others, with the
    /// reason.
    #[serde(default)]
    pub quarantined: Vec<(String, String)>,
}

/// The files of a table, listed and pinned, before their schema is inferred.
pub struct ListedFiles {
    opened: OpenedPaths,
    listing: Listing,
}

/// Lists and pins the files of a table.
///
/// # Errors
/// `TableNotFound` for a path without files; `Config` for options that do not fit.
pub async fn list_table(paths: &[String], options: &TableOptions) -> Result<ListedFiles> {
    let opened = options.access().open_paths(paths).await?;
    let own = match opened.locations.first() {
        Some(first) if first.scheme() != Scheme::Foreign => {
            options.access().options.directories(first)?
        }
        _ => Vec::new(),
    };
    let listing = list_within(&opened.store, &opened.locations, own).await?;
    Ok(ListedFiles { opened, listing })
}

impl ListedFiles {
    /// The store in which the files lie.
    pub fn opened(&self) -> &OpenedPaths {
        &self.opened
    }

    /// Everything that decides a table's schema and rows: the store, the pinned files, and the
    /// options except the store's.
    ///
    /// # Errors
    /// `Config` where a declared type has no form.
    pub fn form(&self, options: &TableOptions) -> Result<Form> {
        let TableOptions { format, partitioning, infer_rows, skip_bad, schema, .. } = options;
        let mut form = Form::new("listing");
        form.text("program", env!("CARGO_PKG_VERSION")).text("root", self.opened.root());
        match format {
            Some(format) => {
                form.nested("format", "format", |form| {
                    format.write(form);
                    Ok(())
                })?;
            }
            None => {
                form.absent("format");
            }
        }
        form.text("partitioning", partitioning.name()).flag("skips bad files", *skip_bad);
        form.optional_number("rows to infer from", infer_rows.map(|rows| rows as u64));
        match schema {
            Some(schema) => fingerprint::schema(&mut form, "columns", schema)?,
            None => {
                form.absent("columns");
            }
        }
        let files = self.listing.pins.iter().zip(&self.listing.roots);
        form.list("files", files, |form, (pin, below)| {
            form.text("path", pin.location.as_ref()).text("below", below.as_ref());
            form.optional_text("version", pin.version.as_deref());
            pin.write_content(form);
            Ok(())
        })?;
        Ok(form)
    }

    /// Returns true if these are the unchanged files of a table, including those that it leaves
    /// out.
    pub fn are(&self, table: &FilesSpec) -> bool {
        let mut listed = self.listing.pins.iter();
        self.listing.pins.len() == table.files.len() + table.quarantined.len()
            && table.files.iter().all(|(pin, _)| listed.any(|found| found == pin))
    }
}

/// Opens the files of a table and infers its schema.
///
/// # Errors
/// `Data` naming both files where two disagree; `Config` for options that do not fit.
pub async fn infer_table(
    listed: ListedFiles,
    options: &TableOptions,
    store_url: ObjectStoreUrl,
    counters: Arc<IoCounters>,
    cache: Option<Arc<RangeCache>>,
) -> Result<(TableFiles, FilesSpec)> {
    let ListedFiles { opened, listing } = listed;
    let OpenedPaths { locations, store: inner, access } = opened;
    let Some(first) = locations.first() else {
        return Err(Error::config("an empty list of paths was given; name at least one file"));
    };
    let display = |pin: &FilePin| format!("{}{}", display_root(first.store_root()), pin.location);
    let format = common_format(&listing.pins, options.format.as_ref(), &display)?;
    let declared_types = declared_types(options.schema.as_ref());
    let hive = decode(&listing.pins, &listing.roots, options.partitioning, &declared_types)
        .map_err(|error| error.with_context("path", first))?;
    let mut spec_files = listing.pins.clone();
    let stored = PinnedStore::new(inner, first.store_root(), listing.pins)
        .with_counters(counters)
        .with_cache(cache, None);
    let stored: Arc<dyn ObjectStore> = Arc::new(stored);
    let (members, is_json) = (format.compression().members(), matches!(format, Format::Json(_)));
    let store = with_decoded_text(Arc::clone(&stored), members, is_json);
    let stored = with_decoded_text(stored, None, is_json);
    let footers = Arc::new(FooterCache::default().in_store(first.store_root()));
    let mut metas: Vec<ObjectMeta> = spec_files.iter().map(|pin| pin.clone().into()).collect();
    let mut names: Vec<String> = spec_files.iter().map(&display).collect();
    let mut hive_values = hive.values;
    let infer = Infer {
        store: &stored,
        unpacked: &store,
        footers: &footers,
        format: &format,
        rows: options.infer_rows.unwrap_or(DEFAULT_INFER_ROWS),
        is_declared: options.schema.is_some(),
    };
    let mut bad = BadFiles::default();
    let mut read = match options.skip_bad {
        true => infer.those_that_can(&metas, &names, &mut bad).await?,
        false => infer.all(&metas, &names).await?,
    };
    bad.take_out(&mut spec_files, &mut metas, &mut names, &mut hive_values);
    let format = one_format(&names, &read, format)?;
    if matches!(format, Format::Csv(_) | Format::Json(_)) {
        align_text(&mut read);
    }
    if options.skip_bad {
        let schemas: Vec<&Schema> = read.iter().map(|file| &file.schema).collect();
        bad.find_odd(&names, &schemas, &format, options.schema.is_some());
        bad.take_out_one(&mut read);
        bad.take_out(&mut spec_files, &mut metas, &mut names, &mut hive_values);
    }
    let file_schemas = names.iter().map(String::as_str).zip(read.iter().map(|file| &file.schema));
    let inferred = match &options.schema {
        Some(_) => column_names(read.iter().map(|file| &file.schema)),
        None => merge_schemas(file_schemas.clone())?,
    };
    if matches!(format, Format::Csv(_)) {
        same_positions(file_schemas)?;
    }
    let schema = match &options.schema {
        Some(declared) => {
            let schema = declare(declared, &inferred, &hive.fields, &format)?;
            readable(&schema, &format)?;
            schema
        }
        None => without_null_types(&inferred),
    };
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
        access,
        files: spec_files.iter().cloned().zip(read.iter().map(|file| file.rows)).collect(),
        partition_columns: hive.fields.len(),
        quarantined: bad.into_listed(),
    };
    let partition_fields = hive.fields.iter().map(|field| Arc::new(field.clone())).collect();
    let files = metas.into_iter().zip(hive_values).zip(&read).map(|((meta, values), file)| {
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
        metadata: None,
        scans: Scans::default(),
    };
    Ok((table, spec))
}

impl FilesSpec {
    /// With only these of its files.
    #[must_use]
    pub fn narrowed(&self, kept: &[usize]) -> Self {
        let files = kept.iter().map(|index| self.files[*index].clone()).collect();
        Self {
            format: self.format.clone(),
            root: self.root.clone(),
            access: self.access.clone(),
            files,
            partition_columns: self.partition_columns,
            quarantined: Vec::new(),
        }
    }

    /// Opens the pinned files again, without listing and without reading a footer.
    ///
    /// # Errors
    /// `Config` where the store's options are not valid in this process.
    pub async fn open(
        &self,
        schema: &SchemaRef,
        partition_values: Vec<Vec<datafusion::scalar::ScalarValue>>,
        store_url: ObjectStoreUrl,
        counters: Arc<IoCounters>,
        cache: Option<Arc<RangeCache>>,
    ) -> Result<TableFiles> {
        let inner = self.access.open_root(&self.root).await?;
        Ok(self.open_in(inner, schema, partition_values, store_url, counters, cache))
    }

    /// Infers the table's schema in a store that is already open.
    pub fn open_in(
        &self,
        inner: Arc<dyn ObjectStore>,
        schema: &SchemaRef,
        partition_values: Vec<Vec<datafusion::scalar::ScalarValue>>,
        store_url: ObjectStoreUrl,
        counters: Arc<IoCounters>,
        cache: Option<Arc<RangeCache>>,
    ) -> TableFiles {
        let pins: Vec<FilePin> = self.files.iter().map(|(pin, _)| pin.clone()).collect();
        let store = PinnedStore::new(inner, &self.root, pins)
            .with_counters(counters)
            .with_cache(cache, None);
        let members = self.format.compression().members();
        let store =
            with_decoded_text(Arc::new(store), members, matches!(self.format, Format::Json(_)));
        let fields = schema.fields();
        let file_columns = fields.len().saturating_sub(self.partition_columns);
        let file_schema =
            Schema::new_with_metadata(fields[..file_columns].to_vec(), schema.metadata().clone());
        let files = self.files.iter().zip(partition_values).map(|((pin, rows), values)| {
            TableFile { meta: pin.clone().into(), partition_values: values, rows: *rows }
        });
        TableFiles {
            format: self.format.clone(),
            schema: TableSchema::new(Arc::new(file_schema), fields[file_columns..].to_vec()),
            store,
            store_url,
            root: display_root(&self.root),
            files: files.collect(),
            footers: Arc::new(FooterCache::default().in_store(&self.root)),
            metadata: None,
            scans: Scans::default(),
        }
    }
}

/// The prefix of an object's path when it is shown to the user.
fn display_root(root: &str) -> String {
    format!("{}/", root.strip_prefix("file://").unwrap_or(root))
}
