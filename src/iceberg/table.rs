//! A pinned snapshot, with the facts about it that this process keeps.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_adapter::PhysicalExprAdapterFactory;
use datafusion::scalar::ScalarValue;
use object_store::ObjectStore;

use super::adapt::FieldAdapter;
use super::deletes::{DeleteCache, EqualityKeys};
use super::rename::ColumnMap;
use super::spec::{DataFile, DeleteFile, LakeSpec, Storage};
use super::types::arrow_schema;
use super::values::FileValues;
use crate::Result;
use crate::formats::{Format, ListedFile, PinnedVersion, Positions, TableFiles, TableMetadata};
use crate::prune::judge;

/// One snapshot of an Iceberg table.
#[derive(Debug)]
pub struct LakeTable {
    spec: LakeSpec,
    values: FileValues,
    columns: Arc<ColumnMap>,
    /// For files without constants: most tables have no others.
    adapter: FieldAdapter,
    deletes: DeleteCache,
}

impl LakeTable {
    /// The table of a pinned snapshot.
    ///
    /// # Errors
    /// `UnsupportedType` where a column's default is of a nested type.
    pub fn try_new(spec: LakeSpec, values: FileValues) -> Result<Self> {
        let columns = ColumnMap::new(Arc::clone(&spec.schema), spec.mapping.clone());
        let adapter = FieldAdapter::try_new(&spec.schema, [])?;
        let deletes = DeleteCache::default();
        Ok(Self { spec, values, columns: Arc::new(columns), adapter, deletes })
    }

    /// The table whose files these are; None where they are no Iceberg table's.
    pub fn of(files: &TableFiles) -> Option<Arc<Self>> {
        let metadata: Arc<dyn Any + Send + Sync> = files.metadata.clone()?;
        metadata.downcast().ok()
    }

    /// The snapshot as plain data.
    pub fn spec(&self) -> &LakeSpec {
        &self.spec
    }

    /// The values that metadata has for the files' columns, as one batch.
    pub fn values(&self) -> &FileValues {
        &self.values
    }

    /// How columns are found in data files.
    pub fn columns(&self) -> &Arc<ColumnMap> {
        &self.columns
    }

    /// All columns that files are read with: those a query sees, then the hidden ones.
    pub fn read_schema(&self) -> Schema {
        arrow_schema(&self.spec.schema)
    }

    /// Data file `index`.
    pub fn file(&self, index: usize) -> &DataFile {
        &self.spec.files[index]
    }

    /// How expressions over the table read data file `index`.
    ///
    /// # Errors
    /// `UnsupportedType` where a column's default is of a nested type.
    pub fn adapter(&self, index: usize) -> Result<FieldAdapter> {
        let constants = self.values.constants(index)?;
        match constants.is_empty() {
            true => Ok(self.adapter.clone()),
            false => FieldAdapter::try_new(&self.spec.schema, constants),
        }
    }

    /// The deleted positions of data file `index`; None where no delete file lists any.
    ///
    /// # Errors
    /// `Data` where a delete file is damaged; storage errors as they are.
    pub async fn positions(
        &self,
        store: &Arc<dyn ObjectStore>,
        index: usize,
    ) -> Result<Option<Positions>> {
        self.deletes.positions(&self.spec, store, index as u32).await
    }

    /// The equality deletes that may apply to data file `index`.
    ///
    /// # Errors
    /// As [`positions`](Self::positions).
    pub async fn equality(
        &self,
        store: &Arc<dyn ObjectStore>,
        index: usize,
    ) -> Result<Vec<Arc<EqualityKeys>>> {
        let mut keys = Vec::new();
        for group in &self.spec.files[index].equality {
            keys.push(self.deletes.keys(&self.spec, store, *group).await?);
        }
        Ok(keys)
    }

    /// The batch that a worker process makes the same values from.
    pub fn values_batch(&self) -> &RecordBatch {
        self.values.batch()
    }
}

#[async_trait]
impl TableMetadata for LakeTable {
    fn pinned(&self) -> PinnedVersion<'_> {
        PinnedVersion {
            format: "iceberg",
            table_id: &self.spec.uuid,
            version: self.spec.snapshot,
            schema: self.spec.schema.schema_id(),
        }
    }

    fn label(&self) -> String {
        self.spec.to_string()
    }

    fn identity(&self) -> Result<String> {
        self.spec.identity()
    }

    fn visible_schema(&self) -> SchemaRef {
        let all = self.read_schema();
        let fields: Vec<_> = all.fields().iter().take(self.spec.visible).cloned().collect();
        Arc::new(Schema::new(fields))
    }

    fn scan_filter(&self) -> Option<&str> {
        self.spec.scan_filter.as_deref()
    }

    fn may_match(&self, predicate: &Arc<dyn PhysicalExpr>) -> Vec<bool> {
        judge(predicate, &self.values).none.iter().map(|none| !none).collect()
    }

    fn constants(&self, index: usize) -> Result<Vec<(String, ScalarValue)>> {
        self.values.constants(index)
    }

    fn names(&self) -> (Vec<String>, Vec<String>) {
        let deletes = |file: &DeleteFile| format!("{} {:?}", file.uri, file.kind);
        let data = self.spec.files.iter().map(|file| file.uri.clone()).collect();
        (data, self.spec.deletes.iter().map(deletes).collect())
    }

    fn uri(&self, index: usize) -> String {
        self.file(index).uri.clone()
    }

    fn listed(&self, index: usize) -> ListedFile<'_> {
        let file = self.file(index);
        ListedFile {
            format: (file.format == Storage::Orc).then_some(&Format::Orc),
            records: file.records,
            live: (!file.has_deletes()).then_some(file.records),
            has_deletes: file.has_deletes(),
            has_equality_deletes: !file.equality.is_empty(),
        }
    }

    fn expr_adapter(&self, index: usize) -> Result<Arc<dyn PhysicalExprAdapterFactory>> {
        Ok(Arc::new(self.adapter(index)?))
    }

    fn stored_bytes(&self, columns: &[String], index: usize) -> Option<u64> {
        self.values.stored_bytes(columns, index)
    }

    async fn deleted_positions(
        &self,
        store: &Arc<dyn ObjectStore>,
        index: usize,
    ) -> Result<Option<Positions>> {
        self.positions(store, index).await
    }
}
