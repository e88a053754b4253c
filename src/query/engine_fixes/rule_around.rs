//! A rule in the place of one of DataFusion's, which it has inside.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// One of DataFusion's rules.
pub type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// Rewrites a plan by means of a rule of DataFusion's.
type Rewrite = fn(&Rule, LogicalPlan, &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>>;

/// A rule with the name and the order of the one inside.
#[derive(Debug)]
pub struct RuleAround {
    inner: Rule,
    rewrite: Rewrite,
}

impl RuleAround {
    pub(super) fn new(inner: Rule, rewrite: Rewrite) -> Self {
        Self { inner, rewrite }
    }
}

impl OptimizerRule for RuleAround {
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
        (self.rewrite)(&self.inner, plan, config)
    }
}
