//! The leaf that replaces a driving scan: one split is one DataFusion partition.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::stats::Precision;
use datafusion::common::{Statistics, internal_datafusion_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::parquet::ParquetAccessPlan;
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSource;
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};

use super::open::{open_split, parquet_options, predicate_first, projected};
use crate::basics::node_basics;
use crate::formats::{Format, MatrixExpr, Split, SplitUnit, TableFiles, memory};
use crate::matrix::{MatrixColumns, places};

/// The source of a driving scan.
#[derive(Clone, Debug)]
pub enum ScanSource {
    /// Files; the configuration carries projection and predicate, and no file groups.
    Files {
        /// The pinned files.
        table: Arc<TableFiles>,
        /// Projection, predicate and options, as DataFusion's planner left them.
        config: Arc<FileScanConfig>,
    },
    /// A table in memory, projected.
    Memory {
        /// Its columns, before the projection.
        schema: SchemaRef,
        /// Its batches, in order.
        batches: Arc<Vec<RecordBatch>>,
        /// Its size, a function of its content alone: see [`MemoryTable`](super::MemoryTable).
        bytes: u64,
        /// Columns read.
        projection: Option<Vec<usize>>,
        /// The digest of its rows, where it has any.
        content: Option<Arc<str>>,
        /// Text that a plan shows for a table without rows of its own: a stage that may not be
        /// built yet.
        stands_for: Option<Arc<str>>,
    },
    /// Nothing to read: the planner proved that no row comes from here.
    Empty,
}

impl ScanSource {
    /// Returns true if all of it is in memory or on the local file system.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Files { table, .. } => {
                table.files.iter().all(|file| table.footers.is_local(&file.meta.location))
            }
            Self::Memory { .. } | Self::Empty => true,
        }
    }
}

/// Scans splits. Partition `i` is split `i`; its one-split scan is built when it is executed, so
/// that a plan over a million splits stays compact.
#[derive(Debug)]
pub struct SplitScanExec {
    source: ScanSource,
    splits: Arc<[Split]>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

/// The rows of its file that an execution reads, as an extension of the session's configuration,
/// since `execute` takes no other argument: of a Parquet file without a predicate, see
/// [`SplitScanExec::skippable`].
#[derive(Clone, Debug)]
pub struct ReadOnly(pub ParquetAccessPlan);

impl SplitScanExec {
    /// A leaf with one partition per split.
    pub fn new(source: ScanSource, splits: Arc<[Split]>, schema: SchemaRef) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(splits.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self { source, splits, schema, properties }
    }

    /// The source that it reads from.
    pub fn source(&self) -> &ScanSource {
        &self.source
    }

    /// The splits, by partition.
    pub fn splits(&self) -> &Arc<[Split]> {
        &self.splits
    }

    /// A scan of all rows before the predicate that was pushed into the scan, with the columns that
    /// it needs, and the predicate over these; None where there is no predicate, so that the scan
    /// puts out every row.
    ///
    /// # Errors
    /// An internal error where the format takes no projection.
    pub fn before_predicate(&self) -> DfResult<Option<(Self, Arc<dyn PhysicalExpr>)>> {
        let ScanSource::Files { table, config } = &self.source else { return Ok(None) };
        let Some(predicate) = config.file_source.filter() else { return Ok(None) };
        let all = table.schema.table_schema();
        let mut needed: Vec<usize> =
            collect_columns(&predicate).iter().map(|column| column.index()).collect();
        needed.sort_unstable();
        let source = table.source(&parquet_options(config), false);
        let projection = ProjectionExprs::from_indices(&needed, all);
        let source = projected(&source, &projection)?;
        let config = FileScanConfigBuilder::from(config.as_ref().clone()).with_source(source);
        let source =
            ScanSource::Files { table: Arc::clone(table), config: Arc::new(config.build()) };
        let schema = Arc::new(all.project(&needed)?);
        let predicate = reassign_expr_columns(predicate, &schema)?;
        Ok(Some((Self::new(source, Arc::clone(&self.splits), schema), predicate)))
    }

    /// A scan of all rows of `splits`, without a predicate, with the unconverted file columns that
    /// `source` reads: a failure here is not the query's fault. None if no file is read.
    ///
    /// # Errors
    /// An internal error where the format takes no projection.
    pub fn plain(
        source: &ScanSource,
        columns: &[String],
        splits: Arc<[Split]>,
    ) -> DfResult<Option<Self>> {
        let ScanSource::Files { table, config } = source else { return Ok(None) };
        let all = table.schema.table_schema();
        let read: Vec<usize> = columns.iter().filter_map(|name| all.index_of(name).ok()).collect();
        let source = table.source(&parquet_options(config), false);
        let source = projected(&source, &ProjectionExprs::from_indices(&read, all))?;
        let config = FileScanConfigBuilder::from(config.as_ref().clone()).with_source(source);
        let source =
            ScanSource::Files { table: Arc::clone(table), config: Arc::new(config.build()) };
        Ok(Some(Self::new(source, splits, Arc::new(all.project(&read)?))))
    }

    /// Appends those of `matrices` that save something after all other output columns. Matrices are
    /// made from columns of local Parquet files, all of which must be read. Returns None if none
    /// saves anything.
    ///
    /// # Errors
    /// An internal error where the format takes no projection.
    pub fn with_matrices(
        &self,
        matrices: Vec<MatrixColumns>,
    ) -> DfResult<Option<(Self, Vec<MatrixColumns>)>> {
        let ScanSource::Files { table, config } = &self.source else { return Ok(None) };
        if matrices.is_empty() {
            return Ok(None);
        }
        let is_read_whole = table.format == Format::Parquet
            && table.metadata.is_none()
            && config.file_source.filter().is_none()
            && config.limit.is_none()
            && self.source.is_local();
        let Some(projection) = config.file_source.projection().filter(|_| is_read_whole) else {
            return Ok(None);
        };
        let all: Vec<ProjectionExpr> = projection.iter().cloned().collect();
        let stored = table.schema.file_schema().fields().len();
        let made = |matrix: &MatrixColumns| {
            let column = |place: &usize| {
                let expr = &all.get(*place)?.expr;
                let column = expr.as_any().downcast_ref::<Column>()?;
                (column.index() < stored).then(|| Arc::clone(expr))
            };
            let columns = matrix.columns.iter().map(column).collect::<Option<Vec<_>>>()?;
            let item = self.schema.field(*matrix.columns.first()?).data_type();
            MatrixExpr::try_new(columns, item.clone())
        };
        let made = matrices.into_iter().filter_map(|matrix| Some((made(&matrix)?, matrix)));
        let (made, matrices): (Vec<_>, Vec<_>) = made.unzip();
        if made.is_empty() {
            return Ok(None);
        }
        let (left, _) = places(all.len(), &matrices);
        let left = all.iter().zip(left).filter(|(_, left)| left.is_some());
        let made = made.into_iter().enumerate().map(|(number, matrix)| {
            ProjectionExpr::new(Arc::new(matrix), format!("matrix {number}"))
        });
        let projection = ProjectionExprs::new(left.map(|(expr, _)| expr.clone()).chain(made));
        let schema = Arc::new(projection.project_schema(table.schema.table_schema())?);
        let source = projected(&table.source(&parquet_options(config), false), &projection)?;
        let config = FileScanConfigBuilder::from(config.as_ref().clone()).with_source(source);
        let source =
            ScanSource::Files { table: Arc::clone(table), config: Arc::new(config.build()) };
        Ok(Some((Self::new(source, Arc::clone(&self.splits), schema), matrices)))
    }

    /// The files in which an execution may leave out rows by their number ([`ReadOnly`]): Parquet
    /// files without a predicate, which would count other rows.
    pub fn skippable(source: &ScanSource) -> Option<Arc<TableFiles>> {
        match source {
            ScanSource::Files { table, config } => (matches!(table.format, Format::Parquet)
                && config.file_source.filter().is_none())
            .then(|| Arc::clone(table)),
            ScanSource::Memory { .. } | ScanSource::Empty => None,
        }
    }
}

impl DisplayAs for SplitScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ScanSource::Memory { stands_for: Some(what), .. } = &self.source {
            return write!(f, "SplitScanExec: {what}");
        }
        write!(f, "SplitScanExec: splits={}", self.splits.len())?;
        match &self.source {
            ScanSource::Files { table, config } => {
                match &table.metadata {
                    Some(lake) => write!(f, ", {}={}", lake.pinned().format, lake.label())?,
                    None => write!(f, ", format={}", table.format.name())?,
                }
                write!(f, ", files={}", table.files.len())?;
                if let Some(filter) = config.file_source.filter() {
                    write!(f, ", predicate={filter}")?;
                }
                if predicate_first(table, config).is_some() {
                    f.write_str(", materialisation=late")?;
                }
                Ok(())
            }
            ScanSource::Memory { batches, .. } => {
                let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
                write!(f, ", format=memory, rows={rows}")
            }
            ScanSource::Empty => Ok(()),
        }
    }
}

impl ExecutionPlan for SplitScanExec {
    node_basics!("SplitScanExec", leaf);

    /// Rows of a table in memory, by which DataFusion chooses the build side of a join.
    fn partition_statistics(&self, partition: Option<usize>) -> DfResult<Statistics> {
        let mut statistics = Statistics::new_unknown(&self.schema);
        if matches!(self.source, ScanSource::Memory { .. }) {
            let splits = match partition {
                Some(index) => self.splits.get(index..=index).unwrap_or_default(),
                None => &self.splits,
            };
            let rows: u64 = splits.iter().filter_map(|split| split.rows).sum();
            statistics.num_rows = Precision::Exact(rows as usize);
        }
        Ok(statistics)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        let split = self.splits.get(partition).ok_or_else(|| {
            internal_datafusion_err!("split {partition} of {} does not exist", self.splits.len())
        })?;
        match (&self.source, split.unit) {
            (ScanSource::Files { table, config }, _) => {
                open_split(table, config, &self.schema, split, context)
            }
            (ScanSource::Memory { schema, batches, projection, .. }, SplitUnit::Rows(range)) => {
                let (pieces, schema) = (memory::slice(batches, range), Arc::clone(schema));
                let scan = MemorySourceConfig::try_new(&[pieces], schema, projection.clone())?;
                scan.open(0, context)
            }
            (source, unit) => Err(internal_datafusion_err!("{source:?} cannot read {unit}")),
        }
    }
}
