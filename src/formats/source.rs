//! How DataFusion reads the formats whose files are decoded here: a source that takes projections,
//! and opens the units (stripes, record batches, blocks) of a byte range.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use async_trait::async_trait;
use datafusion::config::ConfigOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::physical_expr::projection::{ProjectionExprs, Projector};
use datafusion::physical_expr::simplifier::PhysicalExprSimplifier;
use datafusion::physical_expr::{PhysicalExpr, conjunction};
use datafusion::physical_expr_adapter::{
    PhysicalExprAdapterFactory, replace_columns_with_literals,
};
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::{ObjectMeta, ObjectStore};

use super::evolve::ByName;
use super::footers::FooterCache;
use super::places::Places;
use crate::Result;
use crate::panics::evaluated;

/// Rows of a batch where DataFusion does not say.
const BATCH_ROWS: usize = 8192;

/// The columns of a file that are read, and how.
#[derive(Clone, Debug)]
pub struct ColumnRead {
    /// The part of the file whose units are read; None: all of it.
    pub range: Option<Range<u64>>,
    /// Top-level columns by their places in the file, ascending; the batches have them in this
    /// order.
    pub columns: Vec<usize>,
    /// Every top-level column of the file, as decoded.
    pub schema: SchemaRef,
    /// Rows of a batch, at most.
    pub batch_rows: usize,
}

/// A format whose files have a head or footer that says where their units lie.
#[async_trait]
pub trait UnitFormat: Clone + fmt::Debug + Send + Sync + Unpin + 'static {
    /// The facts of a file that are needed before its rows are read.
    type Footer: Send + Sync + 'static;

    /// The name that plans show.
    const NAME: &'static str;

    /// The footer of a file, from the cache where it was read before.
    ///
    /// # Errors
    /// `Data` where the file is damaged (the caller names it); storage errors as they are.
    async fn footer(
        &self,
        store: &Arc<dyn ObjectStore>,
        meta: &ObjectMeta,
        cache: &FooterCache,
    ) -> Result<Arc<Self::Footer>>;

    /// The file's columns as they are decoded for a table of schema `table`.
    fn schema(&self, footer: &Self::Footer, table: &Schema) -> SchemaRef;

    /// Opens the wanted part of a file: batches in row order, with the columns of `read`.
    ///
    /// # Errors
    /// `Data` where the file is damaged (the caller names it), from the stream as well; storage
    /// errors as they are.
    async fn open(
        &self,
        store: Arc<dyn ObjectStore>,
        meta: ObjectMeta,
        footer: Arc<Self::Footer>,
        read: ColumnRead,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>>;
}

/// A format whose files become batches here.
#[async_trait]
pub trait RowFormat: Clone + fmt::Debug + Send + Sync + Unpin + 'static {
    /// Returns true if files consist of units, so that any byte range has some of them, and
    /// statistics may say which are wanted.
    const HAS_UNITS: bool;

    /// The name that plans show.
    fn name(&self) -> &'static str;

    /// Opens a file, or the range of it that is wanted: batches in row order, of schema `output`.
    ///
    /// # Errors
    /// `Data` where the file is damaged; storage errors as they are.
    async fn open(
        source: RowSource<Self>,
        store: Arc<dyn ObjectStore>,
        file: PartitionedFile,
        output: SchemaRef,
    ) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>>;
}

/// Reads files of one format as a table: missing columns null, types cast to the table's.
///
/// Predicates are not evaluated here: a `FilterExec` above does that. They are kept for pruning.
#[derive(Clone)]
pub struct RowSource<F> {
    pub(super) format: F,
    pub(super) schema: TableSchema,
    pub(super) projection: ProjectionExprs,
    predicate: Option<Arc<dyn PhysicalExpr>>,
    footers: Arc<FooterCache>,
    pub(super) batch_rows: usize,
    metrics: ExecutionPlanMetricsSet,
}

impl<F: RowFormat> RowSource<F> {
    /// A source of all columns, which takes footers from `footers`.
    pub fn new(format: F, schema: TableSchema, footers: Arc<FooterCache>) -> Self {
        let all: Vec<usize> = (0..schema.table_schema().fields().len()).collect();
        let projection = ProjectionExprs::from_indices(&all, schema.table_schema());
        let metrics = ExecutionPlanMetricsSet::new();
        Self {
            format,
            schema,
            projection,
            predicate: None,
            footers,
            batch_rows: BATCH_ROWS,
            metrics,
        }
    }

    /// The predicate of a filter above, over the table's schema. Rows for which it is not true need
    /// not be read.
    pub fn pruning_predicate(&self) -> Option<&Arc<dyn PhysicalExpr>> {
        self.predicate.as_ref()
    }
}

impl<F: RowFormat> FileSource for RowSource<F> {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _base_config: &FileScanConfig,
        _partition: usize,
    ) -> DfResult<Arc<dyn FileOpener>> {
        let output = self.projection.project_schema(self.schema.table_schema())?;
        Ok(Arc::new(RowOpener { source: self.clone(), output: Arc::new(output), store }))
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
        self.format.name()
    }

    fn supports_repartitioning(&self) -> bool {
        F::HAS_UNITS
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> DfResult<FilterPushdownPropagation<Arc<dyn FileSource>>> {
        let above = vec![PushedDown::No; filters.len()];
        let above = FilterPushdownPropagation::with_parent_pushdown_result(above);
        if !F::HAS_UNITS {
            return Ok(above);
        }
        let predicate = Some(conjunction(self.predicate.iter().cloned().chain(filters)));
        Ok(above.with_updated_node(Arc::new(Self { predicate, ..self.clone() })))
    }

    fn try_pushdown_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> DfResult<Option<Arc<dyn FileSource>>> {
        let projection = self.projection.try_merge(projection)?;
        Ok(Some(Arc::new(Self { projection, ..self.clone() })))
    }
}

struct RowOpener<F> {
    source: RowSource<F>,
    /// The schema of the projected columns.
    output: SchemaRef,
    store: Arc<dyn ObjectStore>,
}

impl<F: RowFormat> FileOpener for RowOpener<F> {
    fn open(&self, file: PartitionedFile) -> DfResult<FileOpenFuture> {
        Ok(F::open(self.source.clone(), Arc::clone(&self.store), file, Arc::clone(&self.output)))
    }
}

#[async_trait]
impl<F: UnitFormat> RowFormat for F {
    const HAS_UNITS: bool = true;

    fn name(&self) -> &'static str {
        F::NAME
    }

    async fn open(
        source: RowSource<F>,
        store: Arc<dyn ObjectStore>,
        file: PartitionedFile,
        output: SchemaRef,
    ) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>> {
        let meta = &file.object_meta;
        let footer = source.format.footer(&store, meta, &source.footers).await?;
        let physical = source.format.schema(&footer, source.schema.file_schema());
        let reader = Reader::try_new(&source.schema, &source.projection, &file, physical)?;
        let read = ColumnRead {
            range: file.range.as_ref().map(|range| {
                let at = |offset| u64::try_from(offset).unwrap_or(0);
                at(range.start)..at(range.end)
            }),
            columns: reader.columns.clone(),
            schema: Arc::clone(&reader.physical),
            batch_rows: source.batch_rows.max(1),
        };
        let batches = UnitFormat::open(&source.format, store, meta.clone(), footer, read).await?;
        let batches = batches.map(move |batch| {
            batch.map_err(DataFusionError::from).and_then(|batch| reader.adapt(&batch, &output))
        });
        Ok(batches.boxed())
    }
}

/// From one file's own columns to the projected ones of the table.
pub(super) struct Reader {
    /// All columns of the file, as they are decoded.
    pub physical: SchemaRef,
    /// The columns that the projection needs, by their place in the file, ascending.
    pub columns: Vec<usize>,
    projector: Projector,
}

impl Reader {
    pub fn try_new(
        schema: &TableSchema,
        projection: &ProjectionExprs,
        file: &PartitionedFile,
        physical: SchemaRef,
    ) -> DfResult<Self> {
        let table = schema.file_schema();
        let constants = schema
            .table_partition_cols()
            .iter()
            .zip(&file.partition_values)
            .map(|(field, value)| (field.name().as_str(), value))
            .collect();
        let adapter = ByName.create(Arc::clone(table), Arc::clone(&physical))?;
        let simplifier = PhysicalExprSimplifier::new(&physical);
        let projection = projection.clone().try_map_exprs(|expr| {
            let expr = replace_columns_with_literals(expr, &constants)?;
            simplifier.simplify(adapter.rewrite(expr)?)
        })?;
        let mut columns = projection.column_indices();
        columns.sort_unstable();
        columns.dedup();
        let read: Schema = physical.project(&columns)?;
        let places = Places::of(&read);
        let projection = projection.try_map_exprs(|expr| places.reassign(expr))?;
        let projector = projection.make_projector(&read)?;
        Ok(Self { physical, columns, projector })
    }

    /// A batch of the file's columns as one of the table's, with the table's own fields.
    pub fn adapt(&self, batch: &RecordBatch, output: &SchemaRef) -> DfResult<RecordBatch> {
        let rows = batch.num_rows();
        let (_, columns, _) = evaluated(|| self.projector.project_batch(batch))?.into_parts();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(output), columns, &options)?)
    }
}
