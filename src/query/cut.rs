//! Where a logical plan is cut: the parts that cannot run split by split, below operators that can.
//!
//! Before, for `SELECT … FROM (SELECT user, count(*) … GROUP BY user) JOIN users USING (user)`:
//! ```text
//! Projection
//!   Join
//!     Filter: count(*) > 9
//!       Aggregate: groupBy=[user]
//!         TableScan: events
//!     TableScan: users
//! ```
//! After; the part below runs once, and its rows are a table:
//! ```text
//! Projection
//!   Join
//!     Projection: the stage's columns by their names in the plan
//!       TableScan: stage 1
//!     TableScan: users
//! ```
//! Filters and projections right above such a part run with it, since they make it smaller. Nodes
//! are known by their number in pre-order, which another process finds again in the same plan.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, JoinType};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{
    Expr, Join, LogicalPlan, LogicalPlanBuilder, TableScan, TableSource, cast,
};

use crate::formats::stored_type;
use crate::{Error, Result};

/// A part of a plan that runs once.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The number of its root, in pre-order.
    pub node: usize,
    /// Why it cannot run split by split.
    pub why: String,
    /// The part.
    pub plan: LogicalPlan,
}

impl Cut {
    /// The whole plan, in one part, or in one for each input of a UNION ALL that it ends with:
    /// which rows come from which query is then still known of a mixture.
    pub fn whole(plan: &LogicalPlan, why: &str) -> Vec<Self> {
        fn inputs(node: &Numbered<'_>, why: &str, cuts: &mut Vec<Cut>) {
            match node.plan {
                LogicalPlan::Union(_) => {
                    node.children().iter().for_each(|child| inputs(child, why, cuts));
                }
                _ if names_a_union(node.plan) => {
                    node.children().iter().for_each(|child| inputs(child, why, cuts));
                }
                plan => {
                    cuts.push(Cut { node: node.number, why: why.to_owned(), plan: plan.clone() })
                }
            }
        }
        let mut cuts = Vec::new();
        inputs(&Numbered::of(plan, 0), why, &mut cuts);
        cuts
    }

    /// The names of its columns in its stage: the plan's names, told apart if two are equal.
    pub fn column_names(&self) -> Vec<String> {
        stage_columns(&self.plan)
    }
}

/// The sizes by which sides of a join are judged.
#[derive(Clone, Copy)]
pub struct Sizes<'a> {
    /// Stored bytes of the columns that a scan reads.
    pub bytes_of: &'a dyn Fn(&TableScan) -> u64,
    /// Stored bytes up to which each process may hold one side of a join.
    pub broadcast: u64,
}

/// The parts of an optimised plan that cannot run split by split; none where all can.
pub fn find_cuts(plan: &LogicalPlan, sizes: Sizes<'_>) -> Vec<Cut> {
    let mut cuts = Vec::new();
    descend(&Numbered::of(plan, 0), sizes, &mut cuts);
    cuts
}

/// Returns true if a plan is a UNION ALL under other names, or with fewer columns.
fn names_a_union(plan: &LogicalPlan) -> bool {
    let plain = match plan {
        LogicalPlan::SubqueryAlias(_) => true,
        LogicalPlan::Projection(projection) => {
            projection.expr.iter().all(|expr| matches!(expr.clone().unalias(), Expr::Column(_)))
        }
        _ => false,
    };
    let leads_to_union =
        |input: &LogicalPlan| matches!(input, LogicalPlan::Union(_)) || names_a_union(input);
    plain && plan.inputs().into_iter().all(leads_to_union)
}

/// A node with its number.
#[derive(Clone, Copy)]
struct Numbered<'a> {
    plan: &'a LogicalPlan,
    number: usize,
}

impl<'a> Numbered<'a> {
    fn of(plan: &'a LogicalPlan, number: usize) -> Self {
        Self { plan, number }
    }

    fn children(self) -> Vec<Self> {
        let mut number = self.number + 1;
        let children = self.plan.inputs().into_iter().map(|plan| {
            let child = Self { plan, number };
            number += size(plan);
            child
        });
        children.collect()
    }
}

/// Nodes of a plan.
fn size(plan: &LogicalPlan) -> usize {
    1 + plan.inputs().into_iter().map(size).sum::<usize>()
}

fn descend(node: &Numbered<'_>, sizes: Sizes<'_>, cuts: &mut Vec<Cut>) {
    if let Some(why) = must_stage(node.plan, sizes) {
        cuts.push(Cut { node: node.number, why, plan: node.plan.clone() });
        return;
    }
    let children = node.children();
    match node.plan {
        LogicalPlan::Join(join) => {
            let [left, right] = children.as_slice() else { return };
            let (driver, build) = match judge(join, sizes).side {
                Side::Left => (left, right),
                _ => (right, left),
            };
            descend(driver, sizes, cuts);
            // A large input that is reduced once, and not again by each process.
            if bytes_below(build.plan, sizes) > sizes.broadcast
                && let Some(operator) = reducer(build.plan)
            {
                let why =
                    format!("{operator} of one side of a join would be computed by each process");
                cuts.push(Cut { node: build.number, why, plan: build.plan.clone() });
            }
        }
        _ => children.iter().for_each(|child| descend(child, sizes, cuts)),
    }
}

/// Why the part below a node runs once, if it must. Filters and projections belong to the part
/// below them.
fn must_stage(plan: &LogicalPlan, sizes: Sizes<'_>) -> Option<String> {
    match plan {
        LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().first().and_then(|input| match input {
                // These stay for the workers: they may make more rows than they get.
                LogicalPlan::Union(_) | LogicalPlan::Unnest(_) => None,
                input => must_stage(input, sizes),
            })
        }
        LogicalPlan::TableScan(scan) => {
            scan.fetch.is_some().then(|| "LIMIT is not row-local".to_owned())
        }
        LogicalPlan::EmptyRelation(empty) => {
            empty.produce_one_row.then(|| "a SELECT without FROM has no scan".to_owned())
        }
        LogicalPlan::Unnest(_) | LogicalPlan::Union(_) => None,
        LogicalPlan::Join(join) => judge(join, sizes).why,
        other => Some(format!("{} not row-local", operator(other))),
    }
}

/// The decision about a join.
struct Verdict {
    /// The side whose rows it goes by; the other is held by each process.
    side: Side,
    /// Why it runs once, where it must.
    why: Option<String>,
    /// Whether it runs split by split of one of its scans.
    drives: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    Neither,
}

/// Judges a join. Each of its sides is judged once: of a join of twenty tables no side is looked at
/// for each table anew.
fn judge(join: &Join, sizes: Sizes<'_>) -> Verdict {
    let staged =
        |why: &str| Verdict { side: Side::Neither, why: Some(why.to_owned()), drives: false };
    if join.null_aware {
        return staged("NOT IN (subquery) is not row-local: one NULL changes every row");
    }
    let (side, drives) = match join.join_type {
        JoinType::Full => {
            return staged("FULL JOIN is not row-local: both sides have rows without a match");
        }
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
            (Side::Left, drives(&join.left, sizes))
        }
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
            (Side::Right, drives(&join.right, sizes))
        }
        JoinType::Inner => match (drives(&join.left, sizes), drives(&join.right, sizes)) {
            (true, true) => {
                match bytes_below(&join.left, sizes) > bytes_below(&join.right, sizes) {
                    true => (Side::Left, true),
                    false => (Side::Right, true),
                }
            }
            (true, false) => (Side::Left, true),
            (false, true) => (Side::Right, true),
            (false, false) => return staged("neither side of a join is row-local"),
        },
    };
    let build = if side == Side::Left { &join.right } else { &join.left };
    let bytes = bytes_below(build, sizes);
    let why = (bytes > sizes.broadcast && reducer(build).is_none()).then(|| {
        format!(
            "both sides of a join are large: each process would hold {} MiB of stored rows",
            bytes >> 20
        )
    });
    Verdict { side, drives: drives && why.is_none(), why }
}

/// Returns true if a plan runs split by split of one of its scans, or of several by UNION ALL.
fn drives(plan: &LogicalPlan, sizes: Sizes<'_>) -> bool {
    match plan {
        LogicalPlan::Join(join) => judge(join, sizes).drives,
        LogicalPlan::Filter(_)
        | LogicalPlan::Projection(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Unnest(_)
        | LogicalPlan::Union(_) => plan.inputs().into_iter().all(|input| drives(input, sizes)),
        other => must_stage(other, sizes).is_none(),
    }
}

/// The operator that makes few rows of many, if a plan ends with one.
fn reducer(plan: &LogicalPlan) -> Option<String> {
    match plan {
        LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) | LogicalPlan::Limit(_) => {
            Some(operator(plan).trim_end_matches(" is").to_owned())
        }
        LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().first().and_then(|input| reducer(input))
        }
        _ => None,
    }
}

fn bytes_below(plan: &LogicalPlan, sizes: Sizes<'_>) -> u64 {
    match plan {
        LogicalPlan::TableScan(scan) => (sizes.bytes_of)(scan),
        other => other.inputs().into_iter().map(|input| bytes_below(input, sizes)).sum(),
    }
}

/// The SQL name of a node, with its verb.
fn operator(plan: &LogicalPlan) -> String {
    match plan {
        LogicalPlan::Aggregate(_) => "an aggregate (GROUP BY, DISTINCT, count, sum, …) is",
        LogicalPlan::Distinct(_) => "DISTINCT is",
        LogicalPlan::Window(_) => "a window function (OVER …) is",
        LogicalPlan::Sort(_) => "ORDER BY is",
        LogicalPlan::Limit(_) => "LIMIT or OFFSET is",
        LogicalPlan::RecursiveQuery(_) => "a recursive CTE is",
        LogicalPlan::Values(_) => "VALUES is",
        other => return format!("{} is", other.display()),
    }
    .to_owned()
}

/// The table that stands for a part of a plan.
#[derive(Clone)]
pub struct StageTable {
    /// The number of the part's root.
    pub node: usize,
    /// The name that its scan has.
    pub name: String,
    /// The stage.
    pub source: Arc<dyn TableSource>,
}

/// The plan with tables in the place of its parts.
///
/// # Errors
/// `Data` where a table does not have the columns of the part it stands for.
pub fn replace(plan: &LogicalPlan, tables: &[StageTable]) -> Result<LogicalPlan> {
    rebuild(&Numbered::of(plan, 0), tables)
}

fn rebuild(node: &Numbered<'_>, tables: &[StageTable]) -> Result<LogicalPlan> {
    if let Some(table) = tables.iter().find(|table| table.node == node.number) {
        return scan_of(node.plan, table);
    }
    let end = node.number + size(node.plan);
    if !tables.iter().any(|table| (node.number..end).contains(&table.node)) {
        return Ok(node.plan.clone());
    }
    // In the order of the children, which is that of their numbers.
    let mut children = node.children().into_iter();
    let rebuilt = node.plan.clone().map_children(|child| match children.next() {
        Some(child) => Ok(Transformed::yes(rebuild(&child, tables)?)),
        None => Ok(Transformed::no(child)),
    })?;
    Ok(rebuilt.data)
}

/// A scan of a stage whose columns have the names and types of the part it stands for.
fn scan_of(part: &LogicalPlan, table: &StageTable) -> Result<LogicalPlan> {
    let schema = table.source.schema();
    let names = stage_columns(part);
    let found: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    if found != names.iter().map(String::as_str).collect::<Vec<_>>() {
        return Err(Error::data(format!(
            "a stage has the columns {}, and its query {}; all processes must run the same version of tensorquery",
            found.join(", "),
            names.join(", ")
        )));
    }
    let scan = LogicalPlanBuilder::scan(table.name.as_str(), Arc::clone(&table.source), None)?;
    let columns = part.schema().iter().zip(&names).map(|((qualifier, field), name)| {
        let column = Expr::Column(Column::new(Some(table.name.as_str()), name));
        let stored = stored_type(field.data_type());
        let column = match stored == *field.data_type() {
            true => column,
            false => cast(column, field.data_type().clone()),
        };
        column.alias_qualified(qualifier.cloned(), field.name())
    });
    Ok(scan.project(columns.collect::<Vec<_>>())?.build()?)
}

/// A name for each column of a part.
fn stage_columns(part: &LogicalPlan) -> Vec<String> {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let names: Vec<&str> = part.schema().fields().iter().map(|f| f.name().as_str()).collect();
    names
        .iter()
        .map(|name| {
            let count = seen.entry(name).or_default();
            *count += 1;
            match *count {
                1 => (*name).to_owned(),
                // No column of the plan may have that name by itself.
                number => {
                    let mut unique = format!("{name}:{number}");
                    while names.contains(&unique.as_str()) {
                        unique.push(':');
                    }
                    unique
                }
            }
        })
        .collect()
}

/// The stored bytes of a scan's columns, where its provider says the bytes of all.
pub fn share_of_columns(scan: &TableScan, bytes: u64) -> u64 {
    let all = scan.source.schema().fields().len().max(1) as u64;
    let read = scan.projection.as_ref().map_or(all, |columns| columns.len() as u64);
    bytes / all * read.min(all) + bytes % all
}

/// The provider of a scan.
pub fn provider_of(scan: &TableScan) -> Option<Arc<dyn datafusion::catalog::TableProvider>> {
    source_as_provider(&scan.source).ok()
}
