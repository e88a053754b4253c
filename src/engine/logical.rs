//! The rules of logical plans.

use std::sync::Arc;

use datafusion::optimizer::{Optimizer, OptimizerRule};

use super::{Listed, Use, listed};
use crate::query::{
    CHECK_ARITHMETIC, EQUAL_ZEROS, KEEP_EXACT, ORDER_NESTED, SLIDE_ANEW, SPELL_TIMES,
    blind_to_keys, common_once, group_distinct, null_keys_apart,
};

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// Rules of the analyser: all of them give a plan its meaning.
#[cfg(test)]
pub(super) const ANALYSERS: &[Listed] =
    &[("resolve_grouping_function", Use::On), ("type_coercion", Use::On)];

/// DataFusion's rules, in its order. `docs/engine.md` says why each is on or off.
pub(super) const RULES: &[Listed] = &[
    ("rewrite_set_comparison", Use::Off),
    ("optimize_unions", Use::On),
    ("simplify_expressions", Use::Guarded),
    ("replace_distinct_aggregate", Use::Guarded),
    ("eliminate_join", Use::Off),
    ("decorrelate_predicate_subquery", Use::Off),
    ("scalar_subquery_to_join", Use::Off),
    ("decorrelate_lateral_join", Use::Off),
    ("extract_equijoin_predicate", Use::Guarded),
    ("eliminate_duplicated_expr", Use::Off),
    ("eliminate_filter", Use::On),
    ("eliminate_cross_join", Use::Guarded),
    ("eliminate_limit", Use::On),
    ("propagate_empty_relation", Use::On),
    ("filter_null_join_keys", Use::Off),
    ("eliminate_outer_join", Use::On),
    ("push_down_limit", Use::Off),
    ("push_down_filter", Use::On),
    ("single_distinct_aggregation_to_group_by", Use::Off),
    ("eliminate_group_by_constant", Use::Off),
    ("common_sub_expression_eliminate", Use::Guarded),
    ("extract_leaf_expressions", Use::Off),
    ("push_down_leaf_projections", Use::Off),
    ("optimize_projections", Use::Guarded),
];

/// The rules that run: DataFusion's rules that are on, and ours.
pub fn logical_rules() -> Vec<Rule> {
    let mut rules: Vec<Rule> = vec![Arc::new(CHECK_ARITHMETIC), Arc::new(SLIDE_ANEW)];
    for rule in Optimizer::new().rules {
        match listed(RULES, rule.name()) {
            Use::On => rules.push(rule),
            Use::Guarded => rules.extend(guarded(rule)),
            Use::Off => {}
        }
    }
    rules
}

fn guarded(rule: Rule) -> Vec<Rule> {
    match rule.name() {
        "simplify_expressions" => {
            vec![
                Arc::new(KEEP_EXACT),
                Arc::new(ORDER_NESTED),
                Arc::new(SPELL_TIMES),
                rule,
                Arc::new(EQUAL_ZEROS),
            ]
        }
        "replace_distinct_aggregate" => vec![Arc::new(group_distinct(rule))],
        "extract_equijoin_predicate" | "eliminate_cross_join" => {
            vec![Arc::new(null_keys_apart(rule))]
        }
        "common_sub_expression_eliminate" => vec![Arc::new(common_once(rule))],
        "optimize_projections" => vec![Arc::new(blind_to_keys(rule))],
        // Nothing that is listed so.
        _ => Vec::new(),
    }
}
