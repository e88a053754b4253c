//! Metadata of a table format about the files that it lists, as scans of these files ask for it.
//! `iceberg/` and `delta/` implement it; a format of files knows of no table format.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_adapter::PhysicalExprAdapterFactory;
use datafusion::scalar::ScalarValue;
use object_store::ObjectStore;
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::SchemaDescriptor;
use roaring::RoaringTreemap;

use super::format::Format;
use super::unreadable::with_schema;
use crate::{Error, Result};

/// Numbers of rows in one data file.
pub type Positions = Arc<RoaringTreemap>;

/// One data file by the metadata of its table.
#[derive(Clone, Copy, Debug)]
pub struct ListedFile<'a> {
    /// Its format where that is not the table's.
    pub format: Option<&'a Format>,
    /// Rows stored in it, deleted ones included.
    pub records: u64,
    /// Rows that are not deleted; None where only a read of the deletes tells.
    pub live: Option<u64>,
    /// Whether any delete may apply to it.
    pub has_deletes: bool,
    /// Whether deletes by the values of columns may apply to it, which only a read of the rows
    /// decides.
    pub has_equality_deletes: bool,
}

/// A point in a table's history, pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedVersion<'a> {
    /// The name of the table format: `iceberg` or `delta`.
    pub format: &'static str,
    /// The id that the table keeps for life.
    pub table_id: &'a str,
    /// The snapshot or version; None for a table without one, and so without rows.
    pub version: Option<i64>,
    /// The id of the schema that it is read with; 0 where the version says it.
    pub schema: i32,
}

/// Metadata of a table about its data files.
#[async_trait]
pub trait TableMetadata: Any + fmt::Debug + Send + Sync {
    /// The point in the table's history that the files are of.
    fn pinned(&self) -> PinnedVersion<'_>;

    /// The table and its version, as a plan or a message names them.
    fn label(&self) -> String;

    /// Fingerprints the rows and the way they are read.
    ///
    /// # Errors
    /// `Config` where the schema cannot be written.
    fn identity(&self) -> Result<String>;

    /// The columns that a query sees.
    fn visible_schema(&self) -> SchemaRef;

    /// The predicate by which files are pruned, and no other; None leaves it to the query.
    fn scan_filter(&self) -> Option<&str>;

    /// Which files may hold a row that the predicate (over the table's schema) keeps.
    fn may_match(&self, predicate: &Arc<dyn PhysicalExpr>) -> Vec<bool>;

    /// The columns that have one value in all rows of data file `index`, and the values.
    ///
    /// # Errors
    /// An internal error where a value has no scalar form.
    fn constants(&self, index: usize) -> Result<Vec<(String, ScalarValue)>>;

    /// The data files and the deletes that apply to them, each under a name that tells it from
    /// every other one.
    fn names(&self) -> (Vec<String>, Vec<String>);

    /// Data file `index` as a user would write it.
    fn uri(&self, index: usize) -> String;

    /// Data file `index`.
    fn listed(&self, index: usize) -> ListedFile<'_>;

    /// The adapter of expressions over the table to data file `index`.
    ///
    /// # Errors
    /// `UnsupportedType` where a column's default has no value here.
    fn expr_adapter(&self, index: usize) -> Result<Arc<dyn PhysicalExprAdapterFactory>>;

    /// Stored bytes of some columns in data file `index`; None where the metadata does not say.
    fn stored_bytes(&self, columns: &[String], index: usize) -> Option<u64>;

    /// The deleted positions of data file `index`; None where no delete lists any.
    ///
    /// # Errors
    /// `Data` where a delete file is damaged; storage errors as they are.
    async fn deleted_positions(
        &self,
        store: &Arc<dyn ObjectStore>,
        index: usize,
    ) -> Result<Option<Positions>>;
}

/// Columns of Parquet files under other names than the files have.
pub trait FooterNames: fmt::Debug + Send + Sync {
    /// A file's schema with the table's names.
    ///
    /// # Errors
    /// `Data` where the file's schema is malformed.
    fn rename(&self, file: &SchemaDescriptor) -> Result<SchemaDescriptor>;

    /// A footer whose columns have the table's names. The schema that Arrow writers embed is left
    /// out: it has the file's own names, and the table says the types.
    ///
    /// # Errors
    /// `Data` where the file's schema is malformed.
    fn apply(&self, footer: ParquetMetaData) -> Result<ParquetMetaData> {
        let file = footer.file_metadata();
        let schema = Arc::new(self.rename(file.schema_descr())?);
        let properties = file.key_value_metadata().map(|pairs| {
            pairs.iter().filter(|pair| pair.key != ARROW_SCHEMA_META_KEY).cloned().collect()
        });
        with_schema(footer, &schema, properties).map_err(malformed_schema)
    }
}

/// The error of a data file whose schema `parquet` does not take.
pub fn malformed_schema(error: ParquetError) -> Error {
    Error::data(format!("the schema of the data file is malformed: {error}"))
}
