//! Functions that DataFusion 53 computes wrongly, in the place of its own. Most have the name of
//! the one that they replace.

mod any_of;
mod array_sort;
mod at_time_zone;
mod date_bin;
mod date_part;
mod date_trunc;
mod decimals;
mod in_place;
mod length;
mod lists;
mod overlay;
mod replaced;
mod round;
mod struct_case;
mod texts;
mod times;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use arrow::array::ArrayRef;
#[cfg(feature = "ballista")]
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::functions::{crypto, encoding, regex, string, unicode};
use datafusion::logical_expr::expr::{Case, ScalarFunction};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{ColumnarValue, Expr, ExprSchemable, LogicalPlan, ScalarUDF};
use datafusion::sql::sqlparser::ast;

pub(in crate::query) use any_of::over_lists;
pub(in crate::query) use at_time_zone::zones_as_calls;
pub(in crate::query) use replaced::name_replaced;
pub use times::TimesOfDay;

use super::number_digits::written_number;
use super::signed_zeros::plain;
use super::{nested_order, time_texts};
use crate::floats::{has_floats, is_plain_float};
use crate::query::engine_fixes::walk::{with_names, with_new_schema};
use crate::{Error, Result};

static OWN: LazyLock<HashMap<String, Arc<ScalarUDF>>> = LazyLock::new(|| {
    let own = [
        any_of::function(),
        array_sort::order_of_each_row(),
        at_time_zone::function(),
        date_bin::within_nanoseconds(),
        date_part::right_parts(),
        date_trunc::of_all_times(),
        length::of_lists_too(),
        overlay::by_characters(),
        replaced::function(),
        round::of_floats(),
        written_number(),
        decimals::rounded(),
        nested_order::function(),
        time_texts::function(),
    ];
    let own = own.into_iter().chain(decimals::functions());
    let own = own.chain(texts::functions()).chain(times::functions());
    own.map(|function| (function.name().to_owned(), Arc::new(function))).collect()
});

/// Functions of texts, which take anything that can be written as one.
static OF_TEXTS: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let all = [
        string::functions(),
        unicode::functions(),
        regex::functions(),
        crypto::functions(),
        encoding::functions(),
    ];
    all.iter().flatten().map(|function| function.name().to_owned()).collect()
});

/// Functions that compare the elements of lists with each other, or with a value.
const COMPARE_ELEMENTS: [&str; 20] = [
    "array_distinct",
    "array_except",
    "array_has",
    "array_has_all",
    "array_has_any",
    "array_intersect",
    "array_max",
    "array_min",
    "array_position",
    "array_positions",
    "array_remove",
    "array_remove_all",
    "array_remove_n",
    "array_replace",
    "array_replace_all",
    "array_replace_n",
    "array_sort",
    "array_union",
    "equals_any",
    "map_extract",
];

/// The functions, as a session registers them.
pub fn own_functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    OWN.values().cloned()
}

/// Returns true for a call that DataFusion's function of the same name answers otherwise.
#[cfg(feature = "ballista")]
pub fn is_answered_otherwise(call: &ScalarFunction, inputs: &DFSchema) -> bool {
    let types: Vec<_> = call.args.iter().map(|arg| arg.get_type(inputs)).collect();
    let is_text = |at: usize| matches!(types.get(at), Some(Ok(found)) if found.is_string());
    match call.name() {
        "character_length" => !is_text(0),
        "ceil" | "floor" | "trunc" => {
            types.first().is_none_or(|found| !matches!(found, Ok(found) if !found.is_decimal()))
        }
        "date_part" => {
            let is_span =
                |found: &DataType| matches!(found, DataType::Interval(_) | DataType::Duration(_));
            let is_moment = matches!(types.get(1), Some(Ok(found)) if !is_span(found));
            let is_isodow = |part: &Expr| part.to_string().to_lowercase().contains("isodow");
            !is_moment || call.args.first().is_none_or(is_isodow)
        }
        _ => is_own(&call.func),
    }
}

/// Returns true for a function of this module that has the name of one of DataFusion's.
fn is_own(function: &ScalarUDF) -> bool {
    OWN.get(function.name()).is_some_and(|own| **own == *function)
}

/// The plan with these functions, also where the planner takes DataFusion's without looking into
/// the session.
///
/// # Errors
/// `Query` for a function of texts that is given a list, a struct or a map.
pub(super) fn with_own_functions(plan: LogicalPlan) -> Result<LogicalPlan> {
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

fn of_node(plan: LogicalPlan) -> DfResult<Transformed<LogicalPlan>> {
    let mut schema = None;
    let inputs: Vec<_> = plan.inputs().into_iter().cloned().collect();
    let plan = with_names(plan, |expr| {
        if !expr.exists(|expr| Ok(matches!(expr, Expr::ScalarFunction(_) | Expr::Case(_))))? {
            return Ok(Transformed::no(expr));
        }
        let schema = schema.get_or_insert_with(|| merge_schema(&inputs.iter().collect::<Vec<_>>()));
        expr.transform_up(|expr| of_expr(expr, schema))
    })?;
    with_new_schema(plan)
}

fn of_expr(expr: Expr, schema: &DFSchema) -> DfResult<Transformed<Expr>> {
    let mut changed = false;
    let expr = match expr {
        Expr::ScalarFunction(ScalarFunction { mut args, func }) => {
            changed = lists::plain_lists(&func, &mut args, schema);
            if func.name() == replaced::NAME && args.len() == 2 {
                return Ok(Transformed::yes(args.swap_remove(0)));
            }
            if func.name() == at_time_zone::NAME
                && let [_, Expr::Literal(zone, _)] = &args[..]
                && let Some(Some(zone)) = zone.try_as_str()
            {
                let (of, zone) = (args[0].get_type(schema)?, zone.to_owned());
                let time = args.swap_remove(0);
                return Ok(Transformed::yes(at_time_zone::written_out(time, &zone, &of)));
            }
            if COMPARE_ELEMENTS.contains(&func.name())
                && let Some(args) = with_plain_floats(&args, schema)?
            {
                let func = OWN.get(func.name()).map_or(func, Arc::clone);
                return Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args })));
            }
            if let Some(own) = OWN.get(func.name())
                && **own != *func
            {
                let function = ScalarFunction { func: Arc::clone(own), args };
                return Ok(Transformed::yes(Expr::ScalarFunction(function)));
            }
            if func.name() == "round"
                && let Some(rounded) = decimals::round_of_a_type(&func, &args, schema)
            {
                return Ok(Transformed::yes(rounded));
            }
            if func.name() == "nullif"
                && let [value, other] = &args[..]
                && value.get_type(schema).is_ok_and(|found| found.is_floating())
                && !value.is_volatile()
            {
                // The engine's own compares zeros by their signs.
                let equal = value.clone().eq(other.clone());
                let null = Expr::Literal(ScalarValue::Null, None);
                let otherwise = Some(Box::new(value.clone()));
                let case = Case::new(None, vec![(Box::new(equal), Box::new(null))], otherwise);
                return Ok(Transformed::yes(Expr::Case(case)));
            }
            if OF_TEXTS.contains(func.name()) && !is_own(&func) {
                check_texts(func.name(), &args, schema)?;
            }
            Expr::ScalarFunction(ScalarFunction { func, args })
        }
        Expr::Case(case) => case_of_zeros(case, schema)?,
        other => other,
    };
    match struct_case::makes_null_structs(&expr, schema) {
        true => Ok(Transformed::yes(struct_case::null_fields(expr))),
        false => Ok(Transformed::new_transformed(expr, changed)),
    }
}

/// The arguments with floats in one form each: the engine compares elements by their bits, where
/// `-0.0` is not `0.0`. The zeros of the result have no sign then. None where nothing changes.
fn with_plain_floats(args: &[Expr], schema: &DFSchema) -> DfResult<Option<Vec<Expr>>> {
    let mut changed = false;
    let mut plain_args = Vec::with_capacity(args.len());
    for arg in args {
        let is_plain = matches!(arg, Expr::ScalarFunction(inner) if is_plain_float(&inner.func));
        let wanted = !is_plain && has_floats(&arg.get_type(schema)?);
        changed |= wanted;
        plain_args.push(if wanted { plain(arg.clone()) } else { arg.clone() });
    }
    Ok(changed.then_some(plain_args))
}

/// `CASE x WHEN 0.0` with one zero: it compares as the engine's sorts do, by the sign.
fn case_of_zeros(mut case: Case, schema: &DFSchema) -> DfResult<Expr> {
    let Some(base) = case.expr.take() else { return Ok(Expr::Case(case)) };
    let is_float = |expr: &Expr| expr.get_type(schema).is_ok_and(|found| found.is_floating());
    let one = |expr: Expr| if is_float(&expr) { plain(expr) } else { expr };
    if is_float(&base) || case.when_then_expr.iter().any(|(when, _)| is_float(when)) {
        for (when, _) in &mut case.when_then_expr {
            **when = one(std::mem::take(&mut **when));
        }
        case.expr = Some(Box::new(one(*base)));
    } else {
        case.expr = Some(base);
    }
    Ok(Expr::Case(case))
}

/// Refuses values that are not text: the engine would use the text that it prints for a list.
fn check_texts(name: &str, args: &[Expr], schema: &DFSchema) -> DfResult<()> {
    for arg in args {
        let found = match arg {
            Expr::Literal(value, _) => value.data_type(),
            _ => arg.get_type(schema)?,
        };
        if found.is_nested() {
            return Err(Error::query(format!(
                "{name}() takes texts, and {arg} is of the type {found}; take an element or a field of it, or write it as text: \
                 array_to_string(…, ',')"
            ))
            .into());
        }
    }
    Ok(())
}

/// A call in a statement.
pub(in crate::query) fn call(name: &str, args: Vec<ast::Expr>) -> ast::Expr {
    let args =
        args.into_iter().map(|arg| ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(arg)));
    let list = ast::FunctionArgumentList {
        duplicate_treatment: None,
        args: args.collect(),
        clauses: Vec::new(),
    };
    ast::Expr::Function(ast::Function {
        name: ast::ObjectName::from(vec![ast::Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::List(list),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// Computes an array of a value, and of the result a value of the same form.
fn like_array(
    value: &ColumnarValue,
    compute: impl Fn(&ArrayRef) -> DfResult<ArrayRef>,
) -> DfResult<ColumnarValue> {
    Ok(match value {
        ColumnarValue::Array(array) => ColumnarValue::Array(compute(array)?),
        ColumnarValue::Scalar(_) => {
            let found = compute(&value.to_array(1)?)?;
            ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?)
        }
    })
}
