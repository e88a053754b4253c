//! Metadata of a table format about the files that it lists, as scans of these files ask for it.
//! `iceberg/` implements it; a format of files knows of no table format.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::physical_expr_adapter::PhysicalExprAdapterFactory;
use object_store::ObjectStore;
use parquet::file::metadata::ParquetMetaData;
use roaring::RoaringTreemap;

use super::format::Format;
use crate::Result;

/// Numbers of rows in one data file.
pub type Positions = Arc<RoaringTreemap>;

/// One data file by the metadata of its table.
#[derive(Clone, Copy, Debug)]
pub struct ListedFile<'a> {
    /// The file's URI.
    pub uri: &'a str,
    /// Its format where that is not the table's.
    pub format: Option<&'a Format>,
    /// Rows stored in it, deleted ones included.
    pub records: u64,
    /// Whether any delete may apply to it.
    pub has_deletes: bool,
    /// Whether deletes by the values of columns may apply to it, which only a read of the rows
    /// decides.
    pub has_equality_deletes: bool,
}

/// Metadata of a table about its data files.
#[async_trait]
pub trait TableMetadata: Any + fmt::Debug + Send + Sync {
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
    /// A footer whose columns have the table's names.
    ///
    /// # Errors
    /// `Data` where the file's schema is malformed.
    fn apply(&self, footer: ParquetMetaData) -> Result<ParquetMetaData>;
}
