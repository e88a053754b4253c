//! How DataFusion reads ORC files: a source that takes projections, and opens the stripes of a byte range.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::config::ConfigOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::physical_expr::projection::{ProjectionExprs, Projector};
use datafusion::physical_expr::simplifier::PhysicalExprSimplifier;
use datafusion::physical_expr::utils::reassign_expr_columns;
use datafusion::physical_expr::{PhysicalExpr, conjunction};
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapterFactory, replace_columns_with_literals,
};
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::StreamExt;
use object_store::ObjectStore;

use super::footer::{OrcFooter, read_orc_footer};
use super::stripe::{OrcRead, open};
use super::types::with_units_of;
use crate::split::footers::FooterCache;

/// Rows of a batch where DataFusion does not say.
const BATCH_ROWS: usize = 8192;

/// Reads ORC files as a table: columns by name, those that a file lacks null, types cast where the table's differ.
///
/// Predicates are not evaluated here: a `FilterExec` above does that. They are kept for the pruning of stripes.
#[derive(Clone)]
pub struct OrcSource {
    schema: TableSchema,
    projection: ProjectionExprs,
    predicate: Option<Arc<dyn PhysicalExpr>>,
    footers: Arc<FooterCache>,
    batch_rows: usize,
    metrics: ExecutionPlanMetricsSet,
}

impl OrcSource {
    /// A source of all columns, which takes footers from `footers`.
    pub fn new(schema: TableSchema, footers: Arc<FooterCache>) -> Self {
        let all: Vec<usize> = (0..schema.table_schema().fields().len()).collect();
        let projection = ProjectionExprs::from_indices(&all, schema.table_schema());
        let metrics = ExecutionPlanMetricsSet::new();
        Self { schema, projection, predicate: None, footers, batch_rows: BATCH_ROWS, metrics }
    }

    /// What a filter above keeps, over the table's schema: rows of which it is not true need not be read.
    pub fn pruning_predicate(&self) -> Option<&Arc<dyn PhysicalExpr>> {
        self.predicate.as_ref()
    }
}

impl FileSource for OrcSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _base_config: &FileScanConfig,
        _partition: usize,
    ) -> DfResult<Arc<dyn FileOpener>> {
        let output = self.projection.project_schema(self.schema.table_schema())?;
        Ok(Arc::new(OrcOpener { source: self.clone(), output: Arc::new(output), store }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn table_schema(&self) -> &TableSchema {
        &self.schema
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        Arc::new(Self { batch_rows: batch_size, ..self.clone() })
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        Some(&self.projection)
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    fn file_type(&self) -> &str {
        "orc"
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> DfResult<FilterPushdownPropagation<Arc<dyn FileSource>>> {
        let unsupported = vec![PushedDown::No; filters.len()];
        let predicate = conjunction(self.predicate.iter().cloned().chain(filters));
        let source: Arc<dyn FileSource> =
            Arc::new(Self { predicate: Some(predicate), ..self.clone() });
        Ok(FilterPushdownPropagation::with_parent_pushdown_result(unsupported)
            .with_updated_node(source))
    }

    fn try_pushdown_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> DfResult<Option<Arc<dyn FileSource>>> {
        let projection = self.projection.try_merge(projection)?;
        Ok(Some(Arc::new(Self { projection, ..self.clone() })))
    }
}

struct OrcOpener {
    source: OrcSource,
    /// Of the projected columns.
    output: SchemaRef,
    store: Arc<dyn ObjectStore>,
}

impl FileOpener for OrcOpener {
    fn open(&self, file: PartitionedFile) -> DfResult<FileOpenFuture> {
        let (source, output) = (self.source.clone(), Arc::clone(&self.output));
        let store = Arc::clone(&self.store);
        Ok(Box::pin(async move {
            let meta = &file.object_meta;
            let footer = read_orc_footer(&store, meta, &source.footers).await?;
            let reader = Reader::try_new(&source, &file, &footer)?;
            let read = OrcRead {
                stripes: stripes_of(&footer, &file),
                columns: reader.columns.clone(),
                schema: Arc::clone(&reader.physical),
                batch_rows: source.batch_rows,
            };
            let batches = open(store, meta, footer, read)?;
            let batches = batches.map(move |batch| {
                batch.map_err(DataFusionError::from).and_then(|batch| reader.adapt(&batch, &output))
            });
            Ok(batches.boxed())
        }))
    }
}

/// The stripes that begin in the file's byte range.
fn stripes_of(footer: &OrcFooter, file: &PartitionedFile) -> Range<usize> {
    let stripes = footer.stripes();
    let Some(range) = &file.range else { return 0..stripes.len() };
    let inside = |offset: u64| {
        i64::try_from(offset).is_ok_and(|offset| (range.start..range.end).contains(&offset))
    };
    let mut numbers = (0..stripes.len()).filter(|number| inside(stripes[*number].offset));
    match numbers.next() {
        Some(first) => first..numbers.next_back().unwrap_or(first) + 1,
        None => 0..0,
    }
}

/// From one file's own columns to the projected ones of the table.
struct Reader {
    /// All columns of the file, as they are decoded.
    physical: SchemaRef,
    /// Those that the projection needs, by their place in the file.
    columns: Vec<usize>,
    projector: Projector,
}

impl Reader {
    fn try_new(source: &OrcSource, file: &PartitionedFile, footer: &OrcFooter) -> DfResult<Self> {
        let table = source.schema.file_schema();
        let physical = with_units_of(&footer.plain_schema(), table);
        let constants = source
            .schema
            .table_partition_cols()
            .iter()
            .zip(&file.partition_values)
            .map(|(field, value)| (field.name().as_str(), value))
            .collect();
        let adapter =
            DefaultPhysicalExprAdapterFactory.create(Arc::clone(table), Arc::clone(&physical))?;
        let simplifier = PhysicalExprSimplifier::new(&physical);
        let projection = source.projection.clone().try_map_exprs(|expr| {
            let expr = replace_columns_with_literals(expr, &constants)?;
            simplifier.simplify(adapter.rewrite(expr)?)
        })?;
        let columns = projection.column_indices();
        let read: Schema = physical.project(&columns)?;
        let projection = projection.try_map_exprs(|expr| reassign_expr_columns(expr, &read))?;
        let projector = projection.make_projector(&read)?;
        Ok(Self { physical, columns, projector })
    }

    /// A batch of the file's columns as one of the table's, with the table's own fields.
    fn adapt(&self, batch: &RecordBatch, output: &SchemaRef) -> DfResult<RecordBatch> {
        let rows = batch.num_rows();
        let (_, columns, _) = self.projector.project_batch(batch)?.into_parts();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(output), columns, &options)?)
    }
}
