//! The pinned files of one table, and how a scan finds its way back to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::config::TableParquetOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileSource;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::scalar::ScalarValue;
use object_store::{ObjectMeta, ObjectStore};
use serde::{Deserialize, Serialize};

use super::footers::{CachedFooters, FooterCache};
use super::format::Format;
use super::table_metadata::TableMetadata;

/// One file of a table as it was when the table was registered.
#[derive(Clone, Debug)]
pub struct TableFile {
    /// Path, size, entity tag and modification time.
    pub meta: ObjectMeta,
    /// Values of the hive partition columns, decoded and typed.
    pub partition_values: Vec<ScalarValue>,
    /// Rows, from the footer and exact; None where the format does not say.
    pub rows: Option<u64>,
}

/// The files of one table with everything needed to read them.
#[derive(Debug)]
pub struct TableFiles {
    /// The files' format.
    pub format: Format,
    /// File columns followed by hive partition columns.
    pub schema: TableSchema,
    /// The store, which fails a read of a file that changed since it was pinned.
    pub store: Arc<dyn ObjectStore>,
    /// Names `store` to DataFusion; one per table, so that each has its own pins and credentials.
    pub store_url: ObjectStoreUrl,
    /// The prefix of a file's path when it is shown to the user, for example `s3://bucket/`.
    pub root: String,
    /// The files in plan order.
    pub files: Vec<TableFile>,
    /// Decoded footers of Parquet and ORC files.
    pub footers: Arc<FooterCache>,
    /// For the files of an Iceberg table, its metadata of them.
    pub metadata: Option<Arc<dyn TableMetadata>>,
    /// Results of scans of this table.
    pub scans: Scans,
}

/// Sizes that a scan found in a table; DataFusion's planner chooses between plans by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outline {
    /// Files that are scanned.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their rows, where known.
    pub rows: Option<u64>,
    /// Whether `rows` is exact.
    pub exact: bool,
}

/// The outlines of a table's scans, by the filters that were pushed into them.
///
/// A process that reads only some of a table's files gets a table of only these, and the outlines
/// of the scans over all files: so it plans the query as it was planned over all of them.
#[derive(Debug, Default)]
pub struct Scans {
    outlines: Mutex<BTreeMap<String, Outline>>,
    is_part: bool,
    /// For a part: the places of its files among all.
    places: Vec<u32>,
}

impl Scans {
    /// For a table with only some of its files, which have these places among all.
    pub fn of_part(outlines: BTreeMap<String, Outline>, places: Vec<u32>) -> Self {
        Self { outlines: Mutex::new(outlines), is_part: true, places }
    }

    /// Returns true if the table has a part of its files only.
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    /// All outlines.
    pub fn outlines(&self) -> BTreeMap<String, Outline> {
        self.outlines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The outline of a scan with these filters: `found` if it covers all files, or an earlier
    /// outline of all files.
    pub fn outline<F: std::fmt::Display>(&self, filters: &[F], found: Outline) -> Option<Outline> {
        let texts: Vec<String> = filters.iter().map(ToString::to_string).collect();
        let key = texts.join(" AND ");
        let mut outlines = self.outlines.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_part {
            return outlines.get(&key).copied();
        }
        outlines.insert(key, found);
        Some(found)
    }
}

impl TableFiles {
    /// A fresh DataFusion source for these files, without projection and predicate.
    pub fn source(&self, parquet: &TableParquetOptions, page_index: bool) -> Arc<dyn FileSource> {
        let readers =
            CachedFooters::new(Arc::clone(&self.store), Arc::clone(&self.footers), page_index);
        self.format.file_source(self.schema.clone(), parquet, Arc::new(readers), &self.footers)
    }

    /// File `index` as DataFusion knows it; [`FileRef`] leads back from there.
    pub fn partitioned_file(self: &Arc<Self>, index: usize) -> PartitionedFile {
        let file = &self.files[index];
        PartitionedFile::new_from_meta(file.meta.clone())
            .with_partition_values(file.partition_values.clone())
            .with_extensions(Arc::new(FileRef { table: Arc::clone(self), index }))
    }

    /// The place of file `index` among all pinned files; this process may have only some of them.
    pub fn place(&self, index: usize) -> u64 {
        self.scans.places.get(index).map_or(index as u64, |place| u64::from(*place))
    }

    /// The format of file `index`: an Iceberg table may have files of several.
    pub fn format_of(&self, index: usize) -> &Format {
        let listed = self.metadata.as_ref().and_then(|metadata| metadata.listed(index).format);
        listed.unwrap_or(&self.format)
    }

    /// A file's path as the user would write it.
    pub fn display_path(&self, index: usize) -> String {
        match &self.metadata {
            Some(metadata) => metadata.uri(index),
            None => format!("{}{}", self.root, self.files[index].meta.location),
        }
    }
}

/// Marks a `PartitionedFile` in DataFusion's planner, so that the plan rewrite knows the pinned
/// file and its table.
#[derive(Clone, Debug)]
pub struct FileRef {
    /// The table.
    pub table: Arc<TableFiles>,
    /// Index into its files.
    pub index: usize,
}

impl FileRef {
    /// The reference that [`TableFiles::partitioned_file`] put there.
    pub fn of(file: &PartitionedFile) -> Option<&Self> {
        file.extensions.as_ref()?.downcast_ref()
    }
}
