//! Calls of functions and other expressions: clauses that the planner ignores in them, refused by
//! name.

use std::collections::HashSet;
use std::sync::LazyLock;

use datafusion::functions_aggregate::all_default_aggregate_functions;
use datafusion::functions_window::all_default_window_functions;
use datafusion::sql::sqlparser::ast::{
    DataType, ExactNumberInfo, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArgumentList, FunctionArguments, NullTreatment, ObjectName,
    ObjectNamePart, OrderByExpr, Value, WindowSpec, WindowType,
};

use super::{clauses, refused};
use crate::{Error, Result};

/// Names of the functions that make one value of many rows.
static AGGREGATES: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let functions = all_default_aggregate_functions();
    let names = functions.iter().flat_map(|function| {
        function.aliases().iter().cloned().chain([function.name().to_owned()])
    });
    names.collect()
});

/// Names of the functions that need OVER.
static WINDOWS: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let functions = all_default_window_functions();
    let names = functions.iter().flat_map(|function| {
        function.aliases().iter().cloned().chain([function.name().to_owned()])
    });
    names.collect()
});

/// Functions that give the value of one row of a window, and may pass over NULL.
const OF_ROWS: [&str; 5] = ["lag", "lead", "first_value", "last_value", "nth_value"];

/// A function's name as the planner reads it; None for one of several parts.
fn name_of(name: &ObjectName) -> Option<String> {
    match &name.0[..] {
        [ObjectNamePart::Identifier(ident)] => Some(match ident.quote_style {
            Some(_) => ident.value.clone(),
            None => ident.value.to_lowercase(),
        }),
        _ => None,
    }
}

/// Returns true if a call makes one value of many rows.
pub(super) fn is_aggregate(function: &Function) -> bool {
    function.over.is_none()
        && name_of(&function.name).is_some_and(|name| AGGREGATES.contains(&name))
}

/// Refuses clauses of an expression that the planner would ignore, except those below it.
///
/// # Errors
/// `Query` naming the clause, and an alternative.
pub(super) fn check(expr: &Expr) -> Result<()> {
    match expr {
        Expr::Function(function) => check_call(function),
        Expr::Cast { kind: _, expr: _, data_type, array: _, format } => {
            if let Some(format) = format {
                return Err(refused(
                    &format!("CAST … FORMAT {format}"),
                    "write to_timestamp(text, format)",
                ));
            }
            check_type(data_type)
        }
        Expr::Collate { expr: _, collation } => Err(refused(
            &format!("COLLATE {collation}"),
            "texts are compared by their bytes; write lower(…) to compare without case",
        )),
        Expr::Trim { expr: _, trim_where: _, trim_what: _, trim_characters: Some(characters) }
            if characters.len() > 1 =>
        {
            Err(refused("trim of several texts", "write all characters in one text"))
        }
        Expr::OuterJoin(_) => Err(refused("(+)", "write LEFT JOIN … ON")),
        Expr::Prior(_) => Err(refused("PRIOR", "write WITH RECURSIVE")),
        Expr::Lambda(_) => Err(refused("a function written in SQL (x -> …)", "unnest the list")),
        Expr::Convert { .. } => Err(refused("CONVERT", "write CAST(… AS …)")),
        Expr::RLike { .. } => Err(refused("RLIKE and REGEXP", "write text ~ 'pattern'")),
        Expr::InUnnest { .. } => Err(refused("IN UNNEST (…)", "write array_has(list, value)")),
        Expr::MatchAgainst { .. } => Err(refused("MATCH … AGAINST", "write LIKE or ~")),
        Expr::MemberOf(_) => Err(refused("MEMBER OF", "write array_has(list, value)")),
        Expr::IsNormalized { .. } => Err(refused("IS NORMALIZED", "compare the texts")),
        Expr::Prefixed { prefix, value: _ } => {
            Err(refused(&format!("a text with the prefix {prefix}"), "write it without"))
        }
        // The planner takes these whole, or refuses what it does not know.
        Expr::Identifier(_)
        | Expr::CompoundIdentifier(_)
        | Expr::CompoundFieldAccess { root: _, access_chain: _ }
        | Expr::JsonAccess { value: _, path: _ }
        | Expr::IsFalse(_)
        | Expr::IsNotFalse(_)
        | Expr::IsTrue(_)
        | Expr::IsNotTrue(_)
        | Expr::IsNull(_)
        | Expr::IsNotNull(_)
        | Expr::IsUnknown(_)
        | Expr::IsNotUnknown(_)
        | Expr::IsDistinctFrom(_, _)
        | Expr::IsNotDistinctFrom(_, _)
        | Expr::InList { expr: _, list: _, negated: _ }
        | Expr::InSubquery { expr: _, subquery: _, negated: _ }
        | Expr::Between { expr: _, negated: _, low: _, high: _ }
        | Expr::BinaryOp { left: _, op: _, right: _ }
        | Expr::Like { negated: _, any: _, expr: _, pattern: _, escape_char: _ }
        | Expr::ILike { negated: _, any: _, expr: _, pattern: _, escape_char: _ }
        | Expr::SimilarTo { negated: _, expr: _, pattern: _, escape_char: _ }
        | Expr::AnyOp { left: _, compare_op: _, right: _, is_some: _ }
        | Expr::AllOp { left: _, compare_op: _, right: _ }
        | Expr::UnaryOp { op: _, expr: _ }
        | Expr::AtTimeZone { timestamp: _, time_zone: _ }
        | Expr::Extract { field: _, syntax: _, expr: _ }
        | Expr::Ceil { expr: _, field: _ }
        | Expr::Floor { expr: _, field: _ }
        | Expr::Position { expr: _, r#in: _ }
        | Expr::Substring {
            expr: _,
            substring_from: _,
            substring_for: _,
            special: _,
            shorthand: _,
        }
        | Expr::Trim { expr: _, trim_where: _, trim_what: _, trim_characters: _ }
        | Expr::Overlay { expr: _, overlay_what: _, overlay_from: _, overlay_for: _ }
        | Expr::Nested(_)
        | Expr::Value(_)
        | Expr::TypedString(_)
        | Expr::Case { case_token: _, end_token: _, operand: _, conditions: _, else_result: _ }
        | Expr::Exists { subquery: _, negated: _ }
        | Expr::Subquery(_)
        | Expr::GroupingSets(_)
        | Expr::Cube(_)
        | Expr::Rollup(_)
        | Expr::Tuple(_)
        | Expr::Struct { values: _, fields: _ }
        | Expr::Named { expr: _, name: _ }
        | Expr::Dictionary(_)
        | Expr::Map(_)
        | Expr::Array(_)
        | Expr::Interval(_)
        | Expr::Wildcard(_)
        | Expr::QualifiedWildcard(_, _) => Ok(()),
    }
}

/// Refuses a type whose precision the planner passes over, so that digits would be lost.
fn check_type(data_type: &DataType) -> Result<()> {
    match data_type {
        DataType::Float(ExactNumberInfo::Precision(digits)) if *digits > 24 => {
            Err(refused(&format!("FLOAT({digits})"), "write DOUBLE"))
        }
        _ => Ok(()),
    }
}

fn check_call(function: &Function) -> Result<()> {
    let Function {
        name,
        uses_odbc_syntax: _,
        parameters,
        args,
        filter,
        null_treatment,
        over,
        within_group,
    } = function;
    if !matches!(parameters, FunctionArguments::None) {
        return Err(refused(
            &format!("{name}(…)(…)"),
            "write all arguments in one pair of brackets",
        ));
    }
    let empty = FunctionArgumentList { duplicate_treatment: None, args: vec![], clauses: vec![] };
    let list = match args {
        FunctionArguments::None => &empty,
        FunctionArguments::List(list) => list,
        FunctionArguments::Subquery(_) => {
            return Err(refused(
                &format!("{name}(SELECT …)"),
                "write (SELECT array_agg(…) FROM …), or the subquery in brackets of its own",
            ));
        }
    };
    let FunctionArgumentList { duplicate_treatment, args, clauses } = list;
    for arg in args {
        let (FunctionArg::Unnamed(arg)
        | FunctionArg::Named { name: _, arg, operator: _ }
        | FunctionArg::ExprNamed { name: _, arg, operator: _ }) = arg;
        match arg {
            FunctionArgExpr::Expr(_) => {}
            FunctionArgExpr::Wildcard if name_of(name).is_none_or(|name| name == "count") => {}
            FunctionArgExpr::Wildcard => {
                return Err(refused(
                    &format!("{name}(*)"),
                    "count(*) alone takes a star; name the columns",
                ));
            }
            FunctionArgExpr::QualifiedWildcard(table) => {
                return Err(refused(
                    &format!("{name}({table}.*)"),
                    "the engine counts rows without a match, too; name a column that is never NULL",
                ));
            }
        }
    }
    let mut order: Option<&[OrderByExpr]> = None;
    let mut treatment = *null_treatment;
    for clause in clauses {
        match clause {
            FunctionArgumentClause::OrderBy(exprs) => order = Some(exprs.as_slice()),
            FunctionArgumentClause::IgnoreOrRespectNulls(of_clause) => treatment = Some(*of_clause),
            // The planner refuses these.
            FunctionArgumentClause::Limit(_)
            | FunctionArgumentClause::OnOverflow(_)
            | FunctionArgumentClause::Having(_)
            | FunctionArgumentClause::Separator(_)
            | FunctionArgumentClause::JsonNullClause(_)
            | FunctionArgumentClause::JsonReturningClause(_) => {}
        }
    }
    let called = name_of(name);
    let is_aggregate = called.as_ref().is_some_and(|name| AGGREGATES.contains(name));
    let is_window = called.as_ref().is_some_and(|name| WINDOWS.contains(name));
    if !is_aggregate && !is_window {
        let clause = match () {
            () if over.is_some() => "OVER (…)",
            () if filter.is_some() => "FILTER (…)",
            () if !within_group.is_empty() => "WITHIN GROUP (…)",
            () if duplicate_treatment.is_some() => "DISTINCT or ALL",
            () if order.is_some() => "ORDER BY",
            () if treatment.is_some() => "IGNORE or RESPECT NULLS",
            () => return Ok(()),
        };
        return Err(Error::query(format!(
            "no aggregate and no window function is called {name}(), and {clause} has no meaning for other functions"
        )));
    }
    if over.is_none() && !is_aggregate {
        return Err(Error::query(format!(
            "{name}() needs a window: write {name}(…) OVER (ORDER BY …)"
        )));
    }
    if over.is_some() {
        let of_rows = called.as_deref().is_some_and(|name| OF_ROWS.contains(&name));
        if treatment == Some(NullTreatment::IgnoreNulls) && !of_rows {
            return Err(refused(
                &format!("{name}() IGNORE NULLS OVER (…)"),
                "write FILTER (WHERE … IS NOT NULL), or the value of a row: lag, lead, first_value, last_value, nth_value",
            ));
        }
        if is_window && duplicate_treatment.is_some() {
            return Err(refused(&format!("DISTINCT or ALL in {name}() OVER (…)"), "leave it out"));
        }
    }
    order.into_iter().flatten().chain(within_group).try_for_each(clauses::check_order_expr)?;
    if let Some(place) = order.into_iter().flatten().find_map(place_of) {
        return Err(refused(
            &format!("{name}(… ORDER BY {place})"),
            "in an aggregate a number is a constant, which orders nothing; write the column's name",
        ));
    }
    match over {
        None => Ok(()),
        Some(WindowType::NamedWindow(window)) => Err(Error::query(format!(
            "the window {window} is not defined; write WINDOW {window} AS (…)"
        ))),
        Some(WindowType::WindowSpec(spec)) => {
            let WindowSpec { window_name, partition_by: _, order_by, window_frame: _ } = spec;
            if let Some(window) = window_name {
                return Err(Error::query(format!(
                    "the window {window} is not defined; write WINDOW {window} AS (…)"
                )));
            }
            if !within_group.is_empty() {
                return Err(refused(
                    &format!("{name}() WITHIN GROUP (…) OVER (…)"),
                    "compute it with GROUP BY in a subquery, and join that by the key",
                ));
            }
            order_by.iter().try_for_each(clauses::check_order_expr)
        }
    }
}

/// The number that an order is written as, if it is one.
fn place_of(order: &OrderByExpr) -> Option<&str> {
    match &order.expr {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => Some(number.as_str()),
            _ => None,
        },
        _ => None,
    }
}
