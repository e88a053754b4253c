//! Clauses of other dialects as equal ones that the planner knows.

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Fetch, GroupByExpr, JoinOperator, LimitClause, OrderBy, OrderByExpr,
    OrderByKind, Query, Select, SelectFlavor, SelectItem, SetExpr, SetOperator, TableFactor,
    TableWithJoins, Value, WildcardAdditionalOptions,
};

use super::{each_select, groups, refused};
use crate::Result;

/// Rewrites clauses of other dialects in a query, except in its subqueries.
///
/// # Errors
/// `Query` for a clause without an equal one.
pub(super) fn rewrite(query: &mut Query) -> Result<()> {
    fetch_as_limit(query)?;
    minus_as_except(&mut query.body);
    each_select(&mut query.body, &mut |select| {
        all_columns(select);
        select.from.iter_mut().for_each(plain_joins);
        prewhere_as_where(select);
        groups::rewrite(select)
    })?;
    order_by_all(query);
    Ok(())
}

/// Rewrites expressions of other dialects.
pub(super) fn rewrite_expr(expr: &mut Expr) {
    // EXISTS (SELECT FROM t): no column is looked at.
    if let Expr::Exists { subquery, .. } = expr
        && let SetExpr::Select(select) = &mut *subquery.body
        && select.projection.is_empty()
        && select.flavor == SelectFlavor::Standard
    {
        select.projection.push(SelectItem::UnnamedExpr(number(1)));
    }
}

/// `FETCH FIRST n ROWS ONLY` as `LIMIT n`.
fn fetch_as_limit(query: &mut Query) -> Result<()> {
    let Some(Fetch { with_ties, percent, quantity }) = query.fetch.take() else { return Ok(()) };
    if with_ties {
        return Err(refused("FETCH … WITH TIES", "write QUALIFY rank() OVER (ORDER BY …) <= n"));
    }
    if percent {
        return Err(refused(
            "FETCH … PERCENT",
            "write QUALIFY percent_rank() OVER (ORDER BY …) < 0.1, or FETCH with a number of rows",
        ));
    }
    let rows = Some(quantity.unwrap_or_else(|| number(1)));
    query.limit_clause = Some(match query.limit_clause.take() {
        None => LimitClause::LimitOffset { limit: rows, offset: None, limit_by: Vec::new() },
        Some(LimitClause::LimitOffset { limit: None, offset, limit_by }) => {
            LimitClause::LimitOffset { limit: rows, offset, limit_by }
        }
        Some(_) => return Err(refused("LIMIT beside FETCH", "write one of them")),
    });
    Ok(())
}

/// `MINUS`, as Spark and Oracle have it, as `EXCEPT`.
fn minus_as_except(body: &mut SetExpr) {
    if let SetExpr::SetOperation { op, left, right, .. } = body {
        if *op == SetOperator::Minus {
            *op = SetOperator::Except;
        }
        minus_as_except(left);
        minus_as_except(right);
    }
}

/// `FROM t` as `SELECT * FROM t`.
fn all_columns(select: &mut Select) {
    if select.flavor == SelectFlavor::FromFirstNoSelect {
        select.projection = vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())];
        select.flavor = SelectFlavor::FromFirst;
    }
}

/// `SEMI JOIN` as `LEFT SEMI JOIN`, `ANTI JOIN` likewise.
pub(super) fn plain_joins(tables: &mut TableWithJoins) {
    for join in &mut tables.joins {
        let constraint = match &mut join.join_operator {
            JoinOperator::Semi(constraint) | JoinOperator::Anti(constraint) => constraint.clone(),
            _ => continue,
        };
        join.join_operator = match join.join_operator {
            JoinOperator::Semi(_) => JoinOperator::LeftSemi(constraint),
            _ => JoinOperator::LeftAnti(constraint),
        };
    }
}

/// `PREWHERE a WHERE b`, as ClickHouse has it, as `WHERE a AND b`.
fn prewhere_as_where(select: &mut Select) {
    let Some(first) = select.prewhere.take() else { return };
    select.selection = Some(match select.selection.take() {
        None => first,
        Some(second) => Expr::BinaryOp {
            left: Box::new(Expr::Nested(Box::new(first))),
            op: BinaryOperator::And,
            right: Box::new(Expr::Nested(Box::new(second))),
        },
    });
}

/// `ORDER BY ALL` as the numbers of all columns, where their number is known. The dialect used here
/// takes ALL for a name.
fn order_by_all(query: &mut Query) {
    let Some(OrderBy { kind: OrderByKind::Expressions(exprs), .. }) = &mut query.order_by else {
        return;
    };
    let [OrderByExpr { expr: Expr::Identifier(name), options, with_fill: None }] = &exprs[..]
    else {
        return;
    };
    let is_all = name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all");
    let Some(columns) = is_all.then(|| columns(&query.body)).flatten() else { return };
    let options = *options;
    *exprs = (1..=columns)
        .map(|place| OrderByExpr { expr: number(place), options, with_fill: None })
        .collect();
}

/// How many columns a body has, where none of them is `*`.
fn columns(body: &SetExpr) -> Option<usize> {
    match body {
        SetExpr::Select(select) => {
            let named = |item: &SelectItem| {
                matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. })
            };
            select.projection.iter().all(named).then_some(select.projection.len())
        }
        SetExpr::SetOperation { left, .. } => columns(left),
        SetExpr::Query(query) => columns(&query.body),
        SetExpr::Values(values) => values.rows.first().map(Vec::len),
        _ => None,
    }
}

/// A number as an expression.
pub(super) fn number(value: usize) -> Expr {
    Expr::Value(Value::Number(value.to_string(), false).into())
}

/// `SELECT * FROM` a relation.
pub(in crate::query) fn select_from(relation: TableFactor) -> SetExpr {
    SetExpr::Select(Box::new(Select {
        select_token: AttachedToken::empty(),
        optimizer_hint: None,
        distinct: None,
        select_modifiers: None,
        top: None,
        top_before_distinct: false,
        projection: vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())],
        exclude: None,
        into: None,
        from: vec![TableWithJoins { relation, joins: Vec::new() }],
        lateral_views: Vec::new(),
        prewhere: None,
        selection: None,
        connect_by: Vec::new(),
        group_by: GroupByExpr::Expressions(Vec::new(), Vec::new()),
        cluster_by: Vec::new(),
        distribute_by: Vec::new(),
        sort_by: Vec::new(),
        having: None,
        named_window: Vec::new(),
        qualify: None,
        window_before_qualify: false,
        value_table_mode: None,
        flavor: SelectFlavor::Standard,
    }))
}

/// A body as a query without other clauses.
pub(in crate::query) fn query_of(body: SetExpr) -> Query {
    Query {
        with: None,
        body: Box::new(body),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    }
}
