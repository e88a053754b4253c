//! Timestamps of different units meet in the finer one. DataFusion 53 takes the coarser, and cuts
//! off the finer digits: a millisecond would equal all of its microseconds.
//!
//! Instants meet as instants: a value without a zone (a date or a text, too) is in UTC beside a
//! zone, as in PostgreSQL with a UTC session. DataFusion takes it for a wall clock of the other
//! side's zone.
//!
//! A constant beside a timestamp is one of the same unit: see [`instants`](super::time_constants).
//!
//! Upstream: apache/datafusion#22756.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{Between, Case, InList, InSubquery, ScalarFunction};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Cast, Expr, ExprSchemable, Join, LogicalPlan, LogicalPlanBuilder, Operator, Union,
    and, or,
};

use super::interval_lengths::{length, lengths};
use super::time_constants::{coarsest, compared, instant_of, is_utc, literal, literal_at};
use super::walk::{with_names, with_new_schema};
use crate::{Error, Result};

/// Functions that choose one of their arguments, or compare them.
const CHOOSING: [&str; 6] = ["coalesce", "greatest", "least", "nullif", "nvl", "ifnull"];

/// The plan with casts to the finer unit wherever timestamps of different units meet.
///
/// # Errors
/// `Query` where columns of different units are joined with USING.
pub(super) fn finer_units(plan: LogicalPlan) -> Result<LogicalPlan> {
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

fn of_node(plan: LogicalPlan) -> DfResult<Transformed<LogicalPlan>> {
    let schema = merge_schema(&plan.inputs());
    let plan = with_names(plan, |expr| expr.transform_up(|expr| of_expr(expr, &schema)))?;
    let plan = with_new_schema(plan)?;
    plan.transform_data(|plan| match plan {
        LogicalPlan::Union(union) => of_union(union),
        LogicalPlan::Join(join) => of_join(join),
        LogicalPlan::Sort(mut sort) => {
            let mut changed = false;
            for key in &mut sort.expr {
                if matches!(key.expr.get_type(&schema), Ok(DataType::Interval(_))) {
                    key.expr = length(std::mem::take(&mut key.expr));
                    changed = true;
                }
            }
            Ok(Transformed::new_transformed(LogicalPlan::Sort(sort), changed))
        }
        _ => Ok(Transformed::no(plan)),
    })
}

fn of_expr(expr: Expr, schema: &DFSchema) -> DfResult<Transformed<Expr>> {
    match expr {
        Expr::Cast(Cast { expr, data_type: DataType::Timestamp(TimeUnit::Nanosecond, zone) }) => {
            let cast = Expr::Cast(Cast::new(expr, DataType::Timestamp(TimeUnit::Nanosecond, zone)));
            Ok(match beyond_nanoseconds(&cast) {
                Some(literal) => Transformed::yes(literal),
                None => Transformed::no(cast),
            })
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if compares(op) || op == Operator::Minus =>
        {
            if compares(op)
                && let Some(found) = with_constant(&left, op, &right, schema)
            {
                return Ok(Transformed::yes(found));
            }
            let (mut left, mut right) = (left, right);
            let changed = align(&mut [&mut left, &mut right], schema, compares(op));
            Ok(Transformed::new_transformed(
                Expr::BinaryExpr(BinaryExpr { left, op, right }),
                changed,
            ))
        }
        Expr::Between(between) => Ok(of_between(between, schema)),
        Expr::InList(list) => Ok(of_list(list, schema)),
        Expr::Case(Case { mut expr, mut when_then_expr, mut else_expr }) => {
            let mut results: Vec<&mut Expr> = Vec::new();
            let mut compared: Vec<&mut Expr> = Vec::new();
            for (when, then) in &mut when_then_expr {
                compared.push(when);
                results.push(then);
            }
            results.extend(else_expr.as_deref_mut());
            let mut changed = align(&mut results, schema, false);
            if let Some(expr) = &mut expr {
                compared.push(expr);
                changed |= align(&mut compared, schema, true);
            }
            let case = Case { expr, when_then_expr, else_expr };
            Ok(Transformed::new_transformed(Expr::Case(case), changed))
        }
        Expr::ScalarFunction(ScalarFunction { func, mut args })
            if CHOOSING.contains(&func.name()) =>
        {
            let is_compared = !matches!(func.name(), "coalesce" | "nvl" | "ifnull");
            let changed = align(&mut args.iter_mut().collect::<Vec<_>>(), schema, is_compared);
            let function = ScalarFunction { func, args };
            Ok(Transformed::new_transformed(Expr::ScalarFunction(function), changed))
        }
        Expr::InSubquery(InSubquery { mut expr, mut subquery, negated }) => {
            let inner = subquery.subquery.schema().field(0).data_type().clone();
            let outer = expr.get_type(schema).ok();
            let meet = Meet::of([outer.as_ref(), Some(&inner)]);
            let mut changed = align_to(&mut expr, &meet, schema);
            if let Some(plan) = align_columns(&subquery.subquery, &[meet])? {
                subquery = subquery.with_plan(Arc::new(plan));
                changed = true;
            }
            let subquery = InSubquery { expr, subquery, negated };
            Ok(Transformed::new_transformed(Expr::InSubquery(subquery), changed))
        }
        _ => Ok(Transformed::no(expr)),
    }
}

/// A text that is cast to nanoseconds, which do not reach it, as microseconds.
fn beyond_nanoseconds(cast: &Expr) -> Option<Expr> {
    let Expr::Cast(Cast { data_type: DataType::Timestamp(_, zone), .. }) = cast else {
        return None;
    };
    let nanos = instant_of(cast)?;
    match i64::try_from(nanos) {
        Ok(_) => None,
        Err(_) => literal_at(nanos, TimeUnit::Microsecond, zone),
    }
}

/// The unit and zone of a timestamp that is computed from rows.
fn computed(expr: &Expr, schema: &DFSchema) -> Option<(TimeUnit, Option<Arc<str>>)> {
    match expr.get_type(schema).ok()? {
        DataType::Timestamp(unit, zone) if instant_of(expr).is_none() => Some((unit, zone)),
        _ => None,
    }
}

/// The comparison of a timestamp with a constant of another type; None for anything else, and for
/// comparisons that are right already.
fn with_constant(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    let sides = [(left, right, Some(op)), (right, left, op.swap())];
    sides.into_iter().find_map(|(value, constant, op)| {
        let (unit, zone) = computed(value, schema)?;
        let nanos = instant_of(constant)?;
        match literal_at(nanos, unit, &zone) {
            Some(same) if same == *constant => None,
            _ => compared(value, op?, nanos, unit, &zone),
        }
    })
}

/// Constants become literals of the value's unit where it has them; else there are two comparisons.
fn of_between(between: Between, schema: &DFSchema) -> Transformed<Expr> {
    let Between { mut expr, negated, mut low, mut high } = between;
    let is_alone = [&low, &high]
        .into_iter()
        .all(|bound| with_constant(&expr, Operator::Eq, bound, schema).is_none());
    if is_alone {
        let changed = align(&mut [&mut expr, &mut low, &mut high], schema, true);
        let between = Expr::Between(Between { expr, negated, low, high });
        return Transformed::new_transformed(between, changed);
    }
    if let Some((unit, zone)) = computed(&expr, schema)
        && let [Some(first), Some(last)] = [&low, &high]
            .map(|bound| instant_of(bound).and_then(|nanos| literal_at(nanos, unit, &zone)))
    {
        let (low, high) = (Box::new(first), Box::new(last));
        return Transformed::yes(Expr::Between(Between { expr, negated, low, high }));
    }
    let side = |op: Operator, bound: Box<Expr>| {
        with_constant(&expr, op, &bound, schema).unwrap_or_else(|| {
            let (mut value, mut bound) = (expr.clone(), bound);
            align(&mut [&mut value, &mut bound], schema, true);
            Expr::BinaryExpr(BinaryExpr { left: value, op, right: bound })
        })
    };
    Transformed::yes(match negated {
        true => or(side(Operator::Lt, low), side(Operator::Gt, high)),
        false => and(side(Operator::GtEq, low), side(Operator::LtEq, high)),
    })
}

/// Constants that the value's unit does not have are left out.
fn of_list(list: InList, schema: &DFSchema) -> Transformed<Expr> {
    let InList { mut expr, mut list, negated } = list;
    let mut changed = false;
    if let Some((unit, zone)) = computed(&expr, schema) {
        let before = list.clone();
        list.retain_mut(|item| match instant_of(item) {
            None => true,
            Some(nanos) => match literal_at(nanos, unit, &zone) {
                Some(same) => {
                    *item = same;
                    true
                }
                None => false,
            },
        });
        changed = list != before;
        if list.is_empty() {
            // Nothing is before the first value.
            let first = literal(i64::MIN, unit, zone);
            return Transformed::yes(match negated {
                true => (*expr).gt_eq(first),
                false => (*expr).lt(first),
            });
        }
    }
    let mut met: Vec<&mut Expr> = list.iter_mut().collect();
    met.push(&mut expr);
    changed |= align(&mut met, schema, true);
    Transformed::new_transformed(Expr::InList(InList { expr, list, negated }), changed)
}

fn of_union(union: Union) -> DfResult<Transformed<LogicalPlan>> {
    let meets: Vec<Meet> =
        (0..union.schema.fields().len())
            .map(|column| {
                Meet::of(union.inputs.iter().map(|input| {
                    input.schema().fields().get(column).map(|field| field.data_type())
                }))
            })
            .collect();
    let mut changed = false;
    let mut inputs = Vec::new();
    for input in &union.inputs {
        match align_columns(input, &meets)? {
            Some(finer) => {
                changed = true;
                inputs.push(Arc::new(finer));
            }
            None => inputs.push(Arc::clone(input)),
        }
    }
    match changed {
        // Its schema stays as it was where it is only computed anew.
        true => Ok(Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(inputs)?))),
        false => Ok(Transformed::no(LogicalPlan::Union(union))),
    }
}

fn of_join(mut join: Join) -> DfResult<Transformed<LogicalPlan>> {
    let using = join.join_constraint == datafusion::common::JoinConstraint::Using;
    let mut changed = false;
    for (left, right) in &mut join.on {
        let types = [left.get_type(join.left.schema()), right.get_type(join.right.schema())];
        let meet = Meet::of(types.iter().map(|found| found.as_ref().ok()));
        let before = changed;
        changed |= align_to(left, &meet, join.left.schema());
        changed |= align_to(right, &meet, join.right.schema());
        if using && changed != before {
            return Err(Error::query(format!(
                "{left} is joined with USING, or naturally, and has timestamps of different units or zones on both sides, \
                 which is not supported; write ON a.… = b.…"
            ))
            .into());
        }
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
}

fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// The unit and zone to which timestamps are cast when they meet.
#[derive(Clone, Default)]
struct Meet {
    /// The finest of their units; None where there is no timestamp.
    unit: Option<TimeUnit>,
    /// The first of their zones.
    zone: Option<Arc<str>>,
}

impl Meet {
    fn of<'a>(types: impl IntoIterator<Item = Option<&'a DataType>>) -> Self {
        let mut meet = Self::default();
        for of in types.into_iter().flatten() {
            if let DataType::Timestamp(unit, zone) = of {
                meet.unit = meet.unit.max(Some(*unit));
                meet.zone = meet.zone.or_else(|| zone.clone());
            }
        }
        meet
    }
}

/// Casts timestamps with a coarser unit than another of these, or without a zone beside one with
/// it; for comparisons, also dates.
fn align(met: &mut [&mut Expr], schema: &DFSchema, is_compared: bool) -> bool {
    if is_compared && lengths(met, schema) {
        return true;
    }
    let mut changed = false;
    if is_compared && let Some((unit, zone)) = met.iter().find_map(|expr| computed(expr, schema)) {
        for expr in met.iter_mut() {
            let same = instant_of(expr)
                .and_then(|nanos| literal_at(nanos, unit.max(coarsest(nanos)), &zone));
            if let Some(same) = same
                && **expr != same
            {
                **expr = same;
                changed = true;
            }
        }
    }
    let mut types: Vec<_> = met.iter().map(|expr| expr.get_type(schema).ok()).collect();
    if !is_compared {
        types
            .iter_mut()
            .filter(|of| matches!(of, Some(DataType::Date32)))
            .for_each(|of| *of = None);
    }
    let mut meet = Meet::of(types.iter().map(Option::as_ref));
    let is_text = |of: &Option<DataType>| of.as_ref().is_some_and(DataType::is_string);
    let shifts = meet.zone.as_deref().is_some_and(|zone| !is_utc(zone));
    if is_compared && shifts && types.iter().any(is_text) {
        // The texts of rows may have nanoseconds.
        meet.unit = Some(TimeUnit::Nanosecond);
    }
    if types.contains(&Some(DataType::Date32)) {
        // Dates beyond 2262 are left alone by constants of whole seconds.
        let finest = met.iter().zip(&types).filter_map(|(expr, of)| match (of, instant_of(expr)) {
            (Some(DataType::Timestamp(..)), Some(nanos)) => Some(coarsest(nanos)),
            (Some(DataType::Timestamp(unit, _)), None) => Some(*unit),
            _ => None,
        });
        meet.unit = finest.max();
        if let Some(unit) = meet.unit {
            for expr in met.iter_mut() {
                let zone = match expr.get_type(schema) {
                    Ok(DataType::Timestamp(_, zone)) => zone,
                    _ => continue,
                };
                if let Some(same) = instant_of(expr).and_then(|at| literal_at(at, unit, &zone)) {
                    **expr = same;
                }
            }
        }
    }
    met.iter_mut().zip(&types).fold(changed, |changed, (expr, own)| {
        changed
            | match own {
                Some(text) if text.is_string() && is_compared && shifts => {
                    cast_along(expr, text, &meet)
                }
                Some(own @ (DataType::Timestamp(..) | DataType::Date32)) => {
                    cast_along(expr, own, &meet)
                }
                _ => false,
            }
    })
}

/// Casts a timestamp or a date to the common type.
fn align_to(expr: &mut Expr, meet: &Meet, schema: &DFSchema) -> bool {
    match expr.get_type(schema) {
        Ok(own @ (DataType::Timestamp(..) | DataType::Date32)) => cast_along(expr, &own, meet),
        _ => false,
    }
}

fn cast_along(expr: &mut Expr, own: &DataType, meet: &Meet) -> bool {
    let steps = steps(own, meet);
    for step in &steps {
        let inner = std::mem::take(expr);
        *expr = Expr::Cast(Cast::new(Box::new(inner), step.clone()));
    }
    !steps.is_empty()
}

/// The plan with columns cast to the common type; None if they all have it.
fn align_columns(plan: &Arc<LogicalPlan>, meets: &[Meet]) -> DfResult<Option<LogicalPlan>> {
    let mut changed = false;
    let as_is = Meet::default();
    let columns: Vec<Expr> = plan
        .schema()
        .columns()
        .into_iter()
        .zip(plan.schema().fields())
        .zip(meets.iter().chain(std::iter::repeat(&as_is)))
        .map(|((column, field), meet)| {
            let is_time = matches!(field.data_type(), DataType::Timestamp(..) | DataType::Date32);
            let steps = if is_time { steps(field.data_type(), meet) } else { Vec::new() };
            if steps.is_empty() {
                return column.into();
            }
            changed = true;
            let (relation, name) = (column.relation.clone(), column.name.clone());
            let cast = |inner, step| Expr::Cast(Cast::new(Box::new(inner), step));
            let column = steps.into_iter().fold(Expr::from(column), cast);
            column.alias_qualified(relation, name)
        })
        .collect();
    match changed {
        true => LogicalPlanBuilder::from(Arc::clone(plan)).project(columns)?.build().map(Some),
        false => Ok(None),
    }
}

/// The casts, one after the other, from a type to the common type. A time without a zone comes by
/// way of UTC: a cast from none to another zone takes the clock there.
fn steps(own: &DataType, meet: &Meet) -> Vec<DataType> {
    let Some(unit) = meet.unit else { return Vec::new() };
    let mut steps = Vec::new();
    let at = match own {
        DataType::Timestamp(own, zone) => {
            if *own < unit {
                steps.push(DataType::Timestamp(unit, zone.clone()));
            }
            zone.clone()
        }
        _ => {
            steps.push(DataType::Timestamp(unit, None));
            None
        }
    };
    let Some(zone) = &meet.zone else { return steps };
    if at.is_none() && !is_utc(zone) {
        steps.push(DataType::Timestamp(unit, Some("UTC".into())));
    }
    if at.as_ref() != Some(zone) {
        steps.push(DataType::Timestamp(unit, Some(Arc::clone(zone))));
    }
    steps
}
