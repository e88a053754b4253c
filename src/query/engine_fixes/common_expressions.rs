//! Common parts of expressions are taken out of a plan once.
//!
//! DataFusion 53 numbers extracted expressions (`__common_expr_1`) from one on for each plan. A
//! part of a plan that is optimised again, such as a stage, has such columns already. A second
//! column with a number was taken for the first, and a list of integers became floats.

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};

use super::rule_around::{Rule, RuleAround};

/// Begins the names of such columns.
const PREFIX: &str = "__common_expr";

/// The rule, for plans that have no such columns.
pub fn common_once(inner: Rule) -> RuleAround {
    RuleAround::new(inner, |inner, plan, config| {
        let mut done = false;
        plan.apply_with_subqueries(|node| {
            done |= node.schema().fields().iter().any(|field| field.name().starts_with(PREFIX));
            Ok(if done { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        match done {
            true => Ok(Transformed::no(plan)),
            false => inner.rewrite(plan, config),
        }
    })
}
