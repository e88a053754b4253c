//! Runs a query for the metrics of its operators.

use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use futures::TryStreamExt;

use super::query::Query;
use crate::materialize::Attempt;
use crate::{Error, Result};

/// Metrics of an operator's run.
#[derive(Clone, Debug)]
pub struct OperatorRun {
    /// Operators above it.
    pub depth: usize,
    /// The operator in one line.
    pub text: String,
    /// Rows that it gave; None where it does not count.
    pub rows: Option<usize>,
    /// Time that it computed, without those below it; None where it does not measure.
    pub nanoseconds: Option<usize>,
}

impl Query {
    /// Runs the query in this process without keeping its rows: its operators, each before those
    /// below it.
    ///
    /// # Errors
    /// As for [`collect`](Self::collect).
    pub async fn analyze(&self) -> Result<Vec<OperatorRun>> {
        let physical = match self.run_through(Attempt::First).await {
            Err(error) if self.is_run_again(&error) => self.run_through(Attempt::Thrifty).await?,
            other => other?,
        };
        let mut runs = Vec::new();
        collect(&physical, 0, &mut runs);
        Ok(runs)
    }

    /// The plan, after it ran.
    async fn run_through(&self, attempt: Attempt) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = self.physical_plan().await?;
        let (physical, context) = self.prepared(planned, attempt)?;
        let mut rows = Self::start(Arc::clone(&physical), context)?;
        let task = SpawnedTask::spawn(async move {
            while rows.try_next().await?.is_some() {}
            Ok::<_, Error>(())
        });
        self.finish(task).await?;
        Ok(physical)
    }
}

fn collect(operator: &Arc<dyn ExecutionPlan>, depth: usize, runs: &mut Vec<OperatorRun>) {
    let metrics = operator.metrics();
    runs.push(OperatorRun {
        depth,
        text: displayable(operator.as_ref()).one_line().to_string().trim().to_owned(),
        rows: metrics.as_ref().and_then(|metrics| metrics.output_rows()),
        nanoseconds: metrics.as_ref().and_then(computed),
    });
    for child in operator.children() {
        collect(child, depth + 1, runs);
    }
}

/// The time that an operator computed. Scans of files count their decoding under another name.
fn computed(metrics: &MetricsSet) -> Option<usize> {
    let decoded = metrics.sum_by_name("time_elapsed_processing").map(|time| time.as_usize());
    metrics.elapsed_compute().max(decoded)
}
