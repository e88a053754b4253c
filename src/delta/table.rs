//! A pinned version of a table, with the facts about it that this process keeps.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::error::Result as DfResult;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_adapter::{
    PhysicalExprAdapter, PhysicalExprAdapterFactory, replace_columns_with_literals,
};
use datafusion::scalar::ScalarValue;
use object_store::ObjectStore;

use super::changes::change_columns;
use super::place::TablePlace;
use super::rename::FileNames;
use super::schema::{arrow_schema, parse_schema};
use super::spec::{DataFile, DeltaSpec};
use super::vectors::VectorCache;
use crate::Result;
use crate::formats::{ByName, ListedFile, PinnedVersion, Positions, TableFiles, TableMetadata};
use crate::iceberg::FileValues;
use crate::prune::judge;

/// One version of a Delta table.
#[derive(Debug)]
pub struct DeltaTable {
    spec: DeltaSpec,
    place: TablePlace,
    values: FileValues,
    schema: SchemaRef,
    names: Arc<FileNames>,
    vectors: VectorCache,
}

impl DeltaTable {
    /// The table of a pinned version.
    ///
    /// # Errors
    /// `Data` and `UnsupportedType` for a schema that is not read here.
    pub fn try_new(spec: DeltaSpec, values: FileValues) -> Result<Self> {
        let mut columns = parse_schema(&spec.schema, spec.mapping)?;
        if spec.changes {
            columns.extend(change_columns());
        }
        let schema = Arc::new(arrow_schema(&columns));
        let place = spec.place()?;
        let names = Arc::new(FileNames::new(columns, spec.mapping));
        Ok(Self { spec, place, values, schema, names, vectors: VectorCache::default() })
    }

    /// The table whose files these are; None where they are no Delta table's.
    pub fn of(files: &TableFiles) -> Option<Arc<Self>> {
        let metadata: Arc<dyn Any + Send + Sync> = files.metadata.clone()?;
        metadata.downcast().ok()
    }

    /// The version as plain data.
    pub fn spec(&self) -> &DeltaSpec {
        &self.spec
    }

    /// How columns are found in data files.
    pub fn file_names(&self) -> &Arc<FileNames> {
        &self.names
    }

    /// The batch that a worker process makes the same values from.
    pub fn values_batch(&self) -> &RecordBatch {
        self.values.batch()
    }

    fn file(&self, index: usize) -> &DataFile {
        &self.spec.files[index]
    }
}

#[async_trait]
impl TableMetadata for DeltaTable {
    fn pinned(&self) -> PinnedVersion<'_> {
        let (table_id, version) = (self.spec.table_id.as_str(), Some(self.spec.version));
        // A version has one schema.
        PinnedVersion { format: "delta", table_id, version, schema: 0 }
    }

    fn label(&self) -> String {
        self.spec.to_string()
    }

    fn identity(&self) -> Result<String> {
        self.spec.identity()
    }

    fn visible_schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn scan_filter(&self) -> Option<&str> {
        self.spec.scan_filter.as_deref()
    }

    fn may_match(&self, predicate: &Arc<dyn PhysicalExpr>) -> Vec<bool> {
        judge(predicate, &self.values).none.iter().map(|none| !none).collect()
    }

    fn constants(&self, index: usize) -> Result<Vec<(String, ScalarValue)>> {
        let constants = self.values.constants(index)?;
        let typed = constants.into_iter().map(|(name, value)| {
            let value = match value {
                // Null in every file, and so without a type.
                ScalarValue::Null => {
                    ScalarValue::try_from(self.schema.field_with_name(&name)?.data_type())?
                }
                value => value,
            };
            Ok((name, value))
        });
        typed.collect()
    }

    fn names(&self) -> (Vec<String>, Vec<String>) {
        let files = (0..self.spec.files.len()).map(|index| self.uri(index));
        let vectors = self.spec.files.iter().enumerate().filter_map(|(index, file)| {
            let vector = file.vector.as_ref()?;
            Some(format!("{} of {}", vector.unique_id(), self.uri(index)))
        });
        (files.collect(), vectors.collect())
    }

    fn uri(&self, index: usize) -> String {
        self.place.describe(&self.file(index).key)
    }

    fn listed(&self, index: usize) -> ListedFile<'_> {
        let file = self.file(index);
        ListedFile {
            format: None,
            records: file.records,
            live: Some(file.live()),
            has_deletes: file.vector.is_some(),
            has_equality_deletes: false,
        }
    }

    fn expr_adapter(&self, index: usize) -> Result<Arc<dyn PhysicalExprAdapterFactory>> {
        let constants = self.constants(index)?;
        Ok(Arc::new(FileColumns { constants: Arc::new(constants.into_iter().collect()) }))
    }

    fn stored_bytes(&self, _: &[String], _: usize) -> Option<u64> {
        None
    }

    async fn deleted_positions(
        &self,
        store: &Arc<dyn ObjectStore>,
        index: usize,
    ) -> Result<Option<Positions>> {
        let file = self.file(index);
        let Some(vector) = &file.vector else { return Ok(None) };
        let found = self.vectors.positions(store, &self.place, index, vector, file.records).await;
        found.map(Some).map_err(|error| error.with_context("data file", self.uri(index)))
    }
}

/// Adapts expressions to one file: partition columns are their values, whether or not the file has
/// them, too; the others are found by name.
#[derive(Debug)]
struct FileColumns {
    constants: Arc<HashMap<String, ScalarValue>>,
}

impl PhysicalExprAdapterFactory for FileColumns {
    fn create(
        &self,
        logical_file_schema: SchemaRef,
        physical_file_schema: SchemaRef,
    ) -> DfResult<Arc<dyn PhysicalExprAdapter>> {
        let rest = ByName.create(logical_file_schema, physical_file_schema)?;
        Ok(Arc::new(FileExpressions { constants: Arc::clone(&self.constants), rest }))
    }
}

#[derive(Debug)]
struct FileExpressions {
    constants: Arc<HashMap<String, ScalarValue>>,
    rest: Arc<dyn PhysicalExprAdapter>,
}

impl PhysicalExprAdapter for FileExpressions {
    fn rewrite(&self, expr: Arc<dyn PhysicalExpr>) -> DfResult<Arc<dyn PhysicalExpr>> {
        let constants: HashMap<&str, &ScalarValue> =
            self.constants.iter().map(|(name, value)| (name.as_str(), value)).collect();
        self.rest.rewrite(replace_columns_with_literals(expr, &constants)?)
    }
}
