//! Common parts of expressions are taken out of a plan once.
//!
//! DataFusion 53 numbers what it takes out (`__common_expr_1`) from one on for each plan. A part of a plan that is optimised again, as
//! a stage is, has such columns already: a second one of a number was taken for the first, and a list of integers became floats.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// How such columns' names begin.
const PREFIX: &str = "__common_expr";

/// The rule, for plans that have no such columns.
#[derive(Debug)]
pub struct CommonOnce {
    inner: Arc<dyn OptimizerRule + Send + Sync>,
}

impl CommonOnce {
    /// The rule around DataFusion's.
    pub fn new(inner: Arc<dyn OptimizerRule + Send + Sync>) -> Self {
        Self { inner }
    }
}

impl OptimizerRule for CommonOnce {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.inner.apply_order()
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let mut done = false;
        plan.apply_with_subqueries(|node| {
            done |= node.schema().fields().iter().any(|field| field.name().starts_with(PREFIX));
            Ok(if done { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        match done {
            true => Ok(Transformed::no(plan)),
            false => self.inner.rewrite(plan, config),
        }
    }
}
