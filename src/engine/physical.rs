//! The rules of physical plans.

use std::sync::Arc;

use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

use super::{Listed, Use, listed};
use crate::exec::{
    filters_near_scans, first_rows_of_limits, orders_below_limits, padded_sides,
    projections_without_semi_joins,
};

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// DataFusion's rules by name, some of which run twice. `docs/engine.md` says why each is on or
/// off.
pub(super) const RULES: &[Listed] = &[
    ("OutputRequirements", Use::On),
    ("aggregate_statistics", Use::Off),
    ("join_selection", Use::On),
    ("LimitedDistinctAggregation", Use::Off),
    ("FilterPushdown", Use::Guarded),
    ("EnforceDistribution", Use::On),
    ("CombinePartialFinalAggregate", Use::On),
    ("EnforceSorting", Use::Guarded),
    ("OptimizeAggregateOrder", Use::Off),
    ("ProjectionPushdown", Use::Guarded),
    ("LimitAggregation", Use::Off),
    ("LimitPushPastWindows", Use::Off),
    ("LimitPushdown", Use::Off),
    ("PushdownSort", Use::Off),
    ("EnsureCooperative", Use::On),
    ("FilterPushdown(Post)", Use::Off),
    ("SanityCheckPlan", Use::On),
];

/// The rules that run: DataFusion's rules that are on, and ours.
pub fn physical_rules() -> Vec<Rule> {
    let mut rules: Vec<Rule> = vec![Arc::new(padded_sides())];
    for rule in PhysicalOptimizer::new().rules {
        match (listed(RULES, rule.name()), rule.name()) {
            (Use::Off, _) => {}
            (Use::Guarded, "FilterPushdown") => rules.push(Arc::new(filters_near_scans(rule))),
            (Use::Guarded, "ProjectionPushdown") => {
                rules.push(Arc::new(projections_without_semi_joins(rule)));
            }
            (Use::Guarded, "EnforceSorting") => rules.push(Arc::new(orders_below_limits(rule))),
            // Operators that give up their turn hide what is below them.
            (Use::On, "EnsureCooperative") => {
                rules.extend([Arc::new(first_rows_of_limits()) as Rule, rule])
            }
            (Use::On, _) => rules.push(rule),
            // Nothing that is listed so.
            (Use::Guarded, _) => {}
        }
    }
    rules
}
