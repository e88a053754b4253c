//! Clauses of a query and of a SELECT that the planner passes over, refused by name.

use datafusion::sql::sqlparser::ast::{
    Cte, Distinct, ExprWithAliasAndOrderBy, FormatClause, GroupByExpr, IlikeSelectItem, Join,
    JoinConstraint, LimitClause, LockClause, NamedWindowDefinition, Offset, OrderBy, OrderByExpr,
    OrderByKind, OrderByOptions, PipeOperator, Query, Select, SelectFlavor, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, SetOperator, SetQuantifier, Values,
    WildcardAdditionalOptions, With,
};

use super::{joins, refused, relations};
use crate::{Error, Result};

/// Refuses clauses that the planner would ignore in a query, except in its tables and expressions.
///
/// # Errors
/// `Query` naming the clause, and an alternative.
pub(super) fn check(query: &Query) -> Result<()> {
    let Query {
        with,
        body,
        order_by,
        limit_clause,
        fetch,
        locks,
        for_clause,
        settings,
        format_clause,
        pipe_operators,
    } = query;
    with.iter().try_for_each(check_with)?;
    check_body(body)?;
    order_by.iter().try_for_each(check_order)?;
    limit_clause.iter().try_for_each(check_limit)?;
    if fetch.is_some() {
        return Err(refused("FETCH", "write LIMIT"));
    }
    if let Some(LockClause { lock_type, of: _, nonblock: _ }) = locks.first() {
        let what = format!("FOR {lock_type}");
        return Err(refused(&what, "a query only reads, and locks no rows; leave it out"));
    }
    if let Some(clause) = for_clause {
        return Err(refused(&clause.to_string(), "rows come as tensors or as Arrow; leave it out"));
    }
    if settings.is_some() {
        return Err(refused(
            "SETTINGS",
            "options are arguments of tensorquery's functions; leave it out",
        ));
    }
    if let Some(FormatClause::Identifier(_) | FormatClause::Null) = format_clause {
        return Err(refused("FORMAT", "rows come as tensors or as Arrow; leave it out"));
    }
    pipe_operators.iter().try_for_each(check_pipe)
}

fn check_with(with: &With) -> Result<()> {
    let With { with_token: _, recursive: _, cte_tables } = with;
    for cte in cte_tables {
        // Whether a part of WITH is materialised changes no row.
        let Cte { alias, query: _, from, materialized: _, closing_paren_token: _ } = cte;
        relations::check_alias(Some(alias))?;
        if let Some(from) = from {
            return Err(refused(&format!("WITH … AS (…) FROM {from}"), "write one FROM clause"));
        }
    }
    Ok(())
}

fn check_body(body: &SetExpr) -> Result<()> {
    match body {
        SetExpr::Select(select) => check_select(select),
        // A query of its own.
        SetExpr::Query(_) => Ok(()),
        SetExpr::SetOperation { op, set_quantifier, left, right } => {
            use SetQuantifier::{All, AllByName, ByName, Distinct, DistinctByName, None};
            match (op, set_quantifier) {
                (
                    SetOperator::Union,
                    All | Distinct | ByName | AllByName | DistinctByName | None,
                )
                | (SetOperator::Except | SetOperator::Intersect, Distinct | None) => {}
                (op, quantifier) => {
                    let what = format!("{op} {quantifier}");
                    return Err(refused(&what, "list the columns in the same order on both sides"));
                }
            }
            check_body(left)?;
            check_body(right)
        }
        SetExpr::Values(Values { explicit_row: _, value_keyword, rows: _ }) => {
            match value_keyword {
                true => Err(refused("VALUE", "write VALUES")),
                false => Ok(()),
            }
        }
        SetExpr::Table(table) => Err(refused(&table.to_string(), "write SELECT * FROM …")),
        // Those are refused as what writes.
        SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => Ok(()),
    }
}

fn check_select(select: &Select) -> Result<()> {
    let Select {
        select_token: _,
        // What a comment says to another engine's optimiser changes no row.
        optimizer_hint: _,
        distinct,
        select_modifiers,
        top,
        top_before_distinct: _,
        projection,
        exclude,
        into: _,
        from,
        lateral_views,
        prewhere,
        selection: _,
        connect_by,
        group_by,
        cluster_by,
        distribute_by,
        sort_by,
        having: _,
        named_window,
        qualify: _,
        window_before_qualify: _,
        value_table_mode,
        flavor,
    } = select;
    match distinct {
        None | Some(Distinct::All | Distinct::Distinct | Distinct::On(_)) => {}
    }
    if let Some(modifiers) = select_modifiers {
        let what = format!("SELECT{modifiers}");
        return Err(refused(&what, "it tells another engine how to run; leave it out"));
    }
    if top.is_some() {
        return Err(refused("SELECT TOP", "write ORDER BY … LIMIT n"));
    }
    if projection.is_empty() {
        return Err(refused("SELECT without columns", "name the columns, or write *"));
    }
    projection.iter().try_for_each(check_item)?;
    if exclude.is_some() {
        return Err(refused("SELECT … EXCLUDE behind the columns", "write SELECT * EXCLUDE (…)"));
    }
    from.iter().try_for_each(relations::check_joins)?;
    if let Some(view) = lateral_views.first() {
        return Err(refused(
            "LATERAL VIEW",
            &format!(
                "write SELECT …, unnest(…) AS column FROM … in place of {}",
                view.lateral_view
            ),
        ));
    }
    if prewhere.is_some() {
        return Err(refused("PREWHERE", "write WHERE"));
    }
    if !connect_by.is_empty() {
        return Err(refused("START WITH and CONNECT BY", "write WITH RECURSIVE"));
    }
    match group_by {
        GroupByExpr::All(modifiers) | GroupByExpr::Expressions(_, modifiers) => {
            if let Some(modifier) = modifiers.first() {
                let what = format!("GROUP BY … {modifier}");
                return Err(refused(
                    &what,
                    "write GROUP BY ROLLUP (…), CUBE (…) or GROUPING SETS ((…), …)",
                ));
            }
        }
    }
    for (clause, exprs) in [("CLUSTER BY", cluster_by), ("DISTRIBUTE BY", distribute_by)] {
        if !exprs.is_empty() {
            return Err(refused(
                clause,
                "rows are dealt to ranks and workers by the loader; leave it out",
            ));
        }
    }
    if !sort_by.is_empty() {
        return Err(refused("SORT BY", "write ORDER BY"));
    }
    if let Some(NamedWindowDefinition(name, _)) = named_window.first() {
        return Err(refused(&format!("WINDOW {name}"), "write the window behind OVER"));
    }
    if let Some(mode) = value_table_mode {
        return Err(refused(&format!("SELECT {mode}"), "name the columns"));
    }
    match flavor {
        SelectFlavor::Standard | SelectFlavor::FromFirst => Ok(()),
        SelectFlavor::FromFirstNoSelect => {
            Err(refused("FROM without SELECT", "write SELECT * FROM …"))
        }
    }
}

fn check_item(item: &SelectItem) -> Result<()> {
    match item {
        SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { expr: _, alias: _ } => Ok(()),
        SelectItem::Wildcard(options) => check_wildcard(options),
        SelectItem::QualifiedWildcard(kind, options) => match kind {
            SelectItemQualifiedWildcardKind::ObjectName(_) => check_wildcard(options),
            SelectItemQualifiedWildcardKind::Expr(expr) => {
                Err(refused(&format!("{expr}.*"), "name the fields that you need"))
            }
        },
    }
}

fn check_wildcard(options: &WildcardAdditionalOptions) -> Result<()> {
    let WildcardAdditionalOptions {
        wildcard_token: _,
        opt_ilike,
        opt_exclude: _,
        opt_except: _,
        opt_replace: _,
        opt_rename,
    } = options;
    if let Some(IlikeSelectItem { pattern }) = opt_ilike {
        return Err(refused(
            &format!("* ILIKE '{pattern}'"),
            "name the columns, or write * EXCLUDE (…)",
        ));
    }
    if let Some(rename) = opt_rename {
        return Err(refused(
            &format!("* {rename}"),
            "name the columns, with AS where their names change",
        ));
    }
    Ok(())
}

fn check_order(order: &OrderBy) -> Result<()> {
    let OrderBy { kind, interpolate } = order;
    if interpolate.is_some() {
        return Err(refused(
            "ORDER BY … INTERPOLATE",
            "rows come from the tables only; leave it out",
        ));
    }
    match kind {
        OrderByKind::All(_) => Err(refused("ORDER BY ALL above *", "name the columns")),
        OrderByKind::Expressions(exprs) => exprs.iter().try_for_each(check_order_expr),
    }
}

/// Refuses clauses of an order that the planner ignores.
pub(super) fn check_order_expr(order: &OrderByExpr) -> Result<()> {
    let OrderByExpr { expr: _, options, with_fill } = order;
    let OrderByOptions { asc: _, nulls_first: _ } = options;
    match with_fill {
        None => Ok(()),
        Some(_) => {
            Err(refused("ORDER BY … WITH FILL", "rows come from the tables only; leave it out"))
        }
    }
}

fn check_limit(limit: &LimitClause) -> Result<()> {
    match limit {
        LimitClause::LimitOffset {
            limit: _,
            offset: None | Some(Offset { value: _, rows: _ }),
            limit_by,
        } => match limit_by.is_empty() {
            true => Ok(()),
            false => {
                Err(refused("LIMIT … BY", "write QUALIFY row_number() OVER (PARTITION BY …) <= n"))
            }
        },
        LimitClause::OffsetCommaLimit { offset: _, limit: _ } => Ok(()),
    }
}

fn check_pipe(operator: &PipeOperator) -> Result<()> {
    match operator {
        PipeOperator::Limit { expr: _, offset: _ } | PipeOperator::Where { expr: _ } => Ok(()),
        PipeOperator::OrderBy { exprs } => exprs.iter().try_for_each(check_order_expr),
        PipeOperator::Select { exprs } | PipeOperator::Extend { exprs } => {
            exprs.iter().try_for_each(check_item)
        }
        PipeOperator::As { alias: _ } => Ok(()),
        PipeOperator::Aggregate { full_table_exprs, group_by_expr } => {
            let mut keys = full_table_exprs.iter().chain(group_by_expr);
            let ordered = |key: &&ExprWithAliasAndOrderBy| {
                let ExprWithAliasAndOrderBy { expr: _, order_by } = key;
                let OrderByOptions { asc, nulls_first } = order_by;
                asc.is_some() || nulls_first.is_some()
            };
            match keys.find(ordered) {
                None => Ok(()),
                Some(_) => {
                    Err(refused("|> AGGREGATE … GROUP BY … ASC", "write |> ORDER BY behind it"))
                }
            }
        }
        PipeOperator::Union { set_quantifier: _, queries: _ } => Ok(()),
        PipeOperator::Intersect { set_quantifier, queries: _ }
        | PipeOperator::Except { set_quantifier, queries: _ } => match set_quantifier {
            SetQuantifier::Distinct | SetQuantifier::None => Ok(()),
            other => {
                Err(refused(&format!("|> INTERSECT or EXCEPT {other}"), "write it without |>"))
            }
        },
        PipeOperator::Join(join) => {
            let Join { relation: _, global: _, join_operator } = join;
            // Made relations of elsewhere.
            match joins::constraint(join_operator) {
                Some(JoinConstraint::Using(_) | JoinConstraint::Natural) => {
                    Err(refused("|> JOIN with USING, or NATURAL", "write ON, or a SELECT"))
                }
                _ => relations::check_join(join),
            }
        }
        PipeOperator::Set { .. }
        | PipeOperator::Drop { .. }
        | PipeOperator::TableSample { .. }
        | PipeOperator::Rename { .. }
        | PipeOperator::Call { .. }
        | PipeOperator::Pivot { .. }
        | PipeOperator::Unpivot { .. } => {
            Err(Error::query(format!("|> {operator} is not supported; write it as a SELECT")))
        }
    }
}
