//! A lazy query: SQL bound to the tables it read when it was made.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, displayable, execute_stream,
};
use futures::{StreamExt, TryStreamExt};

use super::lake::LakeChange;
use super::plan::{Plan, PlanOptions};
use super::registry::{Registered, Session, TableKey};
use crate::query::check_repeatable;
use crate::{Error, ErrorKind, Result};

/// One read-only SQL statement bound to a session.
#[derive(Clone, Debug)]
pub struct Query {
    session: Arc<Session>,
    sql: String,
    plan: LogicalPlan,
    tables: Vec<(TableKey, Registered)>,
}

impl Query {
    pub(super) fn new(
        session: Arc<Session>,
        sql: String,
        plan: LogicalPlan,
        tables: Vec<(TableKey, Registered)>,
    ) -> Self {
        Self { session, sql, plan, tables }
    }

    /// The session it is bound to.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The SQL as it was written.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    pub(super) fn tables(&self) -> &[(TableKey, Registered)] {
        &self.tables
    }

    /// A query around this one: `select` gets this query's SQL to write it into its FROM clause. It
    /// reads the tables that this query read when it was made, whatever their names mean by now.
    ///
    /// # Errors
    /// As for [`Session::query`].
    pub async fn nested(&self, select: impl FnOnce(&str) -> String) -> Result<Self> {
        let session = self.session.of_tables(&self.tables).await?;
        session.query(&select(self.sql.trim_end().trim_end_matches(';'))).await
    }

    /// The same query over its Iceberg tables as they are now, or at these snapshots and schemas by table name; with what changed. Other
    /// tables stay as they were pinned.
    ///
    /// # Errors
    /// What loading a table finds; `Query` where a column that the query names is gone.
    pub async fn refreshed(
        &self,
        at: &BTreeMap<String, (i64, i32)>,
    ) -> Result<(Self, Vec<LakeChange>)> {
        let (tables, changes) = self.session.reload(&self.tables, at).await?;
        let session = self.session.of_tables(&tables).await?;
        Ok((session.query(&self.sql).await?, changes))
    }

    /// The pinned snapshots of its Iceberg tables and the schemas they are read with, by the tables' names.
    pub fn snapshots(&self) -> BTreeMap<String, (i64, i32)> {
        let pinned = self.tables.iter().filter_map(|((_, name), registered)| match registered {
            Registered::Lake(lake) => {
                let spec = lake.table.lake.as_ref()?.spec();
                Some((name.clone(), (spec.snapshot?, spec.schema.schema_id())))
            }
            _ => None,
        });
        pinned.collect()
    }

    /// The rows of several queries, one query after the other.
    ///
    /// # Errors
    /// `Query` where their columns differ; `Config` where a name stands for another table in each.
    pub async fn union_all(queries: &[Self]) -> Result<Self> {
        let Some((first, others)) = queries.split_first() else {
            return Err(Error::config("a mixture needs at least one query"));
        };
        let mut tables = first.tables.clone();
        for other in others {
            check_same_columns(&first.schema(), &other.schema())?;
            for (key, table) in &other.tables {
                match tables.iter().find(|(known, _)| known == key) {
                    None => tables.push((key.clone(), table.clone())),
                    Some((_, known)) if known.is_same(table) => {}
                    Some(_) => {
                        return Err(Error::config(format!(
                            "the queries of a mixture read different tables of the name {:?}; register them \
                             under names of their own",
                            key.1
                        )));
                    }
                }
            }
        }
        let session = first.session.of_tables(&tables).await?;
        let inputs: Vec<String> = (0..queries.len())
            .map(|number| {
                let sql = queries[number].sql.trim_end().trim_end_matches(';');
                format!("SELECT * FROM (\n{sql}\n) AS source_{number}")
            })
            .collect();
        session.query(&inputs.join("\nUNION ALL\n")).await
    }

    /// The driving scans that the query has as an input of [`union_all`](Self::union_all): none where the planner
    /// proves that it has no row.
    ///
    /// # Errors
    /// `NotShardable` naming the operator that is not row-local.
    pub async fn count_scans(&self) -> Result<usize> {
        let plan = self.plan_splits(&PlanOptions::default()).await?;
        Ok(plan.scans_with_rows())
    }

    /// The output columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new_with_metadata(
            self.plan.schema().fields().clone(),
            self.plan.schema().metadata().clone(),
        ))
    }

    /// The optimised physical plan, with one partition.
    pub(super) async fn physical_plan(&self) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.session.context().state().create_physical_plan(&self.plan).await?)
    }

    /// The physical plan of as many rows without the query's columns: joins, filters and unnesting stay,
    /// and leaves read what these need.
    pub(super) async fn physical_plan_of_rows(&self) -> Result<Arc<dyn ExecutionPlan>> {
        use datafusion::logical_expr::lit;
        let plan = LogicalPlanBuilder::from(self.plan.clone()).project([lit(true)])?.build()?;
        Ok(self.session.context().state().create_physical_plan(&plan).await?)
    }

    /// Runs the query in this process and streams its rows.
    ///
    /// # Errors
    /// What planning or opening the first file finds.
    pub async fn stream(&self) -> Result<SendableRecordBatchStream> {
        self.run(self.plan.clone()).await
    }

    async fn run(&self, plan: LogicalPlan) -> Result<SendableRecordBatchStream> {
        let state = self.session.context().state();
        let physical = state.create_physical_plan(&plan).await?;
        let partitions = physical.output_partitioning().partition_count();
        if partitions == 1 {
            return Ok(execute_stream(physical, state.task_ctx())?);
        }
        // The inputs of a UNION ALL one after the other: `execute_stream` would mix them by thread timing.
        let (schema, context) = (physical.schema(), state.task_ctx());
        let rows = futures::stream::iter(0..partitions)
            .map(move |partition| physical.execute(partition, Arc::clone(&context)))
            .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    /// All rows.
    ///
    /// # Errors
    /// What planning or reading finds; damage in a file is named with the file and the part of it.
    pub async fn collect(&self) -> Result<Vec<RecordBatch>> {
        self.gather(self.plan.clone()).await
    }

    /// All rows of a plan, computed by a task of its own: an operator may compute for seconds before it
    /// looks up, and whoever waits here must be able to give up meanwhile. Dropping the future ends the
    /// task.
    async fn gather(&self, plan: LogicalPlan) -> Result<Vec<RecordBatch>> {
        let stream = self.run(plan).await?;
        let task = SpawnedTask::spawn(async move { Ok(stream.try_collect().await?) });
        let stopped = |error| Error::data("the process is ending").with_source(error);
        match task.join_unwind().await.map_err(stopped)? {
            Err(error) if Error::kind(&error) == ErrorKind::Data => Err(self.locate(error).await),
            other => other,
        }
    }

    /// The same error with its place, where reading split by split meets one: DataFusion's own scan
    /// does not say which file it was in.
    async fn locate(&self, error: Error) -> Error {
        let find = async {
            let plan = self.plan_splits(&PlanOptions::default()).await?;
            let epoch = plan.epoch()?;
            for id in 0..plan.splits().len() {
                let mut rows = epoch.execute(u32::try_from(id).unwrap_or(u32::MAX))?;
                while rows.try_next().await?.is_some() {}
            }
            Ok::<(), Error>(())
        };
        match find.await {
            Err(located) if located.kind() == ErrorKind::Data => located,
            _ => error,
        }
    }

    /// The first `rows` rows.
    ///
    /// # Errors
    /// What planning or reading finds.
    pub async fn head(&self, rows: usize) -> Result<Vec<RecordBatch>> {
        let plan = LogicalPlanBuilder::from(self.plan.clone()).limit(0, Some(rows))?.build()?;
        self.gather(plan).await
    }

    /// The exact number of rows; from metadata where that suffices.
    ///
    /// # Errors
    /// What planning or reading finds.
    pub async fn count(&self) -> Result<u64> {
        use datafusion::functions_aggregate::expr_fn::count;
        use datafusion::logical_expr::{Expr, lit};
        let plan = LogicalPlanBuilder::from(self.plan.clone())
            .aggregate(Vec::<Expr>::new(), vec![count(lit(1i64)).alias("rows")])?
            .build()?;
        let batches = self.gather(plan).await?;
        let column = batches.iter().find(|batch| batch.num_rows() > 0).map(|batch| batch.column(0));
        let rows = column
            .and_then(|column| column.as_any().downcast_ref::<arrow::array::Int64Array>())
            .map(|counts| counts.value(0));
        rows.and_then(|rows| u64::try_from(rows).ok())
            .ok_or_else(|| Error::data("the counting query returned no count"))
    }

    /// DataFusion's plan, and the plan whose driving scans were replaced by splits, or why they
    /// cannot be.
    ///
    /// # Errors
    /// What planning finds.
    pub async fn explain(&self, options: &PlanOptions) -> Result<String> {
        let physical = self.physical_plan().await?;
        let before = displayable(physical.as_ref()).indent(false).to_string();
        let after = match self.plan_splits(options).await {
            Ok(plan) => displayable(plan.physical().as_ref()).indent(false).to_string(),
            Err(error) => format!("not shardable: {error}\n"),
        };
        Ok(format!("DataFusion's plan:\n{before}\nBy splits:\n{after}"))
    }

    /// Finds the driving scans and their splits, which every shard is dealt from.
    ///
    /// # Errors
    /// `NotShardable` naming the operator that is not row-local.
    pub async fn plan_splits(&self, options: &PlanOptions) -> Result<Plan> {
        check_repeatable(&self.plan)?;
        Plan::discover(self.clone(), options).await
    }

    /// The checks of [`Self::plan_splits`] that planning in a worker repeats.
    pub(super) fn check(&self) -> Result<()> {
        check_repeatable(&self.plan)
    }
}

fn check_same_columns(first: &Schema, other: &Schema) -> Result<()> {
    let sketch = |schema: &Schema| -> Vec<String> {
        let fields = schema.fields().iter();
        fields.map(|field| format!("{} {}", field.name(), field.data_type())).collect()
    };
    let (first, other) = (sketch(first), sketch(other));
    if first == other {
        return Ok(());
    }
    Err(Error::query(format!(
        "the queries of a mixture must have the same columns, of the same types, in the same order: one has \
         ({}), another ({}); name and cast them alike",
        first.join(", "),
        other.join(", ")
    )))
}
