//! Numbers in statements, with all of their digits. DataFusion 53 makes a float of each that has a
//! point or more than 64 bits, and keeps some fifteen digits of it.
//!
//! - In `CAST(1234567890123456789.12 AS DECIMAL(38, 2))` the number is a text, which has all
//!   digits.
//! - Beside a decimal, or an integer of 64 bits, that it is compared with, the number is one of
//!   that type; between two of its values it is above the lower one and equal to none. Until the
//!   types are known, it is a function of its digits.
//!
//! Any other number stays a float.
//!
//! Upstream: apache/datafusion#14612.

use std::sync::LazyLock;

use arrow::datatypes::{DataType, i256};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility, and, lit, or,
};
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, DataType as SqlType, UnaryOperator, Value,
};

use super::functions::call;
use super::walk::with_names;
use crate::Result;
use crate::basics::function_basics;

/// A function that no plan has any longer once it is mended.
const NAME: &str = "written_number";

/// Digits of the widest decimal.
const MOST_DIGITS: usize = 76;

/// Keeps the digits of numbers that are cast to decimals, or compared.
pub(in crate::query) fn keep_digits(expr: &mut ast::Expr) {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    match expr {
        ast::Expr::Cast {
            expr,
            data_type: SqlType::Decimal(_) | SqlType::Numeric(_) | SqlType::Dec(_),
            ..
        } => {
            if let Some(digits) = written(expr) {
                **expr = text(digits);
            }
        }
        ast::Expr::BinaryOp { left, op: Eq | NotEq | Lt | LtEq | Gt | GtEq, right }
        | ast::Expr::IsDistinctFrom(left, right)
        | ast::Expr::IsNotDistinctFrom(left, right) => {
            mark(left);
            mark(right);
        }
        ast::Expr::Between { low, high, .. } => {
            mark(low);
            mark(high);
        }
        ast::Expr::InList { list, .. } => list.iter_mut().for_each(mark),
        _ => {}
    }
}

fn mark(expr: &mut ast::Expr) {
    if let Some(digits) = written(expr) {
        *expr = call(NAME, vec![text(digits)]);
    }
}

fn text(digits: String) -> ast::Expr {
    ast::Expr::Value(Value::SingleQuotedString(digits).into())
}

/// The digits of a number that would be a float, but for one with an exponent.
fn written(expr: &ast::Expr) -> Option<String> {
    if let ast::Expr::Nested(inner) = expr {
        return written(inner);
    }
    let (sign, number) = match expr {
        ast::Expr::UnaryOp { op: UnaryOperator::Minus, expr } => ("-", &**expr),
        number => ("", number),
    };
    let ast::Expr::Value(value) = number else { return None };
    let Value::Number(digits, _) = &value.value else { return None };
    let is_integer = format!("{sign}{digits}").parse::<i64>().is_ok()
        || (sign.is_empty() && digits.parse::<u64>().is_ok());
    let found = format!("{sign}{digits}");
    (!is_integer && Number::parse(&found).is_some()).then_some(found)
}

/// The function of a number's digits.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Written {
    signature: Signature,
}

static WRITTEN: LazyLock<ScalarUDF> = LazyLock::new(|| {
    let signature = Signature::exact(vec![DataType::Utf8], Volatility::Immutable);
    ScalarUDF::from(Written { signature })
});

/// The function, as a session registers it.
pub(super) fn written_number() -> ScalarUDF {
    WRITTEN.clone()
}

impl ScalarUDFImpl for Written {
    function_basics!(_this => NAME);

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Float64)
    }

    /// Names columns as the float does.
    fn schema_name(&self, args: &[Expr]) -> DfResult<String> {
        match args {
            [Expr::Literal(digits, _)] => Ok(float(digits).schema_name().to_string()),
            _ => Ok(NAME.to_owned()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        match &args.args[..] {
            [ColumnarValue::Scalar(digits)] => {
                Ok(ColumnarValue::Scalar(ScalarValue::Float64(number_of(digits))))
            }
            _ => datafusion::common::exec_err!("{NAME}() takes a number in quotes"),
        }
    }
}

fn number_of(digits: &ScalarValue) -> Option<f64> {
    digits.try_as_str().flatten()?.parse().ok()
}

fn float(digits: &ScalarValue) -> Expr {
    Expr::Literal(ScalarValue::Float64(number_of(digits)), None)
}

/// The digits of a written number.
fn digits_of(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::ScalarFunction(function) if function.name() == NAME => match &function.args[..] {
            [Expr::Literal(digits, _)] => Some(digits),
            _ => None,
        },
        _ => None,
    }
}

/// The plan with written numbers of the type that they are compared with; elsewhere they are
/// floats.
///
/// # Errors
/// Errors of the plan's schema, when it is computed anew.
pub(super) fn exact_comparisons(plan: LogicalPlan) -> Result<LogicalPlan> {
    let of_node = |plan: LogicalPlan| {
        let mut schema = None;
        let inputs: Vec<_> = plan.inputs().into_iter().cloned().collect();
        with_names(plan, |expr| {
            if !expr.exists(|expr| Ok(digits_of(expr).is_some()))? {
                return Ok(Transformed::no(expr));
            }
            let schema =
                schema.get_or_insert_with(|| merge_schema(&inputs.iter().collect::<Vec<_>>()));
            let met = expr.transform_up(|expr| of_expr(expr, schema))?.data;
            met.transform_up(|expr| {
                Ok(match digits_of(&expr).map(float) {
                    Some(number) => Transformed::yes(number),
                    None => Transformed::no(expr),
                })
            })
        })
    };
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

fn of_expr(expr: Expr, schema: &DFSchema) -> DfResult<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let found =
                met(&left, op, &right, schema).or_else(|| met(&right, op.swap()?, &left, schema));
            match found {
                Some(found) => Transformed::yes(found),
                None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
            }
        }
        Expr::Between(between) => of_between(between, schema),
        Expr::InList(list) => of_list(list, schema),
        other => Transformed::no(other),
    })
}

/// The comparison of a value with a written number; None of anything else.
fn met(value: &Expr, op: Operator, number: &Expr, schema: &DFSchema) -> Option<Expr> {
    let number = Number::parse(digits_of(number)?.try_as_str()??)?;
    let of = Exact::of(value, schema)?;
    of.compared(value, op, &number)
}

fn of_between(between: Between, schema: &DFSchema) -> Transformed<Expr> {
    let Between { expr, negated, low, high } = between;
    let literal = |bound: &Expr, of: &Exact| {
        let number = digits_of(bound)?.try_as_str()??;
        of.literal_of(&Number::parse(number)?)
    };
    if let Some(of) = Exact::of(&expr, schema) {
        let is_written = |bound: &Expr| digits_of(bound).is_some();
        let (first, last) = (literal(&low, &of), literal(&high, &of));
        let is_exact =
            (first.is_some() || !is_written(&low)) && (last.is_some() || !is_written(&high));
        if is_exact {
            let low = Box::new(first.unwrap_or(*low));
            let high = Box::new(last.unwrap_or(*high));
            return Transformed::yes(Expr::Between(Between { expr, negated, low, high }));
        }
        if !expr.is_volatile() {
            let side = |op: Operator, bound: &Expr| {
                met(&expr, op, bound, schema).unwrap_or_else(|| {
                    let (left, right) = (expr.clone(), Box::new(bound.clone()));
                    Expr::BinaryExpr(BinaryExpr { left, op, right })
                })
            };
            return Transformed::yes(match negated {
                true => or(side(Operator::Lt, &low), side(Operator::Gt, &high)),
                false => and(side(Operator::GtEq, &low), side(Operator::LtEq, &high)),
            });
        }
    }
    Transformed::no(Expr::Between(Between { expr, negated, low, high }))
}

/// Numbers that the value's type does not have are left out.
fn of_list(list: InList, schema: &DFSchema) -> Transformed<Expr> {
    let InList { expr, mut list, negated } = list;
    let Some(of) = Exact::of(&expr, schema) else {
        return Transformed::no(Expr::InList(InList { expr, list, negated }));
    };
    list.retain_mut(|item| {
        let number = digits_of(item).and_then(|digits| Number::parse(digits.try_as_str()??));
        match number.map(|number| of.literal_of(&number)) {
            None => true,
            Some(Some(literal)) => {
                *item = literal;
                true
            }
            Some(None) => false,
        }
    });
    if list.is_empty() {
        return Transformed::yes(always(&expr, negated));
    }
    Transformed::yes(Expr::InList(InList { expr, list, negated }))
}

/// A written number: `units` divided by 10^`places`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    units: i256,
    places: u32,
}

impl Number {
    /// None of a number with an exponent, or of more digits than the widest decimal has.
    fn parse(text: &str) -> Option<Self> {
        let (sign, rest) = match text.strip_prefix('-') {
            Some(rest) => ("-", rest),
            None => ("", text),
        };
        let (whole, fraction) = rest.split_once('.').unwrap_or((rest, ""));
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) || (whole.is_empty() && rest.len() < 2)
        {
            return None;
        }
        let digits = digits.trim_start_matches('0');
        if digits.len() > MOST_DIGITS || fraction.len() > MOST_DIGITS {
            return None;
        }
        let digits = if digits.is_empty() { "0" } else { digits };
        let units = i256::from_string(&format!("{sign}{digits}"))?;
        Some(Self { units, places: u32::try_from(fraction.len()).ok()? })
    }
}

/// A type that has numbers exactly: so many of its units are one.
struct Exact {
    data_type: DataType,
    scale: i32,
    least: i256,
    greatest: i256,
}

impl Exact {
    /// The type of a decimal or of an integer of 64 bits; floats have the others exactly.
    fn of(value: &Expr, schema: &DFSchema) -> Option<Self> {
        let data_type = match value.get_type(schema).ok()? {
            DataType::Dictionary(_, values) => *values,
            other => other,
        };
        let (scale, least, greatest) = match &data_type {
            DataType::Decimal32(precision, scale)
            | DataType::Decimal64(precision, scale)
            | DataType::Decimal128(precision, scale)
            | DataType::Decimal256(precision, scale) => {
                let end = power(u32::from(*precision))?.checked_sub(i256::ONE)?;
                (i32::from(*scale), end.checked_neg()?, end)
            }
            DataType::Int64 => {
                (0, i256::from_i128(i64::MIN.into()), i256::from_i128(i64::MAX.into()))
            }
            DataType::UInt64 => (0, i256::ZERO, i256::from_i128(u64::MAX.into())),
            _ => return None,
        };
        Some(Self { data_type, scale, least, greatest })
    }

    /// The greatest number of units that is not above a number, and whether it is the number. None
    /// beyond 256 bits.
    fn floor(&self, number: &Number) -> Option<(i256, bool)> {
        let more = self.scale - i32::try_from(number.places).ok()?;
        if more >= 0 {
            return Some((number.units.checked_mul(power(more.unsigned_abs())?)?, true));
        }
        let step = power(more.unsigned_abs())?;
        let (whole, rest) = (number.units.checked_div(step)?, number.units.checked_rem(step)?);
        match rest < i256::ZERO {
            true => Some((whole.checked_sub(i256::ONE)?, false)),
            false => Some((whole, rest == i256::ZERO)),
        }
    }

    /// The literal that is a number; None where the type does not have it.
    fn literal_of(&self, number: &Number) -> Option<Expr> {
        let (units, is_exact) = self.floor(number)?;
        (is_exact && units >= self.least && units <= self.greatest).then(|| self.literal(units))
    }

    /// A literal of units within the type's range.
    fn literal(&self, units: i256) -> Expr {
        let short = units.as_i128();
        let value = match self.data_type {
            DataType::Decimal32(precision, scale) => {
                ScalarValue::Decimal32(Some(short as i32), precision, scale)
            }
            DataType::Decimal64(precision, scale) => {
                ScalarValue::Decimal64(Some(short as i64), precision, scale)
            }
            DataType::Decimal128(precision, scale) => {
                ScalarValue::Decimal128(Some(short), precision, scale)
            }
            DataType::Decimal256(precision, scale) => {
                ScalarValue::Decimal256(Some(units), precision, scale)
            }
            DataType::UInt64 => ScalarValue::UInt64(Some(short as u64)),
            _ => ScalarValue::Int64(Some(short as i64)),
        };
        Expr::Literal(value, None)
    }

    /// The comparison of a value of the type with a number, without a cast of the value; NULL stays
    /// NULL. None for an operator that does not compare.
    fn compared(&self, value: &Expr, op: Operator, number: &Number) -> Option<Expr> {
        use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
        let value = value.clone();
        if let Some(exact) = self.literal_of(number) {
            let compares = matches!(
                op,
                Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom
            );
            let found = BinaryExpr::new(Box::new(value), op, Box::new(exact));
            return compares.then_some(Expr::BinaryExpr(found));
        }
        // Beyond 256 bits the sign says on which side it is.
        let lower = match self.floor(number) {
            Some((units, _)) if units < self.least => None,
            Some((units, _)) if units < self.greatest => Some(units),
            None if number.units < i256::ZERO => None,
            // No value is above it.
            _ => Some(self.greatest),
        };
        let is_above = lower.is_some_and(|lower| lower == self.greatest);
        Some(match (op, lower) {
            (IsDistinctFrom, _) => lit(true),
            (IsNotDistinctFrom, _) => lit(false),
            (NotEq, _) => always(&value, true),
            (Eq, _) => always(&value, false),
            (Lt | LtEq, None) => always(&value, false),
            (Gt | GtEq, None) => always(&value, true),
            (Lt | LtEq, Some(_)) if is_above => always(&value, true),
            (Gt | GtEq, Some(_)) if is_above => always(&value, false),
            (Lt | LtEq, Some(lower)) => value.lt_eq(self.literal(lower)),
            (Gt | GtEq, Some(lower)) => value.gt(self.literal(lower)),
            _ => return None,
        })
    }
}

/// A condition with one outcome, or NULL where the value is that.
fn always(value: &Expr, outcome: bool) -> Expr {
    let unknown = Expr::Literal(ScalarValue::Boolean(None), None);
    match outcome {
        true => or(value.clone().is_not_null(), unknown),
        false => and(value.clone().is_null(), unknown),
    }
}

/// A power of ten; None beyond 256 bits.
fn power(exponent: u32) -> Option<i256> {
    i256::from_i128(10).checked_pow(exponent)
}
