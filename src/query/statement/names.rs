//! Columns of one name: the second `id` becomes `id_1`, as in DuckDB, in derived tables, parts of
//! WITH and the result.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr as PlanExpr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Query, Select, SelectItem, SetExpr, TableAlias, TableFactor, VisitMut, VisitorMut,
};

use super::each_select;
use super::equal::{query_of, select_from};
use super::joins::folded;
use crate::Result;

/// The plan with columns of different names.
///
/// # Errors
/// An internal error where it cannot be rebuilt.
pub fn distinct_names(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let names: Vec<&String> = plan.schema().fields().iter().map(|field| field.name()).collect();
    let Some(unique) = unique(&names) else { return Ok(plan) };
    let columns = plan.schema().columns().into_iter().zip(unique);
    let columns: Vec<PlanExpr> = columns
        .map(|(column, name)| match column.name == name {
            true => PlanExpr::Column(column),
            false => PlanExpr::Column(column).alias(name),
        })
        .collect();
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}

/// Makes names unique; returns None if they are already.
pub(super) fn unique<T: AsRef<str>>(names: &[T]) -> Option<Vec<String>> {
    let all: HashSet<&str> = names.iter().map(AsRef::as_ref).collect();
    if all.len() == names.len() {
        return None;
    }
    let (mut seen, mut given) = (HashSet::new(), HashSet::new());
    let unique = names.iter().map(|name| {
        let name = name.as_ref();
        if seen.insert(name) {
            return name.to_owned();
        }
        let mut number = 1;
        loop {
            let other = format!("{name}_{number}");
            if !all.contains(other.as_str()) && given.insert(other.clone()) {
                return other;
            }
            number += 1;
        }
    });
    Some(unique.collect())
}

/// Names the columns that the planner would refuse as being the same, and the parts of WITH in
/// which columns may have one name.
///
/// # Errors
/// None.
pub(super) fn tell_apart(query: &mut Query) -> Result<()> {
    each_select(&mut query.body, &mut |select| {
        name_repeated(select);
        Ok(())
    })?;
    let Some(with) = &mut query.with else { return Ok(()) };
    let recursive = with.recursive;
    for cte in &mut with.cte_tables {
        // A recursion's columns get their names with its first rows.
        let names_columns = !cte.alias.columns.is_empty() && !recursive;
        if names_columns || may_repeat(&cte.query.body) {
            let columns = match recursive {
                true => Vec::new(),
                false => std::mem::take(&mut cte.alias.columns),
            };
            let alias = TableAlias { explicit: true, name: cte.alias.name.clone(), columns };
            let inner = std::mem::replace(&mut *cte.query, query_of(SetExpr::Values(no_values())));
            *cte.query = query_of(select_from(TableFactor::Derived {
                lateral: false,
                subquery: Box::new(inner),
                alias: Some(alias),
                sample: None,
            }));
        }
    }
    Ok(())
}

pub(super) fn no_values() -> datafusion::sql::sqlparser::ast::Values {
    datafusion::sql::sqlparser::ast::Values {
        explicit_row: false,
        value_keyword: false,
        rows: Vec::new(),
    }
}

/// Returns true if two columns of a part of WITH may have one name, each with another qualifier.
fn may_repeat(body: &SetExpr) -> bool {
    let SetExpr::Select(select) = body else { return false };
    let mut names = HashSet::new();
    let mut wildcards = 0;
    for item in &select.projection {
        match item {
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => wildcards += 1,
            item => {
                if let Some((_, name)) = output(item)
                    && !names.insert(name)
                {
                    return true;
                }
            }
        }
    }
    let one_table = match &select.from[..] {
        [from] => from.joins.is_empty() && !matches!(from.relation, TableFactor::NestedJoin { .. }),
        tables => tables.is_empty(),
    };
    wildcards > 1 || (wildcards == 1 && (!one_table || !names.is_empty()))
}

/// An item's qualifier and name; None for all columns of a table.
pub(super) fn output(item: &SelectItem) -> Option<(Option<String>, String)> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => Some((None, folded(alias))),
        SelectItem::UnnamedExpr(expr) => name_of(expr),
        SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => None,
    }
}

fn name_of(expr: &Expr) -> Option<(Option<String>, String)> {
    match expr {
        // A cast has the name of what it casts.
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => name_of(inner),
        Expr::Identifier(name) => Some((None, folded(name))),
        Expr::CompoundIdentifier(parts) => {
            let (name, table) = parts.split_last()?;
            let table: Vec<String> = table.iter().map(folded).collect();
            Some((Some(table.join(".")), folded(name)))
        }
        expr => Some((None, expr.to_string())),
    }
}

/// Names the columns that are made of subqueries, so that no two have one name; returns true where
/// it named some. The planner calls all of them `x IN (<subquery>)`.
pub(super) fn name_subqueries(select: &mut Select) -> bool {
    let named = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) => without_subqueries(expr),
        _ => None,
    };
    let named: Vec<Option<String>> = select.projection.iter().map(named).collect();
    if named.iter().flatten().count() < 2 {
        return false;
    }
    let names = select.projection.iter().zip(&named).map(|(item, name)| match name {
        Some(name) => name.clone(),
        None => output(item).map(|(_, name)| name).unwrap_or_default(),
    });
    let names: Vec<String> = names.collect();
    let unique = unique(&names).unwrap_or(names);
    for ((item, named), name) in select.projection.iter_mut().zip(named).zip(unique) {
        if let (Some(_), SelectItem::UnnamedExpr(expr)) = (named, &*item) {
            let alias = Ident::with_quote('"', name);
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
        }
    }
    true
}

/// Names the columns that are made of others by their text; returns true where it named some. The
/// planner calls `CAST(x AS INT)` x, and finds two columns of one name where ORDER BY adds x
/// itself.
pub(super) fn name_by_text(select: &mut Select) -> bool {
    let mut changed = false;
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(expr) = item
            && !matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
        {
            let alias = Ident::with_quote('"', expr.to_string());
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            changed = true;
        }
    }
    changed
}

/// The text of an expression without its subqueries' text. For one value, its column's name; None
/// if it has none.
fn without_subqueries(expr: &Expr) -> Option<String> {
    struct Emptied {
        found: bool,
    }
    impl VisitorMut for Emptied {
        type Break = ();

        fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
            self.found = true;
            *query = query_of(SetExpr::Values(no_values()));
            ControlFlow::Continue(())
        }
    }
    if let Expr::Subquery(query) = expr
        && let SetExpr::Select(select) = &*query.body
        && let [item] = &select.projection[..]
        && let Some((_, name)) = output(item)
    {
        return Some(name);
    }
    let (mut emptied, mut finder) = (expr.clone(), Emptied { found: false });
    let _ = VisitMut::visit(&mut emptied, &mut finder);
    finder.found.then(|| emptied.to_string().replace("(VALUES)", "(<subquery>)"))
}

/// Gives another name to a column whose name and qualifier another one of its SELECT has, since the
/// planner takes none such.
fn name_repeated(select: &mut Select) {
    let Select { projection, .. } = select;
    let outputs: Option<Vec<(Option<String>, String)>> = projection.iter().map(output).collect();
    let Some(outputs) = outputs else { return };
    let names: Vec<&String> = outputs.iter().map(|(_, name)| name).collect();
    let Some(unique) = unique(&names) else { return };
    for (at, (table, name)) in outputs.iter().enumerate() {
        let same = |(other_table, other): &(Option<String>, String)| {
            name == other && (table.is_none() || other_table.is_none() || table == other_table)
        };
        if unique[at] == *name || !outputs[..at].iter().any(same) {
            continue;
        }
        let alias = Ident::with_quote('"', unique[at].clone());
        if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } =
            &projection[at]
        {
            projection[at] = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
        }
    }
}
