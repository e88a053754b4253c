//! A volatile function, as `random()`, is drawn once for each row of the SELECT that calls it.
//! DataFusion 53 puts the call wherever its value is used: in a filter that moves below the
//! subquery, in both comparisons of BETWEEN, in each branch that `coalesce` becomes.
//!
//! So each call becomes a column of a projection, below a node that nothing passes which has such a
//! column. For `SELECT id, r FROM (SELECT id, random() AS r FROM t) WHERE r < 0.7`:
//! ```text
//! Filter: r < 0.7
//!   Projection: id, __drawn_0 AS r
//!     Drawn
//!       Projection: id, random() AS __drawn_0
//!         TableScan: t
//! ```
//!
//! Upstream: apache/datafusion#25415.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchemaRef, JoinType};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{Case, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Extension, Filter, Join, LogicalPlan, LogicalPlanBuilder, Operator,
    Projection, UserDefinedLogicalNodeCore, lit,
};

use crate::{Error, Result};

/// The prefix of a drawn column's name.
const PREFIX: &str = "__drawn_";

/// The plan in which each volatile function is called once for each row.
///
/// # Errors
/// `Query` where one is called in the condition of an outer join.
pub(super) fn drawn_once(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut any = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            any |= expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(if any { of_plan(plan)?.data } else { plan })
}

fn of_plan(plan: LogicalPlan) -> DfResult<Transformed<LogicalPlan>> {
    if is_drawn(&plan) {
        // The projection below it draws already, as part of a view.
        return plan.map_children(|projection| projection.map_children(of_plan));
    }
    let plan = plan.map_subqueries(of_plan)?;
    let plan = plan.transform_data(|plan| plan.map_children(of_plan))?;
    plan.transform_data(of_node)
}

fn is_drawn(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Extension(node) if node.node.as_any().is::<Drawn>())
}

fn of_node(plan: LogicalPlan) -> DfResult<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Join(join) => of_join(join),
        LogicalPlan::Filter(filter) => of_filter(filter),
        LogicalPlan::Projection(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Distinct(_) => of_single(plan),
        other => Ok(Transformed::no(other)),
    }
}

/// Conditions that call none are a filter below, so that they still leave out rows of files, and
/// calls for them.
fn of_filter(filter: Filter) -> DfResult<Transformed<LogicalPlan>> {
    let conditions = split_conjunction_owned(filter.predicate.clone());
    let (volatile, stable): (Vec<_>, Vec<_>) = conditions.into_iter().partition(Expr::is_volatile);
    let Some(volatile) = conjunction(volatile) else {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    };
    let input = match conjunction(stable) {
        Some(stable) => Arc::new(LogicalPlan::Filter(Filter::try_new(stable, filter.input)?)),
        None => filter.input,
    };
    of_single(LogicalPlan::Filter(Filter::try_new(volatile, input)?))
}

/// A node over one input.
fn of_single(plan: LogicalPlan) -> DfResult<Transformed<LogicalPlan>> {
    let names = match plan {
        // What is sorted by has no name.
        LogicalPlan::Filter(_) | LogicalPlan::Sort(_) => None,
        _ => Some(NamePreserver::new_for_projection()),
    };
    let mut draws = Draws::default();
    let mut exprs = Vec::new();
    for expr in plan.expressions() {
        if !expr.is_volatile() || matches!(expr, Expr::GroupingSet(_)) {
            exprs.push(expr);
            continue;
        }
        let name = names.as_ref().map(|names| names.save(&expr));
        let expr = match plan {
            // No condition of several waits for another one.
            LogicalPlan::Filter(_) => {
                let parts = split_conjunction_owned(expr).into_iter();
                let parts = parts.map(|part| Ok(draws.always(part)?.0));
                conjunction(parts.collect::<DfResult<Vec<_>>>()?).unwrap_or_else(|| lit(true))
            }
            _ => draws.always(expr)?.0,
        };
        exprs.push(match name {
            Some(name) => name.restore(expr),
            None => expr,
        });
    }
    if draws.levels.is_empty() {
        return Ok(Transformed::no(plan));
    }
    let input = draws.over(plan.inputs()[0].clone())?;
    let columns = plan.schema().columns();
    let rebuilt = plan.with_new_exprs(exprs, vec![input])?;
    if rebuilt.schema().fields().len() == columns.len() {
        return Ok(Transformed::yes(rebuilt));
    }
    // It hands on the columns of its input, and those that were drawn with them.
    let columns: Vec<Expr> = columns.into_iter().map(Expr::Column).collect();
    Ok(Transformed::yes(LogicalPlanBuilder::from(rebuilt).project(columns)?.build()?))
}

/// Conditions of an inner join that call one are a filter above it: they are judged for each pair
/// of rows.
fn of_join(mut join: Join) -> DfResult<Transformed<LogicalPlan>> {
    let is_volatile = |(left, right): &(Expr, Expr)| left.is_volatile() || right.is_volatile();
    let by_filter = join.filter.as_ref().is_some_and(Expr::is_volatile);
    if !by_filter && !join.on.iter().any(is_volatile) {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    if join.join_type != JoinType::Inner {
        return Err(Error::query(format!(
            "a function that gives another value on every call, as random(), is not supported in the condition of a {} JOIN; \
             give its value a name in a subquery, and use that: JOIN (SELECT *, random() AS r FROM …) …",
            join.join_type
        ))
        .into());
    }
    let (volatile, on): (Vec<_>, Vec<_>) = join.on.into_iter().partition(is_volatile);
    join.on = on;
    let mut conditions: Vec<Expr> =
        volatile.into_iter().map(|(left, right)| left.eq(right)).collect();
    if by_filter {
        conditions.extend(join.filter.take());
    }
    let joined = Arc::new(LogicalPlan::Join(join));
    match conjunction(conditions) {
        Some(condition) => {
            Ok(Transformed::yes(of_filter(Filter::try_new(condition, joined)?)?.data))
        }
        None => Ok(Transformed::yes(Arc::unwrap_or_clone(joined))),
    }
}

/// The calls of one node. Calls of a level take no value of that level or of a later one.
#[derive(Default)]
struct Draws {
    levels: Vec<Vec<Expr>>,
    count: usize,
}

impl Draws {
    /// An expression that is evaluated for each row, with columns in the place of calls; and the
    /// level from which on all of these are known.
    fn always(&mut self, expr: Expr) -> DfResult<(Expr, usize)> {
        if !expr.is_volatile() {
            return Ok((expr, 0));
        }
        let (mut level, mut first) = (0, true);
        let conditional = is_conditional(&expr);
        let rebuilt = expr.map_children(|child| {
            let rebuilt = match conditional && !std::mem::take(&mut first) {
                true => self.sometimes(child)?,
                false => {
                    let (child, known) = self.always(child)?;
                    level = level.max(known);
                    child
                }
            };
            Ok(Transformed::yes(rebuilt))
        })?;
        let expr = rebuilt.data;
        match expr.is_volatile() {
            // The call itself, or one that only some rows make.
            true => Ok(self.take(expr, level)),
            // What was drawn of conditional parts is of the first level.
            false => Ok((expr, level.max(usize::from(conditional)))),
        }
    }

    /// An expression that only some rows evaluate: a function of no value cannot fail, and is drawn
    /// for all.
    fn sometimes(&mut self, expr: Expr) -> DfResult<Expr> {
        let drawn = expr.transform_down(|expr| match &expr {
            Expr::ScalarFunction(call) if expr.is_volatile_node() && call.args.is_empty() => {
                Ok(Transformed::yes(self.take(expr, 0).0))
            }
            _ => Ok(Transformed::no(expr)),
        })?;
        Ok(drawn.data)
    }

    /// The column of a call, and the level from which on it is known.
    fn take(&mut self, expr: Expr, level: usize) -> (Expr, usize) {
        let name = format!("{PREFIX}{}", self.count);
        self.count += 1;
        // A call of a conditional part is known from the first level on.
        let level = level.max(usize::from(expr_names_drawn(&expr)));
        self.levels.resize_with(self.levels.len().max(level + 1), Vec::new);
        self.levels[level].push(expr.alias(&name));
        (Expr::Column(Column::from_name(name)), level + 1)
    }

    /// The rows with the columns.
    fn over(self, mut plan: LogicalPlan) -> DfResult<LogicalPlan> {
        for level in self.levels {
            let columns = plan.schema().columns().into_iter().map(Expr::Column);
            let exprs = columns.chain(level).collect();
            let projection = Projection::try_new(exprs, Arc::new(plan))?;
            let node = Arc::new(Drawn::over(LogicalPlan::Projection(projection)));
            plan = LogicalPlan::Extension(Extension { node });
        }
        Ok(plan)
    }
}

fn expr_names_drawn(expr: &Expr) -> bool {
    expr.column_refs().iter().any(|column| column.name.starts_with(PREFIX))
}

/// Returns true if all children but the first may not be evaluated.
fn is_conditional(expr: &Expr) -> bool {
    match expr {
        Expr::Case(Case { .. }) => true,
        Expr::BinaryExpr(BinaryExpr { op, .. }) => matches!(op, Operator::And | Operator::Or),
        Expr::ScalarFunction(ScalarFunction { func, .. }) => func.short_circuits(),
        _ => false,
    }
}

/// Rows with some columns drawn by the projection below. An expression that reads these columns
/// does not move below it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Drawn {
    input: LogicalPlan,
}

impl Drawn {
    fn over(input: LogicalPlan) -> Self {
        Self { input }
    }
}

impl PartialOrd for Drawn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input)
    }
}

impl UserDefinedLogicalNodeCore for Drawn {
    fn name(&self) -> &str {
        "Drawn"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        let names = self.schema().fields().iter().map(|field| field.name().clone());
        names.filter(|name| name.starts_with(PREFIX)).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Drawn")
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> DfResult<Self> {
        let [input] = <[LogicalPlan; 1]>::try_from(inputs)
            .map_err(|inputs| Error::query(format!("a node of one input got {}", inputs.len())))?;
        Ok(Self { input })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}
