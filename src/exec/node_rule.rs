//! Rules of ours over plans of operators.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

type Plan = Arc<dyn ExecutionPlan>;
type Rewrite = dyn Fn(Plan, &ConfigOptions) -> Result<Plan> + Send + Sync;
pub(super) type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// A rule of its own, or one around a rule of DataFusion's, whose name it has.
pub struct NodeRule {
    name: String,
    checks_schema: bool,
    rewrite: Box<Rewrite>,
}

impl NodeRule {
    pub(super) fn new(name: &str, rewrite: fn(Plan) -> Result<Plan>) -> Self {
        let rewrite = Box::new(move |plan, _: &ConfigOptions| rewrite(plan));
        Self { name: name.to_owned(), checks_schema: true, rewrite }
    }

    pub(super) fn around(
        rule: Rule,
        rewrite: fn(&dyn PhysicalOptimizerRule, Plan, &ConfigOptions) -> Result<Plan>,
    ) -> Self {
        let (name, checks_schema) = (rule.name().to_owned(), rule.schema_check());
        let rewrite = Box::new(move |plan, config: &ConfigOptions| rewrite(&*rule, plan, config));
        Self { name, checks_schema, rewrite }
    }
}

impl fmt::Debug for NodeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl PhysicalOptimizerRule for NodeRule {
    fn optimize(&self, plan: Plan, config: &ConfigOptions) -> Result<Plan> {
        (self.rewrite)(plan, config)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn schema_check(&self) -> bool {
        self.checks_schema
    }
}
