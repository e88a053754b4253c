//! The verdict over a predicate: a walk that keeps, for each part of it, every outcome that some
//! row may have.

use std::sync::Arc;

use arrow::buffer::BooleanBuffer;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CastColumnExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::scalar::ScalarValue;

use super::bounds::ColumnBounds;
use super::range::Range;
use super::truth::Truth;
use crate::floats::is_plain_float;

/// Length of a list above which only its least and greatest items are used.
const MOST_ITEMS: usize = 256;

/// Bounds and counts of several containers, all of one kind.
pub trait Bounds {
    /// How many they are.
    fn containers(&self) -> usize;

    /// Bounds of one of their columns; None if there are none.
    fn column(&self, column: &Column) -> Option<ColumnBounds>;

    /// Which containers have no row in which the column is this value, as a hash of its values
    /// says. None where nothing does.
    fn lacks(&self, column: &Column, value: &ScalarValue) -> Option<BooleanBuffer> {
        let _ = (column, value);
        None
    }
}

/// The facts that are proven of each container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// No row of it matches: it may be left out.
    pub none: BooleanBuffer,
    /// All rows of it match: it may be counted as a whole.
    pub all: BooleanBuffer,
}

/// The verdict over a predicate whose columns have these `bounds`.
pub fn judge(predicate: &Arc<dyn PhysicalExpr>, bounds: &dyn Bounds) -> Verdict {
    let containers = bounds.containers();
    let truth = Judge { bounds, containers }.truth(predicate);
    Verdict { none: !&truth.is_true, all: !&(&truth.is_false | &truth.is_null) }
}

struct Judge<'a> {
    bounds: &'a dyn Bounds,
    containers: usize,
}

impl Judge<'_> {
    /// The possible outcomes of a condition; all of them if it is not understood.
    fn truth(&self, expr: &Arc<dyn PhysicalExpr>) -> Truth {
        let found = match is_condition(expr) {
            true => self.known_truth(expr),
            false => self.range(expr).and_then(|range| range.truth()),
        };
        found.unwrap_or_else(|| Truth::unknown(self.containers))
    }

    /// The possible outcomes of an expression for which [`is_condition`] is true; None if it is not
    /// understood.
    fn known_truth(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<Truth> {
        let node = expr.as_any();
        if let Some(not) = node.downcast_ref::<NotExpr>() {
            return Some(self.truth(not.arg()).not());
        }
        if let Some(test) = node.downcast_ref::<IsNullExpr>() {
            return Some(self.null_test(test.arg()));
        }
        if let Some(test) = node.downcast_ref::<IsNotNullExpr>() {
            return Some(self.null_test(test.arg()).not());
        }
        if let Some(list) = node.downcast_ref::<InListExpr>() {
            let found = self.in_list(list.expr(), list.list())?;
            return Some(if list.negated() { found.not() } else { found });
        }
        if let Some(like) = node.downcast_ref::<LikeExpr>() {
            let found = self.like(like)?;
            return Some(if like.negated() { found.not() } else { found });
        }
        let binary = node.downcast_ref::<BinaryExpr>()?;
        let (left, right) = (binary.left(), binary.right());
        match binary.op() {
            Operator::And => Some(self.truth(left).and(&self.truth(right))),
            Operator::Or => Some(self.truth(left).or(self.truth(right))),
            op => self.compare(left, *op, right),
        }
    }

    /// A test whether `expr` is NULL. It is true or false even for expressions that are not
    /// understood.
    fn null_test(&self, expr: &Arc<dyn PhysicalExpr>) -> Truth {
        match self.range(expr) {
            Some(range) => range.null_test(),
            None => {
                let all = BooleanBuffer::new_set(self.containers);
                Truth::test(all.clone(), all)
            }
        }
    }

    fn compare(
        &self,
        left: &Arc<dyn PhysicalExpr>,
        op: Operator,
        right: &Arc<dyn PhysicalExpr>,
    ) -> Option<Truth> {
        let (a, b) = (self.range(left)?, self.range(right)?);
        match op {
            Operator::Lt => a.less(&b),
            Operator::GtEq => a.less(&b).map(Truth::not),
            Operator::Gt => b.less(&a),
            Operator::LtEq => b.less(&a).map(Truth::not),
            Operator::Eq => self.equal(left, &a, right, &b),
            Operator::NotEq => self.equal(left, &a, right, &b).map(Truth::not),
            Operator::IsNotDistinctFrom => a.same(&b),
            Operator::IsDistinctFrom => a.same(&b).map(Truth::not),
            _ => None,
        }
    }

    /// Judges an equation. For a column and a constant, a hash of the values may tell more.
    fn equal(
        &self,
        left: &Arc<dyn PhysicalExpr>,
        a: &Range,
        right: &Arc<dyn PhysicalExpr>,
        b: &Range,
    ) -> Option<Truth> {
        // A hash may say something of a column of which no bound is known.
        let mut truth = a.equal(b).unwrap_or_else(|| Truth::unknown(self.containers));
        let column = |expr: &Arc<dyn PhysicalExpr>| expr.as_any().downcast_ref::<Column>().cloned();
        let asked = match (column(left), column(right)) {
            (Some(column), None) => constant(right).map(|value| (column, value)),
            (None, Some(column)) => constant(left).map(|value| (column, value)),
            _ => None,
        };
        if let Some((column, value)) = asked
            && let Some(lacks) = self.bounds.lacks(&column, value)
            && lacks.len() == self.containers
        {
            truth.is_true = &truth.is_true & &!&lacks;
        }
        Some(truth)
    }

    fn in_list(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        items: &[Arc<dyn PhysicalExpr>],
    ) -> Option<Truth> {
        let value = self.range(expr)?;
        let constants = items.iter().map(constant).collect::<Option<Vec<_>>>()?;
        if items.len() > MOST_ITEMS {
            return self.in_long_list(&value, &constants);
        }
        // In none of no items, whatever the value is.
        let mut found = Truth::constant(Some(false), self.containers);
        for (item, constant) in items.iter().zip(constants) {
            let other = Range::of_literal(constant, self.containers)?;
            found = found.or(self.equal(expr, &value, item, &other)?);
        }
        Some(found)
    }

    /// The possible outcomes of a long IN list. A value between the least and the greatest item may
    /// be one of them or none.
    fn in_long_list(&self, value: &Range, items: &[&ScalarValue]) -> Option<Truth> {
        let has_null = items.iter().any(|item| item.is_null());
        let known = items.iter().filter(|item| !item.is_null());
        let (mut least, mut greatest): (&ScalarValue, &ScalarValue) =
            (known.clone().next()?, known.clone().next()?);
        for item in known {
            if item.partial_cmp(&least)?.is_lt() {
                least = item;
            }
            if item.partial_cmp(&greatest)?.is_gt() {
                greatest = item;
            }
        }
        let least = Range::of_literal(least, self.containers)?;
        let greatest = Range::of_literal(greatest, self.containers)?;
        let within = value.less(&least)?.not().and(&greatest.less(value)?.not());
        let all = BooleanBuffer::new_set(self.containers);
        let is_null = if has_null { all.clone() } else { within.is_null.clone() };
        Some(Truth { is_true: within.is_true, is_false: all, is_null })
    }

    fn like(&self, like: &LikeExpr) -> Option<Truth> {
        let pattern = match constant(like.pattern())? {
            ScalarValue::Utf8(Some(pattern))
            | ScalarValue::LargeUtf8(Some(pattern))
            | ScalarValue::Utf8View(Some(pattern)) => pattern,
            _ => return None,
        };
        if like.case_insensitive() {
            return None;
        }
        let end = pattern.find(['%', '_', '\\']).unwrap_or(pattern.len());
        let (prefix, rest) = pattern.split_at(end);
        if prefix.is_empty() {
            return None;
        }
        self.range(like.expr())?.begins_with(prefix, rest == "%")
    }

    /// The values that an expression may have; None where it is not understood.
    fn range(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<Range> {
        if is_condition(expr) {
            return Some(Range::of_truth(&self.truth(expr)));
        }
        let node = expr.as_any();
        if let Some(column) = node.downcast_ref::<Column>() {
            return self.bounds.column(column).map(Range::of_column);
        }
        if let Some(value) = constant(expr) {
            return Range::of_literal(value, self.containers);
        }
        if let Some(cast) = node.downcast_ref::<CastExpr>() {
            return self.range(cast.expr())?.cast(cast.cast_type(), cast.cast_options().safe);
        }
        if let Some(cast) = node.downcast_ref::<TryCastExpr>() {
            return self.range(cast.expr())?.cast(cast.cast_type(), true);
        }
        if let Some(cast) = node.downcast_ref::<CastColumnExpr>() {
            // It does not say what becomes of values that cannot be cast.
            return self.range(cast.expr())?.cast(cast.target_field().data_type(), true);
        }
        if let Some(function) = node.downcast_ref::<ScalarFunctionExpr>()
            && is_plain_float(function.fun())
            && let [argument] = function.args()
        {
            return self.range(argument).map(Range::plain);
        }
        None
    }
}

/// Returns true for an operator whose outcome (true, false or NULL) follows from its parts.
fn is_condition(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let node = expr.as_any();
    node.is::<NotExpr>()
        || node.is::<IsNullExpr>()
        || node.is::<IsNotNullExpr>()
        || node.is::<InListExpr>()
        || node.is::<LikeExpr>()
        || node.downcast_ref::<BinaryExpr>().is_some_and(|binary| {
            matches!(binary.op(), Operator::And | Operator::Or) || is_comparison(*binary.op())
        })
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

fn constant(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    expr.as_any().downcast_ref::<Literal>().map(Literal::value)
}
