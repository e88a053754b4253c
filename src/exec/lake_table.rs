//! A pinned version of an Iceberg or Delta table as a DataFusion table.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DFSchema;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result as DfResult;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::utils::conjunction_opt;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;

use super::lake_scan::LakeScan;
use crate::basics::table_basics;
use crate::catalog::{outlined, statistics, unqualified};
use crate::formats::{Outline, TableFiles, TableMetadata};
use crate::{Error, Result};

/// A pinned snapshot: metadata prunes its files, the rest is the scan's.
#[derive(Debug)]
pub struct LakeProvider {
    files: Arc<TableFiles>,
    lake: Arc<dyn TableMetadata>,
    schema: SchemaRef,
    /// The scan filter of `lake`, parsed by the first scan.
    scan_filter: OnceLock<Expr>,
}

impl LakeProvider {
    /// A table over the files that [`open_lake`](crate::catalog::open_lake) or
    /// [`open_delta`](crate::catalog::open_delta) gave.
    ///
    /// # Errors
    /// An internal error for other files.
    pub fn try_new(files: Arc<TableFiles>) -> Result<Self> {
        let lake = files.metadata.clone();
        let lake = lake.ok_or_else(|| Error::config("these are files of no table format"))?;
        let schema = lake.visible_schema();
        Ok(Self { files, lake, schema, scan_filter: OnceLock::new() })
    }

    /// The pinned files.
    pub fn files(&self) -> &Arc<TableFiles> {
        &self.files
    }

    /// The files that may hold rows of a scan with these filters, or with the table's own scan
    /// filter.
    fn keep(&self, state: &dyn Session, filters: &[Expr]) -> DfResult<Vec<usize>> {
        let count = self.files.files.len();
        let all = || (0..count).collect();
        let df_schema = DFSchema::try_from(Arc::clone(&self.schema))?;
        let filter = match self.lake.scan_filter() {
            Some(text) => Some(match self.scan_filter.get() {
                Some(parsed) => parsed.clone(),
                None => {
                    let parsed = parse_filter(state, text, &df_schema)?;
                    self.scan_filter.get_or_init(|| parsed).clone()
                }
            }),
            None => {
                let filters = filters.iter().filter(|filter| !filter.is_volatile());
                conjunction(filters.map(unqualified).collect::<DfResult<Vec<_>>>()?)
            }
        };
        let Some(filter) = filter else { return Ok(all()) };
        // Conjunct by conjunct: one by which bounds say nothing leaves the others their say.
        let filters = split_conjunction_owned(filter).into_iter();
        let predicates = filters
            .map(|filter| state.create_physical_expr(filter, &df_schema))
            .collect::<DfResult<Vec<_>>>()?;
        let Some(predicate) = conjunction_opt(predicates) else { return Ok(all()) };
        let kept = self.lake.may_match(&predicate);
        Ok(kept.iter().enumerate().filter_map(|(at, keep)| keep.then_some(at)).collect())
    }

    /// Rows and bytes of the kept files. With deletes, rows are known to be no more than those
    /// stored.
    fn outline(&self, kept: &[usize]) -> Outline {
        let listed = || kept.iter().map(|index| self.lake.listed(*index));
        Outline {
            files: kept.len() as u64,
            bytes: kept.iter().map(|index| self.files.files[*index].meta.size).sum(),
            rows: Some(listed().map(|file| file.live.unwrap_or(file.records)).sum()),
            exact: listed().all(|file| file.live.is_some()),
        }
    }
}

/// A scan filter: SQL over the table's columns.
///
/// # Errors
/// Where it does not parse, or names a column that the table does not have.
fn parse_filter(state: &dyn Session, text: &str, schema: &DFSchema) -> DfResult<Expr> {
    let state = state.as_any().downcast_ref::<SessionState>();
    let state = state.ok_or_else(|| Error::config("a scan filter needs a session's own state"))?;
    let expr = state.create_logical_expr(text, schema)?;
    // As the optimiser does with a query's filters: `NOT (a < 1)` becomes `a >= 1`, by which files
    // can be pruned.
    let context = SimplifyContext::default().with_schema(Arc::new(schema.clone()));
    let simplifier = ExprSimplifier::new(context);
    simplifier.simplify(simplifier.coerce(expr, schema)?)
}

#[async_trait]
impl TableProvider for LakeProvider {
    table_basics!(this => Arc::clone(&this.schema));

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DfResult<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        // Hidden columns come last, so positions of visible ones hold in both schemas.
        let visible = (0..self.schema.fields().len()).collect();
        let projection = projection.cloned().unwrap_or(visible);
        let kept = self.keep(state, filters)?;
        let outline = outlined(&self.files, filters, self.outline(&kept))?;
        if outline.files == 0 {
            return Ok(Arc::new(EmptyExec::new(Arc::new(self.schema.project(&projection)?))));
        }
        let parquet = state.default_table_options().parquet;
        let source = self.files.source(&parquet, !filters.is_empty());
        let group = kept.iter().map(|index| self.files.partitioned_file(*index)).collect();
        let config = FileScanConfigBuilder::new(self.files.store_url.clone(), source)
            .with_file_group(FileGroup::new(group))
            .with_statistics(statistics(&self.files, &outline))
            .with_projection_indices(Some(projection))?
            .build();
        Ok(DataSourceExec::from_data_source(LakeScan::new(
            Arc::clone(&self.files),
            config,
            outline.files,
        )))
    }
}
