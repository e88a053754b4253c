//! Lists operators that run on a cluster as they run here. Unknown operators do not.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, NullEquality};
use datafusion::functions::all_default_functions;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, Join, LogicalPlan, TableScan};

use crate::exec::functions_of;
use crate::formats::refused as unreadable;
use crate::query::{is_answered_otherwise, volatile_function};
use crate::{Error, Result};

/// Refuses a part that a cluster would compute differently, or not at all.
///
/// # Errors
/// `Query` naming the operator.
pub(super) fn check(part: &LogicalPlan) -> Result<()> {
    if let Some(function) = functions_of(part)?.first() {
        return Err(refused(&format!(
            "{}() is a Python function, which executors do not have",
            function.name()
        )));
    }
    if let Some(name) = volatile_function(part)? {
        return Err(refused(&format!(
            "{name}() gives another value on every call, and a task that is run again would disagree with itself"
        )));
    }
    if let Some(name) = unknown_function(part)? {
        return Err(refused(&format!(
            "executors of Ballista 53 do not have the function {name}(), as no other of lists and maps"
        )));
    }
    if let Some(name) = own_function(part)? {
        return Err(refused(&format!("executors of Ballista 53 compute {name}() otherwise")));
    }
    let mut found = None;
    part.apply(|node| {
        found = obstacle(node);
        Ok(match found {
            Some(_) => TreeNodeRecursion::Stop,
            None => TreeNodeRecursion::Continue,
        })
    })?;
    found.map_or(Ok(()), |why| Err(refused(&why)))
}

/// The error for an operation that a cluster cannot compute.
pub(super) fn refused(why: &str) -> Error {
    Error::query(format!(
        "stage_engine=\"ballista://…\" cannot compute this query: {why}; stage it without stage_engine, or let another engine \
         compute it (stage_from=)"
    ))
}

/// A scalar function that executors do not have: a task with one is never run, and its job waits
/// for ever.
fn unknown_function(part: &LogicalPlan) -> Result<Option<String>> {
    let known = all_default_functions();
    let known: HashSet<&str> = known.iter().map(|function| function.name()).collect();
    let mut found = None;
    part.apply(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(call) = expr
                    && !known.contains(call.func.name())
                {
                    found = Some(call.func.name().to_owned());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

/// A function in the place of the engine's own, which is called as only this one answers it.
fn own_function(part: &LogicalPlan) -> Result<Option<String>> {
    let mut found = None;
    part.apply(|node| {
        let inputs = merge_schema(&node.inputs());
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(call) = expr
                    && is_answered_otherwise(call, &inputs)
                {
                    found = Some(call.func.name().to_owned());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

fn obstacle(node: &LogicalPlan) -> Option<String> {
    match node {
        LogicalPlan::Limit(limit) if limit.fetch.is_none() => {
            Some("OFFSET without LIMIT gives too few rows there; add a LIMIT".to_owned())
        }
        LogicalPlan::Window(window) if window.window_expr.iter().any(calls_ntile) => {
            Some("ntile has its larger groups at other places there".to_owned())
        }
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Distinct(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Union(_)
        | LogicalPlan::Unnest(_)
        | LogicalPlan::Values(_)
        | LogicalPlan::EmptyRelation(_) => None,
        LogicalPlan::TableScan(scan) => scan_obstacle(scan),
        LogicalPlan::Join(join) => join_obstacle(join),
        LogicalPlan::RecursiveQuery(_) => {
            Some("a recursive CTE does not run on several machines".to_owned())
        }
        other => Some(format!("{} is not known to run there", other.display())),
    }
}

/// Executors read files with the decoders of the `parquet` crate alone.
fn scan_obstacle(scan: &TableScan) -> Option<String> {
    let is_interval = |field: &Field| matches!(field.data_type(), DataType::Interval(_));
    scan.projected_schema.fields().iter().find_map(|column| {
        if let Some(error) = unreadable(column) {
            return Some(error.message().to_owned());
        }
        let within = Schema::new(vec![Arc::clone(column)]);
        within.flattened_fields().iter().any(|field| is_interval(field)).then(|| {
            format!("column {:?} holds intervals, whose months executors lose", column.name())
        })
    })
}

fn calls_ntile(expr: &Expr) -> bool {
    let found = expr.exists(|expr| {
        Ok(matches!(expr, Expr::WindowFunction(call) if call.fun.name() == "ntile"))
    });
    found.unwrap_or(true)
}

fn join_obstacle(join: &Join) -> Option<String> {
    if join.null_aware {
        return Some(
            "NOT IN (subquery) loses its rule for NULL on the way; write NOT EXISTS".to_owned(),
        );
    }
    if join.null_equality == NullEquality::NullEqualsNull && !join.on.is_empty() {
        return Some(
            "INTERSECT, EXCEPT and IS NOT DISTINCT FROM in a join take NULL for equal to NULL, which is lost on the way"
                .to_owned(),
        );
    }
    // Each task would judge by its own part of one side which rows of the other have no match
    // (apache/datafusion-ballista issue 1055).
    (join.on.is_empty() && join.join_type != JoinType::Inner).then(|| {
        format!("a {} join without an equality loses rows on several machines", join.join_type)
    })
}
