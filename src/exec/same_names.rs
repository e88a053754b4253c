//! Filters above columns of one name. DataFusion 53 finds the columns of a filter that it moves down by their names: of
//! `t RIGHT JOIN u … WHERE t.id IS NULL` it asks for NULL in `u.id`. So no filter moves through an operator with two columns of one
//! name; what a filter leaves out below a join, the logical plan has moved there.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// A rule that moves filters, within the parts between such operators.
#[derive(Debug)]
pub struct BelowSameNames {
    inner: Rule,
}

impl BelowSameNames {
    /// The rule around DataFusion's.
    pub fn new(inner: Rule) -> Self {
        Self { inner }
    }
}

impl PhysicalOptimizerRule for BelowSameNames {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if !plan.exists(|node| Ok(has_same_names(node)))? {
            return self.inner.optimize(plan, config);
        }
        plan.transform_down(|node| {
            if !has_same_names(&node) {
                // What is beside such an operator.
                return match node.exists(|node| Ok(has_same_names(node)))? {
                    true => Ok(Transformed::no(node)),
                    false => {
                        let node = self.inner.optimize(node, config)?;
                        Ok(Transformed::new(node, true, TreeNodeRecursion::Jump))
                    }
                };
            }
            let below = node.children().into_iter();
            let below = below.map(|child| self.optimize(Arc::clone(child), config));
            let below = below.collect::<Result<Vec<_>>>()?;
            Ok(Transformed::new(node.with_new_children(below)?, true, TreeNodeRecursion::Jump))
        })
        .data()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }
}

fn has_same_names(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let (schema, mut names) = (plan.schema(), HashSet::new());
    !schema.fields().iter().all(|field| names.insert(field.name()))
}
