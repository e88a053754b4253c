//! Runs plans under the session's memory limit: first in the fastest way, and where that takes more
//! memory than there is, once more with joins that sort. Stages and whole results share it.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::Result as DfResult;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::query::Query;
use crate::exec::{SharedPool, with_spilling_joins};
use crate::formats::caught_answer;
use crate::materialize::Attempt;
use crate::{Error, ErrorKind, Result};

impl Query {
    /// A plan and the context that it runs in: as planned, or with joins that sort and memory in
    /// fixed shares. Without a memory limit there is one way only.
    pub(super) fn prepared(
        &self,
        physical: Arc<dyn ExecutionPlan>,
        attempt: Attempt,
    ) -> Result<(Arc<dyn ExecutionPlan>, Arc<TaskContext>)> {
        let state = self.session().context().state();
        let limit = self.session().options().memory_limit;
        let (Attempt::Thrifty, Some(limit)) = (attempt, limit) else {
            return Ok((physical, state.task_ctx()));
        };
        let physical = with_spilling_joins(physical)?;
        let pool = SharedPool::of(&physical, usize::try_from(limit).unwrap_or(usize::MAX))?;
        let config = state.config().clone();
        let most = config.options().execution.sort_spill_reservation_bytes;
        let config = config.with_sort_spill_reservation_bytes(pool.merging(most));
        let environment = RuntimeEnvBuilder::from_runtime_env(state.runtime_env());
        let environment = environment.with_memory_pool(Arc::new(pool)).build_arc()?;
        let context = TaskContext::from(&state).with_runtime(environment);
        Ok((physical, Arc::new(context.with_session_config(config))))
    }

    /// Returns true if a plan that failed is run again by a [`Attempt::Thrifty`] one.
    pub(super) fn is_run_again(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Memory && self.session().options().memory_limit.is_some()
    }

    /// Starts a plan; the rows of its partitions come one partition after the other.
    pub(super) fn start(
        physical: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let partitions = physical.output_partitioning().partition_count();
        let schema = physical.schema();
        if partitions == 1 {
            let rows = caught_answer(execute_stream(physical, context)?);
            return Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)));
        }
        // The inputs of a UNION ALL one after the other: `execute_stream` would mix them by thread
        // timing.
        let rows = stream::iter(0..partitions)
            .map(move |partition| physical.execute(partition, Arc::clone(&context)))
            .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, caught_answer(rows))))
    }

    /// Plans and starts a logical plan. Each attempt plans anew: operators remember that they
    /// failed.
    async fn run(&self, plan: LogicalPlan, attempt: Attempt) -> Result<SendableRecordBatchStream> {
        let planned = self.physical_plan_of(&plan).await?;
        let (physical, context) = self.prepared(planned, attempt)?;
        Self::start(physical, context)
    }

    /// The rows of a plan as they are computed. Where memory runs out before there is any, they are
    /// computed with joins that sort; after that, rows may not come a second time.
    pub(super) async fn run_whole(&self, plan: LogicalPlan) -> Result<SendableRecordBatchStream> {
        let rows = self.run(plan.clone(), Attempt::First).await?;
        if self.session().options().memory_limit.is_none() {
            return Ok(rows);
        }
        let (schema, query) = (rows.schema(), self.clone());
        let first = async move { query.first_or_again(rows, plan).await };
        let rows = stream::once(first).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    /// Started rows, or those of another attempt if the first batch takes too much memory.
    async fn first_or_again(
        self,
        mut rows: SendableRecordBatchStream,
        plan: LogicalPlan,
    ) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>> {
        let Some(first) = rows.next().await else { return Ok(stream::empty().boxed()) };
        let error = match first {
            Ok(batch) => return Ok(stream::once(async { Ok(batch) }).chain(rows).boxed()),
            Err(error) => Error::from(error),
        };
        if !self.is_run_again(&error) {
            return Err(error.into());
        }
        drop(rows);
        Ok(self.run(plan, Attempt::Thrifty).await?.boxed())
    }

    /// All rows of a plan, computed by a task of its own: an operator may compute for seconds
    /// before it looks up, and whoever waits here must be able to give up meanwhile. Dropping the
    /// future ends the task.
    pub(super) async fn gather(&self, plan: LogicalPlan) -> Result<Vec<RecordBatch>> {
        match self.gather_by(plan.clone(), Attempt::First).await {
            Err(error) if self.is_run_again(&error) => self.gather_by(plan, Attempt::Thrifty).await,
            other => other,
        }
    }

    async fn gather_by(&self, plan: LogicalPlan, attempt: Attempt) -> Result<Vec<RecordBatch>> {
        let stream = self.run(plan, attempt).await?;
        self.finish(SpawnedTask::spawn(async move { Ok(stream.try_collect().await?) })).await
    }
}
