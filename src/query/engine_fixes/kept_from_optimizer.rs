//! Expressions that DataFusion 53's optimiser would take for others, hidden from it behind a
//! function that changes nothing:
//!
//! - A cast that loses something is moved to the constant that it is compared with: `CAST(d AS INT)
//!   = 1` becomes `d = 1.00`, which 1.20 is not. So are a `TRY_CAST`, which is NULL where it fails,
//!   and one between a time zone and none.
//! - A constant of a finer unit than a column of timestamps is cut off: of `ts >= '…:00.0015'` in
//!   milliseconds 1 is left. It is rounded to the side that the comparison is open to.
//! - The range by which `LIKE` leaves out row groups passes over escapes: that of `'img\_%'` begins
//!   with `img\`, which is none of the prefixes. `starts_with` becomes such a LIKE. The range is
//!   written beside them instead.
//! - Of two `IN` lists over the same value one is made, as if nothing was NULL.
//! - Regular expressions: see [`regexes`](super::regexes).
//!
//! Upstream: apache/datafusion#22142, apache/datafusion#22374, apache/datafusion#23095, apache/datafusion#24246.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, FieldRef, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Between, InList, Like, ScalarFunction};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    BinaryExpr, Cast, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TryCast, Volatility, and, lit, or,
};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use super::regexes;
use super::time_constants::is_utc;
use super::timestamp_casts::{needs_care, to_instant};
use super::walk::{PlanRule, has_any, inputs_of, with_names};
use crate::basics::function_basics;

/// The function that changes nothing.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Exact {
    signature: Signature,
}

static EXACT: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    let signature = Signature::any(1, Volatility::Immutable);
    Arc::new(ScalarUDF::from(Exact { signature }))
});

impl ScalarUDFImpl for Exact {
    function_basics!("exact");

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::clone(&args.arg_fields[0]))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args[0].clone())
    }
}

fn exact(expr: Expr) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&EXACT), vec![expr]))
}

fn is_exact(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(function) if function.func == *EXACT)
}

/// The rule; before that which simplifies.
pub const KEEP_EXACT: PlanRule = PlanRule::new("keep_exact", |plan, config| {
    plan.transform_down_with_subqueries(|node| match concerns(&node)? {
        true => keep_node(node, config),
        false => Ok(Transformed::no(node)),
    })
});

/// Returns true if a node has any of the expressions that are hidden.
fn concerns(plan: &LogicalPlan) -> Result<bool> {
    has_any(plan, |expr| match expr {
        Expr::Cast(_) | Expr::TryCast(_) | Expr::InList(_) | Expr::Like(_) => true,
        Expr::BinaryExpr(BinaryExpr { op, .. }) => is_regex(*op),
        Expr::ScalarFunction(function) => {
            matches!(function.name(), "starts_with" | "regexp_like")
        }
        _ => false,
    })
}

fn keep_node(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let schema = inputs_of(&plan)?;
    let context = SimplifyContext::default()
        .with_schema(Arc::clone(&schema))
        .with_config_options(config.options())
        .with_query_execution_start_time(config.query_execution_start_time());
    let keep = Keep { schema, constants: ExprSimplifier::new(context) };
    let filters = matches!(plan, LogicalPlan::Filter(_) | LogicalPlan::TableScan(_));
    with_names(plan, |expr| {
        let lists = if filters { Lists::in_filter(&expr) } else { Lists::in_value(&expr) };
        keep.expr(expr, &lists)
    })
}

struct Keep {
    schema: DFSchemaRef,
    constants: ExprSimplifier,
}

impl Keep {
    fn expr(&self, expr: Expr, lists: &Lists) -> Result<Transformed<Expr>> {
        expr.transform_down(|expr| match expr {
            // What was kept before.
            _ if is_exact(&expr) => Ok(Transformed::new(expr, false, TreeNodeRecursion::Jump)),
            Expr::Cast(cast) if needs_care(&cast.expr.get_type(&self.schema)?, &cast.data_type) => {
                let inner = self.expr(*cast.expr, lists)?.data;
                Ok(jump(to_instant(inner, cast.data_type, false)))
            }
            Expr::TryCast(cast)
                if needs_care(&cast.expr.get_type(&self.schema)?, &cast.data_type) =>
            {
                let inner = self.expr(*cast.expr, lists)?.data;
                Ok(jump(to_instant(inner, cast.data_type, true)))
            }
            Expr::Cast(cast) if self.loses(&cast.expr, &cast.data_type, false)? => {
                let inner = self.expr(*cast.expr, lists)?.data;
                Ok(hidden(Expr::Cast(Cast::new(Box::new(inner), cast.data_type))))
            }
            Expr::TryCast(cast) if self.loses(&cast.expr, &cast.data_type, true)? => {
                let inner = self.expr(*cast.expr, lists)?.data;
                Ok(hidden(Expr::TryCast(TryCast::new(Box::new(inner), cast.data_type))))
            }
            Expr::BinaryExpr(binary) if is_regex(binary.op) => self.regex(binary),
            Expr::BinaryExpr(binary) => self.comparison(binary),
            Expr::Between(between) => self.between(between),
            Expr::InList(list) if lists.has_several(&list) || self.has_null(&list)? => {
                let children = Expr::InList(list).map_children(|child| self.expr(child, lists))?;
                Ok(hidden(children.data))
            }
            Expr::InList(list) => self.list(list),
            Expr::Like(like) => self.like(like),
            Expr::ScalarFunction(function) if function.name() == "starts_with" => {
                self.starts_with(function)
            }
            Expr::ScalarFunction(function) if function.name() == "regexp_like" => {
                self.regexp_like(function)
            }
            _ => Ok(Transformed::no(expr)),
        })
    }

    /// Returns true if a cast makes one value of two, another of one, or NULL.
    fn loses(&self, expr: &Expr, to: &DataType, may_fail: bool) -> Result<bool> {
        let from = expr.get_type(&self.schema)?;
        Ok(changes(&from, to) || may_fail && may_be_null(&from, to))
    }

    /// A comparison of timestamps with a constant that lies between two values of the other side.
    fn comparison(&self, binary: BinaryExpr) -> Result<Transformed<Expr>> {
        let BinaryExpr { left, op, right } = binary;
        for (value, constant, op) in [(&left, &right, Some(op)), (&right, &left, op.swap())] {
            let Some(op) = op else { continue };
            let Some((below, above)) = self.between_units(value, constant)? else { continue };
            let value = (**value).clone();
            return Ok(Transformed::yes(match op {
                Operator::Lt => value.lt(above),
                Operator::GtEq => value.gt_eq(above),
                Operator::Gt => value.gt(below),
                Operator::LtEq => value.lt_eq(below),
                // Never and always; but NULL stays NULL.
                Operator::Eq => and(value.clone().gt(below), value.lt(above)),
                Operator::NotEq => or(value.clone().lt_eq(below), value.gt_eq(above)),
                Operator::IsDistinctFrom => lit(true),
                Operator::IsNotDistinctFrom => lit(false),
                _ => continue,
            }));
        }
        Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })))
    }

    fn between(&self, between: Between) -> Result<Transformed<Expr>> {
        let finer = self.between_units(&between.expr, &between.low)?.is_some()
            || self.between_units(&between.expr, &between.high)?.is_some();
        if !finer {
            return Ok(Transformed::no(Expr::Between(between)));
        }
        let (value, low, high) = (*between.expr, *between.low, *between.high);
        Ok(Transformed::yes(match between.negated {
            true => or(value.clone().lt(low), value.gt(high)),
            false => and(value.clone().gt_eq(low), value.lt_eq(high)),
        }))
    }

    fn has_null(&self, list: &InList) -> Result<bool> {
        for expr in &list.list {
            // Of lists with thousands of constants none is computed that needs not be: what is cast
            // is NULL where it was.
            let mut value = expr;
            while let Expr::Cast(cast) = value {
                value = &cast.expr;
            }
            let is_null = match value {
                Expr::Literal(value, _) => value.is_null(),
                _ => self.constant(value)?.is_some_and(|value| value.is_null()),
            };
            if is_null {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn list(&self, list: InList) -> Result<Transformed<Expr>> {
        let mut met = Vec::new();
        for constant in &list.list {
            if self.between_units(&list.expr, constant)?.is_none() {
                met.push(constant.clone());
            }
        }
        if met.len() == list.list.len() {
            return Ok(Transformed::no(Expr::InList(list)));
        }
        let InList { expr, list, negated } = list;
        // Of those that are never met one stays where all are.
        let kept = if met.is_empty() { list[..1].to_vec() } else { met };
        Ok(Transformed::yes(match (&kept[..], negated) {
            ([one], false) => (*expr).eq(one.clone()),
            ([one], true) => (*expr).not_eq(one.clone()),
            _ => Expr::InList(InList { expr, list: kept, negated }),
        }))
    }

    /// The constants next to a constant of timestamps, below and above, among the values of the
    /// cast expression in its own unit. Returns None if that is no timestamp of a coarser unit, or
    /// if the constant is such a value itself.
    fn between_units(&self, value: &Expr, constant: &Expr) -> Result<Option<(Expr, Expr)>> {
        let Some(coarse) = self.unit_below_casts(value)? else { return Ok(None) };
        let Some(constant) = self.constant(constant)? else { return Ok(None) };
        let (number, fine, zone) = match constant {
            ScalarValue::TimestampMillisecond(Some(at), zone) => (at, TimeUnit::Millisecond, zone),
            ScalarValue::TimestampMicrosecond(Some(at), zone) => (at, TimeUnit::Microsecond, zone),
            ScalarValue::TimestampNanosecond(Some(at), zone) => (at, TimeUnit::Nanosecond, zone),
            _ => return Ok(None),
        };
        let ratio = per_second(fine) / per_second(coarse).min(per_second(fine));
        let below = number.div_euclid(ratio) * ratio;
        let Some(above) = below.checked_add(ratio).filter(|_| below != number) else {
            return Ok(None);
        };
        let literal = |at: i64| {
            let zone = zone.clone();
            let value = match fine {
                TimeUnit::Millisecond => ScalarValue::TimestampMillisecond(Some(at), zone),
                TimeUnit::Microsecond => ScalarValue::TimestampMicrosecond(Some(at), zone),
                _ => ScalarValue::TimestampNanosecond(Some(at), zone),
            };
            Expr::Literal(value, None)
        };
        Ok(Some((literal(below), literal(above))))
    }

    /// The coarsest unit of timestamps below casts that keep every value; None where there is no
    /// such cast.
    fn unit_below_casts(&self, expr: &Expr) -> Result<Option<TimeUnit>> {
        let mut found = None;
        let mut at = expr;
        while let Expr::Cast(Cast { expr, .. }) | Expr::TryCast(TryCast { expr, .. }) = at {
            match expr.get_type(&self.schema)? {
                DataType::Timestamp(unit, _) => found = Some(unit),
                _ => break,
            }
            at = expr;
        }
        Ok(found)
    }

    /// The value of an expression without columns.
    fn constant(&self, expr: &Expr) -> Result<Option<ScalarValue>> {
        if let Expr::Literal(value, _) = expr {
            return Ok(Some(value.clone()));
        }
        if expr.any_column_refs() || expr.is_volatile() {
            return Ok(None);
        }
        match self.constants.simplify(expr.clone())? {
            Expr::Literal(value, _) => Ok(Some(value)),
            _ => Ok(None),
        }
    }

    fn text(&self, expr: &Expr) -> Result<Option<String>> {
        let value = self.constant(expr)?;
        Ok(value.and_then(|value| value.try_as_str().flatten().map(str::to_owned)))
    }

    fn regex(&self, mut binary: BinaryExpr) -> Result<Transformed<Expr>> {
        let changed = self.keep_pattern(&mut binary.right)?;
        Ok(Transformed::new_transformed(Expr::BinaryExpr(binary), changed))
    }

    fn regexp_like(&self, mut function: ScalarFunction) -> Result<Transformed<Expr>> {
        let changed = match function.args.get_mut(1) {
            Some(pattern) => self.keep_pattern(pattern)?,
            None => false,
        };
        Ok(Transformed::new_transformed(Expr::ScalarFunction(function), changed))
    }

    fn keep_pattern(&self, pattern: &mut Expr) -> Result<bool> {
        let text = self.text(pattern)?;
        let Some(kept) = text.and_then(|text| regexes::kept(&text)) else {
            return Ok(false);
        };
        *pattern = lit(ScalarValue::from(kept.as_str()).cast_to(&pattern.get_type(&self.schema)?)?);
        Ok(true)
    }

    fn like(&self, like: Like) -> Result<Transformed<Expr>> {
        let pattern = match is_exact(&like.expr) {
            true => None,
            false => self.text(&like.pattern)?.filter(|pattern| pattern.contains('\\')),
        };
        let Some(pattern) = pattern else { return Ok(Transformed::no(Expr::Like(like))) };
        let ranged = !like.negated
            && !like.case_insensitive
            && like.escape_char.is_none_or(|escape| escape == '\\');
        let prefix = if ranged { literal_prefix(&pattern) } else { String::new() };
        let value = (*like.expr).clone();
        let kept = Expr::Like(Like { expr: Box::new(exact(*like.expr)), ..like });
        self.in_range(value, &prefix, kept)
    }

    fn starts_with(&self, function: ScalarFunction) -> Result<Transformed<Expr>> {
        let unchanged = |args| {
            let function = ScalarFunction { func: Arc::clone(&function.func), args };
            Expr::ScalarFunction(function)
        };
        let [value, prefix] = &function.args[..] else {
            return Ok(Transformed::no(Expr::ScalarFunction(function)));
        };
        let text = match is_exact(value) {
            true => None,
            false => self.text(prefix)?.filter(|prefix| prefix.contains(['\\', '%', '_'])),
        };
        let Some(text) = text else {
            return Ok(Transformed::no(Expr::ScalarFunction(function)));
        };
        let kept = unchanged(vec![exact(value.clone()), prefix.clone()]);
        self.in_range(value.clone(), &text, kept)
    }

    /// `kept`, which holds only of texts that begin with `prefix`, with the range that these are
    /// in.
    fn in_range(&self, value: Expr, prefix: &str, kept: Expr) -> Result<Transformed<Expr>> {
        let literal = |text: String| match value.get_type(&self.schema) {
            Ok(DataType::Utf8) => Some(ScalarValue::Utf8(Some(text))),
            Ok(DataType::LargeUtf8) => Some(ScalarValue::LargeUtf8(Some(text))),
            Ok(DataType::Utf8View) => Some(ScalarValue::Utf8View(Some(text))),
            _ => None,
        };
        // Of the bytes that text is compared by, those of ASCII have a next one.
        let next = prefix.bytes().last().filter(|last| (b' '..b'~').contains(last)).map(|last| {
            let rest = &prefix[..prefix.len() - 1];
            format!("{rest}{}", char::from(last + 1))
        });
        let bounds = next.and_then(|next| Some((literal(prefix.to_owned())?, literal(next)?)));
        let ranged = match bounds {
            Some((first, next)) => {
                let (first, next) = (Expr::Literal(first, None), Expr::Literal(next, None));
                and(and(value.clone().gt_eq(first), value.lt(next)), kept)
            }
            None => kept,
        };
        Ok(Transformed::new(ranged, true, TreeNodeRecursion::Jump))
    }
}

fn is_regex(op: Operator) -> bool {
    use Operator::{RegexIMatch, RegexMatch, RegexNotIMatch, RegexNotMatch};
    matches!(op, RegexMatch | RegexIMatch | RegexNotMatch | RegexNotIMatch)
}

fn hidden(expr: Expr) -> Transformed<Expr> {
    jump(exact(expr))
}

/// A change whose parts are done.
fn jump(expr: Expr) -> Transformed<Expr> {
    Transformed::new(expr, true, TreeNodeRecursion::Jump)
}

/// Returns true if a cast of values that are there changes some.
fn changes(from: &DataType, to: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256, Timestamp};
    match (from, to) {
        (
            Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale),
            to,
        ) => match to {
            Decimal32(_, other)
            | Decimal64(_, other)
            | Decimal128(_, other)
            | Decimal256(_, other) => other < scale,
            _ => to.is_integer() && *scale > 0,
        },
        (Timestamp(unit, zone), Timestamp(other, other_zone)) => {
            per_second(*other) < per_second(*unit) || shifts(zone.as_deref(), other_zone.as_deref())
        }
        _ => false,
    }
}

/// Returns true if a value that is there may be none after a `TRY_CAST`.
fn may_be_null(from: &DataType, to: &DataType) -> bool {
    let is_number = |of: &DataType| of.is_integer() || of.is_decimal();
    is_number(from) && is_number(to) && !holds_all(from, to)
}

/// Returns true if the numbers of one type are all numbers of another.
fn holds_all(from: &DataType, to: &DataType) -> bool {
    let bits = |of: &DataType| of.primitive_width().unwrap_or(0) as i32 * 8;
    let digits = |bits: i32| f64::from(bits) * std::f64::consts::LOG10_2;
    match (digits_before_point(from), digits_before_point(to)) {
        (Some(from), Some(to)) => from <= to,
        (Some(from), None) => to.is_signed_integer() && from <= digits(bits(to) - 1) as i32,
        (None, Some(to)) => digits(bits(from)).ceil() as i32 <= to,
        (None, None) => match (from.is_signed_integer(), to.is_signed_integer()) {
            (false, true) => bits(from) < bits(to),
            (true, false) => false,
            _ => bits(from) <= bits(to),
        },
    }
}

/// Digits of a decimal before the point; None for an integer.
fn digits_before_point(of: &DataType) -> Option<i32> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    match of {
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => Some(i32::from(*precision) - i32::from(*scale)),
        _ => None,
    }
}

/// Returns true if a cast between timestamps of these zones changes the stored number: a cast
/// between a zone and none takes the clock there.
fn shifts(zone: Option<&str>, other: Option<&str>) -> bool {
    match (zone, other) {
        (None, Some(zone)) | (Some(zone), None) => !is_utc(zone),
        _ => false,
    }
}

pub(super) fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// The literal prefix of every text that matches a LIKE pattern (with backslash escapes).
fn literal_prefix(pattern: &str) -> String {
    let mut prefix = String::new();
    let mut chars = pattern.chars();
    while let Some(next) = chars.next() {
        match next {
            '%' | '_' => break,
            '\\' => match chars.next() {
                Some(escaped) => prefix.push(escaped),
                None => break,
            },
            _ => prefix.push(next),
        }
    }
    prefix
}

/// Values of an expression with several IN lists.
struct Lists {
    /// Where unknown and false are not the same: how many by value.
    several: HashMap<Expr, usize>,
}

impl Lists {
    /// For a condition. Unknown is false there, so that only lists with NULL, and lists below NOT
    /// or CASE, are merged wrongly. So are negated alternatives: they become true if no value is in
    /// all of them.
    fn in_filter(expr: &Expr) -> Self {
        let mut lists = Self { several: HashMap::new() };
        lists.conditions(expr, false);
        lists
    }

    /// For an expression whose value counts.
    fn in_value(expr: &Expr) -> Self {
        let mut lists = Self { several: HashMap::new() };
        lists.values(expr);
        lists
    }

    fn conditions(&mut self, expr: &Expr, is_alternative: bool) {
        match expr {
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: op @ (Operator::And | Operator::Or),
                right,
            }) => {
                let is_alternative = is_alternative || *op == Operator::Or;
                self.conditions(left, is_alternative);
                self.conditions(right, is_alternative);
            }
            Expr::InList(list) if !(list.negated && is_alternative) => {}
            other => self.values(other),
        }
    }

    fn values(&mut self, expr: &Expr) {
        // Nothing fails here.
        let _ = expr.apply(|expr| {
            if let Expr::InList(list) = expr {
                *self.several.entry((*list.expr).clone()).or_default() += 1;
            }
            Ok(TreeNodeRecursion::Continue)
        });
    }

    fn has_several(&self, list: &InList) -> bool {
        self.several.get(&list.expr).is_some_and(|count| *count > 1)
    }
}
