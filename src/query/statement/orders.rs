//! `ORDER BY ALL`, as places of all columns.
//!
//! `ORDER BY row_number() OVER (…)`: an order by a window function that is no column.
//!
//! The planner computes window functions of columns alone. So the keys become columns of a
//! relation, and are left out above it:
//!
//! ```text
//! SELECT a FROM t ORDER BY rank() OVER (ORDER BY b), 1 LIMIT 3
//! SELECT * EXCLUDE (key0) FROM (SELECT a, rank() OVER (ORDER BY b) AS key0 FROM t) AS ordered ORDER BY key0, 1 LIMIT 3
//! ```

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Expr, Function, Ident, OrderByExpr, OrderByKind, Query, Select, SelectItem,
    SetExpr, TableAlias, TableFactor, Value, Visit, Visitor, WildcardAdditionalOptions,
    visit_expressions,
};

use super::equal::{number, query_of, select_from};
use super::joins::folded;
use super::{MARK, names};
use crate::Result;

/// Makes places of columns of `ORDER BY ALL`, which the parser takes for the name of a column.
/// Above `*` it is refused later.
///
/// # Errors
/// None.
pub(super) fn by_all(query: &mut Query) -> Result<()> {
    let Query { body, order_by: Some(order), .. } = query else { return Ok(()) };
    let OrderByKind::Expressions(keys) = &order.kind else { return Ok(()) };
    let [key] = &keys[..] else { return Ok(()) };
    let is_all = matches!(&key.expr, Expr::Identifier(name)
        if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all"));
    if !is_all {
        return Ok(());
    }
    order.kind = match columns(body) {
        Some(columns) => OrderByKind::Expressions(
            (1..=columns).map(|place| OrderByExpr { expr: number(place), ..key.clone() }).collect(),
        ),
        None => OrderByKind::All(key.options),
    };
    Ok(())
}

/// The number of columns of a body; None where `*` is among them.
fn columns(body: &SetExpr) -> Option<usize> {
    match body {
        SetExpr::Select(select) => {
            let is_one = |item: &SelectItem| {
                matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. })
            };
            select.projection.iter().all(is_one).then_some(select.projection.len())
        }
        SetExpr::Query(query) => columns(&query.body),
        SetExpr::SetOperation { left, .. } => columns(left),
        SetExpr::Values(values) => values.rows.first().map(Vec::len),
        _ => None,
    }
}

/// Makes columns of the keys of an order by window functions.
///
/// # Errors
/// None.
pub(super) fn by_windows(query: &mut Query) -> Result<()> {
    let Query { body, order_by, .. } = query;
    let SetExpr::Select(select) = &mut **body else { return Ok(()) };
    let Some(OrderByKind::Expressions(keys)) = order_by.as_mut().map(|order| &mut order.kind)
    else {
        return Ok(());
    };
    // The keys of DISTINCT are its columns, and the planner finds a window function among them.
    let hidden = |expr: &Expr| windows(expr).into_iter().any(|window| !has(select, &window));
    if select.distinct.is_some()
        || !keys.iter().any(|key| hidden(&key.expr))
        || keys.iter().any(|key| !is_column(&key.expr, select) && names_alias(&key.expr, select))
    {
        return Ok(());
    }
    let mut excluded = Vec::new();
    for key in keys {
        if is_column(&key.expr, select) {
            continue;
        }
        let name = Ident::with_quote('"', format!("{MARK}key{}", excluded.len()));
        let expr = std::mem::replace(&mut key.expr, Expr::Identifier(name.clone()));
        select.projection.push(SelectItem::ExprWithAlias { expr, alias: name.clone() });
        excluded.push(name);
    }
    let inner = std::mem::replace(&mut **body, SetExpr::Values(names::no_values()));
    let name = Ident::with_quote('"', format!("{MARK}ordered"));
    let mut outer = select_from(TableFactor::Derived {
        lateral: false,
        subquery: Box::new(query_of(inner)),
        alias: Some(TableAlias { explicit: true, name, columns: Vec::new() }),
        sample: None,
    });
    if let SetExpr::Select(select) = &mut outer {
        select.projection = vec![SelectItem::Wildcard(WildcardAdditionalOptions {
            opt_exclude: Some(ExcludeSelectItem::Multiple(excluded)),
            ..WildcardAdditionalOptions::default()
        })];
    }
    **body = outer;
    Ok(())
}

/// Returns true if a key names a column of the SELECT: by its place, or by the name that AS gave to
/// it.
fn is_column(key: &Expr, select: &Select) -> bool {
    match key {
        Expr::Value(value) => matches!(value.value, Value::Number(..)),
        Expr::Identifier(name) => select.projection.iter().any(|item| {
            matches!(item, SelectItem::ExprWithAlias { alias, .. } if folded(alias) == folded(name))
        }),
        _ => false,
    }
}

/// Returns true if a key uses a name that AS gave to a column. A table's column may have that name,
/// too, and engines differ in the column they choose.
fn names_alias(key: &Expr, select: &Select) -> bool {
    let found = visit_expressions(key, |expr| {
        match matches!(expr, Expr::Identifier(_)) && is_column(expr, select) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    found.is_break()
}

/// Returns true if a window function is in a column.
fn has(select: &Select, window: &Expr) -> bool {
    select.projection.iter().any(|item| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
            windows(expr).contains(window)
        }
        _ => false,
    })
}

/// The window functions of an expression, without those in its subqueries.
fn windows(expr: &Expr) -> Vec<Expr> {
    calls_outside_subqueries(expr, |function| function.over.is_some())
}

/// The calls of a kind of function in an expression, without those in its subqueries.
pub(super) fn calls_outside_subqueries(
    expr: &Expr,
    is_wanted: impl Fn(&Function) -> bool,
) -> Vec<Expr> {
    struct Finder<F> {
        is_wanted: F,
        queries: usize,
        found: Vec<Expr>,
    }
    impl<F: Fn(&Function) -> bool> Visitor for Finder<F> {
        type Break = ();

        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.queries += 1;
            ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.queries -= 1;
            ControlFlow::Continue(())
        }

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Function(function) = expr
                && self.queries == 0
                && (self.is_wanted)(function)
            {
                self.found.push(expr.clone());
            }
            ControlFlow::Continue(())
        }
    }
    let mut finder = Finder { is_wanted, queries: 0, found: Vec::new() };
    let _ = expr.visit(&mut finder);
    finder.found
}
