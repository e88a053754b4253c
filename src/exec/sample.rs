//! `TABLESAMPLE BERNOULLI`: a table whose rows are kept or not by their numbers.
//!
//! ```text
//! FilterExec                       of the query; it never gets below the sample
//!   SampleExec: bernoulli 10%, repeatable 7
//!     DataSourceExec               of all rows, in file order; or, by splits, SplitScanExec
//! ```
//! A row's number is its place among the rows of its file, or of its table in memory, before any
//! filter. A split says which number its first row has, so the sample is the same however the file
//! is cut.

use std::fmt;
use std::sync::Arc;

use arrow::array::BooleanArray;
use arrow::buffer::BooleanBuffer;
use arrow::compute::filter_record_batch;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Statistics, internal_err};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::{StreamExt, TryStreamExt};

use super::open::open_split;
use super::replay::NumberedScanExec;
use super::rewrite::file_scan;
use super::split_scan::{ScanSource, SplitScanExec};
use crate::basics::{node_basics, table_basics};
use crate::formats::{FileRef, Split, SplitUnit, TableFiles};
use crate::sharding::{Bernoulli, FileSample};

/// The share of a table's rows that is kept, and the seed that picks them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Percentage of the rows that are kept; in 0..=100.
    pub percent: f64,
    /// Another seed gives an independent sample.
    pub seed: u64,
}

/// A registered table, sampled.
#[derive(Debug)]
pub struct SampledTable {
    table: Arc<dyn TableProvider>,
    sample: Sample,
}

impl SampledTable {
    /// A sample of a table of this crate: files, an Iceberg snapshot, or batches in memory.
    pub fn new(table: Arc<dyn TableProvider>, sample: Sample) -> Self {
        Self { table, sample }
    }
}

#[async_trait]
impl TableProvider for SampledTable {
    table_basics!(this => this.table.schema());

    /// A filter that leaves out whole files, by their hive values, numbers no row anew. Others stay
    /// above.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DfResult<Vec<TableProviderFilterPushDown>> {
        let supported = self.table.supports_filters_pushdown(filters)?;
        let whole_files = |supported| match supported {
            TableProviderFilterPushDown::Exact => TableProviderFilterPushDown::Exact,
            _ => TableProviderFilterPushDown::Unsupported,
        };
        Ok(supported.into_iter().map(whole_files).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let scan = self.table.scan(state, projection, filters, None).await?;
        Ok(Arc::new(SampleExec::new(scan, self.sample)))
    }
}

/// Keeps the rows of a scan that are in the sample. DataFusion's rules push neither filters nor
/// limits through an operator that does not say that it takes them.
#[derive(Debug)]
pub struct SampleExec {
    input: Arc<dyn ExecutionPlan>,
    sample: Sample,
    properties: Arc<PlanProperties>,
}

/// Where the rows of one execution come from.
enum Origin {
    /// Rows of one file, or of one table, from this number on.
    Rows {
        place: u64,
        first: u64,
    },
    /// Whole files, one after the other.
    Files {
        table: Arc<TableFiles>,
        config: Arc<FileScanConfig>,
        files: Vec<usize>,
    },
    Nothing,
}

impl SampleExec {
    /// A sample of the rows of `input`, a scan without a predicate.
    pub fn new(input: Arc<dyn ExecutionPlan>, sample: Sample) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self { input, sample, properties }
    }

    /// The sample over another scan of the same rows.
    pub(super) fn over(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self::new(input, self.sample)
    }

    /// Which rows are kept.
    pub fn sample(&self) -> Sample {
        self.sample
    }

    /// The scan.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    fn origin(&self, partition: usize) -> DfResult<Origin> {
        let mut scan = &self.input;
        while let Some(inner) = scan.as_any().downcast_ref::<CooperativeExec>() {
            scan = inner.input();
        }
        let node = scan.as_any();
        if let Some(numbered) = node.downcast_ref::<NumberedScanExec>() {
            return of_splits(numbered.scan(), partition);
        }
        if node.is::<EmptyExec>() {
            return Ok(Origin::Nothing);
        }
        let Some(config) = node.downcast_ref::<DataSourceExec>().and_then(file_scan) else {
            return of_splits(scan, partition);
        };
        if config.file_source.filter().is_some() || config.limit.is_some() {
            return internal_err!("a filter or a limit got below a sample");
        }
        let group = config.file_groups.get(partition);
        let files = || group.into_iter().flat_map(|group| group.files());
        let refs: Vec<&FileRef> = files().filter_map(FileRef::of).collect();
        if refs.len() != files().count() || files().any(|file| file.range.is_some()) {
            return internal_err!("a scan below a sample was cut, or is not of registered files");
        }
        let Some(first) = refs.first() else { return Ok(Origin::Nothing) };
        let one = FileScanConfigBuilder::from(config.clone()).with_file_groups(Vec::new());
        Ok(Origin::Files {
            table: Arc::clone(&first.table),
            config: Arc::new(one.build()),
            files: refs.iter().map(|file| file.index).collect(),
        })
    }
}

fn of_splits(scan: &Arc<dyn ExecutionPlan>, partition: usize) -> DfResult<Origin> {
    let Some(scan) = scan.as_any().downcast_ref::<SplitScanExec>() else {
        return internal_err!("a sample of {} has no row numbers", scan.name());
    };
    let Some(split) = scan.splits().get(partition) else {
        return internal_err!("split {partition} of {} does not exist", scan.splits().len());
    };
    let place = match scan.source() {
        ScanSource::Files { table, .. } => table.place(split.file as usize),
        ScanSource::Memory { .. } => 0,
        ScanSource::Empty => return Ok(Origin::Nothing),
    };
    let first = match split.unit {
        // Where its first row lies is not known: a scan below a sample is never cut like this.
        SplitUnit::Bytes { .. } => {
            return internal_err!("a sample cannot number the rows of {}", split.unit);
        }
        _ => split.first_row,
    };
    Ok(Origin::Rows { place, first })
}

/// The rows of a stream that are in the sample; the first one has the number `first`.
fn sampled(
    rows: SendableRecordBatchStream,
    sample: FileSample,
    first: u64,
) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let mut next = first;
    let kept = rows.map(move |batch| {
        let batch = batch?;
        let start = next;
        next += batch.num_rows() as u64;
        keep(&batch, |row| sample.keeps(start + row as u64))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, kept))
}

fn keep(batch: &RecordBatch, keeps: impl FnMut(usize) -> bool) -> DfResult<RecordBatch> {
    let mask = BooleanArray::new(BooleanBuffer::collect_bool(batch.num_rows(), keeps), None);
    Ok(filter_record_batch(batch, &mask)?)
}

impl DisplayAs for SampleExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SampleExec: bernoulli {}%, repeatable {}", self.sample.percent, self.sample.seed)
    }
}

impl ExecutionPlan for SampleExec {
    node_basics!("SampleExec");

    /// No sort moves below it: a sample goes by the numbers of rows.
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.over(children.swap_remove(0))))
    }

    /// Rows and bytes in the mean, by which DataFusion chooses the build side of a join; never
    /// exact, so that nothing counts by them.
    fn partition_statistics(&self, partition: Option<usize>) -> DfResult<Statistics> {
        let below = self.input.partition_statistics(partition)?;
        let share = self.sample.percent / 100.0;
        let scaled = |number: &Precision<usize>| match number.get_value() {
            Some(number) => Precision::Inexact((*number as f64 * share) as usize),
            None => Precision::Absent,
        };
        let mut statistics = Statistics::new_unknown(&self.schema());
        statistics.num_rows = scaled(&below.num_rows);
        statistics.total_byte_size = scaled(&below.total_byte_size);
        Ok(statistics)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        let sample = Bernoulli::new(self.sample.percent, self.sample.seed);
        match self.origin(partition)? {
            Origin::Rows { place, first } => {
                let rows = self.input.execute(partition, context)?;
                Ok(sampled(rows, sample.of_file(place), first))
            }
            Origin::Nothing => self.input.execute(partition, context),
            Origin::Files { table, config, files } => {
                let schema = self.schema();
                let rows = futures::stream::iter(files).map(move |index| -> DfResult<_> {
                    let split = whole(&table, index);
                    let rows = open_split(&table, &config, &schema, &split, Arc::clone(&context))?;
                    Ok(sampled(rows, sample.of_file(table.place(index)), 0))
                });
                Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows.try_flatten())))
            }
        }
    }
}

/// The whole of a file as one split.
fn whole(table: &TableFiles, index: usize) -> Split {
    let (file, bytes) = (index as u32, table.files[index].meta.size);
    Split { scan: 0, file, unit: SplitUnit::File, rows: None, deleted: 0, first_row: 0, bytes }
}
