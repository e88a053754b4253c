//! `SELECT *, x`: the columns of `*` written out, so that each column has a name of its own.
//!
//! The planner refuses two columns of one name and table. So such a statement is planned again,
//! with each SELECT that has `*` beside other columns as a relation:
//!
//! ```text
//! SELECT *, 1 AS a FROM t ORDER BY b     SELECT * FROM (SELECT *, 1 AS a FROM t ORDER BY b) AS stars
//! ```
//!
//! That relation is planned here: first its FROM, whose columns are known then, then `SELECT t.a,
//! t.b, 1 AS a_1` of that plan.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use datafusion::common::{Column, SchemaError, TableReference};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::expr::WildcardOptions;
use datafusion::logical_expr::planner::RelationPlannerContext;
use datafusion::logical_expr::utils::{expand_qualified_wildcard, expand_wildcard};
use datafusion::logical_expr::{Expr as PlanExpr, LogicalPlan};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, Expr, GroupByExpr, Ident, Join, JoinConstraint, JoinOperator, LimitClause, ObjectName,
    ObjectNamePart, Offset, OffsetRows, OrderBy, OrderByKind, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, TableAlias, TableFactor, TableWithJoins, VisitMut,
    VisitorMut, WildcardAdditionalOptions,
};

use super::equal::{number, query_of, select_from};
use super::{MARK, groups, names};

/// The name of the relation that such a SELECT becomes.
pub(super) fn mark() -> String {
    format!("{MARK}stars")
}

/// Begins the names of relations that are planned already.
const PLANNED: &str = "\u{2}planned";

/// Returns true if the planner found two columns of one name.
pub fn is_about_names(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::SchemaError(error, _) => {
            !matches!(**error, SchemaError::FieldNotFound { .. })
        }
        DataFusionError::Plan(message) => {
            message.starts_with("Projections require unique expression names")
        }
        _ => false,
    }
}

/// The statement with names for its columns, and with a relation for each SELECT that has `*`
/// beside other columns; None where it has neither.
pub fn with_names_apart(statement: &Statement) -> Option<Statement> {
    let Statement::Statement(inner) = statement else { return None };
    let mut inner = inner.clone();
    let ast::Statement::Query(query) = &mut *inner else { return None };
    let mut wrap = Wrap { changed: false };
    let _ = VisitMut::visit(query, &mut wrap);
    wrap.changed.then_some(Statement::Statement(inner))
}

struct Wrap {
    changed: bool,
}

impl VisitorMut for Wrap {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let Query { body, order_by, limit_clause, .. } = query;
        match &mut **body {
            SetExpr::Select(select) if has_stars(select) => {
                self.changed = true;
                let mut inner =
                    query_of(std::mem::replace(&mut **body, SetExpr::Values(names::no_values())));
                inner.order_by = order_by.take();
                inner.limit_clause = limit_clause.take();
                if inner.order_by.is_some() && inner.limit_clause.is_none() {
                    // The planner leaves out the order of a relation that has no limit.
                    let offset = Some(Offset { value: number(0), rows: OffsetRows::None });
                    inner.limit_clause = Some(LimitClause::LimitOffset {
                        limit: None,
                        offset,
                        limit_by: Vec::new(),
                    });
                }
                **body = relation(inner);
            }
            body => {
                self.operands(body);
                if let (SetExpr::Select(select), Some(_)) = (body, &*order_by) {
                    self.changed |= names::name_by_text(select);
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl Wrap {
    /// The SELECTs of a set operation.
    fn operands(&mut self, body: &mut SetExpr) {
        match body {
            SetExpr::Select(select) if has_stars(select) => {
                self.changed = true;
                let inner = std::mem::replace(body, SetExpr::Values(names::no_values()));
                *body = relation(query_of(inner));
            }
            SetExpr::Select(select) => self.changed |= names::name_subqueries(select),
            SetExpr::SetOperation { left, right, .. } => {
                self.operands(left);
                self.operands(right);
            }
            _ => {}
        }
    }
}

fn has_stars(select: &Select) -> bool {
    let is_star = |item: &SelectItem| {
        matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..))
    };
    select.projection.len() > 1 && select.projection.iter().any(is_star) && !select.from.is_empty()
}

fn relation(subquery: Query) -> SetExpr {
    let name = Ident::with_quote('"', mark());
    select_from(TableFactor::Derived {
        lateral: false,
        subquery: Box::new(subquery),
        alias: Some(TableAlias { explicit: true, name, columns: Vec::new() }),
        sample: None,
    })
}

/// Plans of relations, by the number in their name, while the statement that names them is planned.
#[derive(Debug, Default)]
pub(super) struct Planned {
    plans: Mutex<(usize, HashMap<String, LogicalPlan>)>,
}

impl Planned {
    /// The plan that a relation names; None for any other relation.
    pub(super) fn named(&self, relation: &TableFactor) -> Option<DfResult<LogicalPlan>> {
        let TableFactor::Table { name, args: None, .. } = relation else { return None };
        let [ObjectNamePart::Identifier(name)] = &name.0[..] else { return None };
        if !name.value.starts_with(PLANNED) {
            return None;
        }
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = || DataFusionError::Internal("a planned relation is lost".to_owned());
        Some(plans.1.get(&name.value).cloned().ok_or_else(lost))
    }

    fn keep(&self, plan: LogicalPlan) -> String {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.0 += 1;
        let name = format!("{PLANNED}{}", plans.0);
        plans.1.insert(name.clone(), plan);
        name
    }

    fn forget(&self, name: &str) {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.1.remove(name);
    }

    /// The plan of a SELECT with `*` beside other columns.
    ///
    /// # Errors
    /// Errors of the planner.
    pub(super) fn written_out(
        &self,
        mut query: Query,
        context: &mut dyn RelationPlannerContext,
    ) -> DfResult<LogicalPlan> {
        let Query { body, order_by, .. } = &mut query;
        let SetExpr::Select(select) = &mut **body else {
            return Err(DataFusionError::Internal("a marked SELECT is none".to_owned()));
        };
        let from = context.plan(one_relation(std::mem::take(&mut select.from)))?;
        let items = std::mem::take(&mut select.projection);
        let renamed = written_out(items, &from, &mut select.projection, context)?;
        names::name_subqueries(select);
        if let GroupByExpr::All(_) = select.group_by {
            groups::rewrite(select).map_err(DataFusionError::from)?;
        }
        if let Some(order) = order_by {
            rename_keys(order, &renamed, context);
        }
        let name = self.keep(from);
        let relation = table(&name);
        select.from = vec![TableWithJoins { relation, joins: Vec::new() }];
        let planned = context.plan(TableFactor::Derived {
            lateral: false,
            subquery: Box::new(query),
            alias: None,
            sample: None,
        });
        self.forget(&name);
        planned
    }
}

/// The tables of a FROM as one relation.
fn one_relation(from: Vec<TableWithJoins>) -> TableFactor {
    let nested = |tables: TableWithJoins| match tables.joins.is_empty() {
        true => tables.relation,
        false => TableFactor::NestedJoin { table_with_joins: Box::new(tables), alias: None },
    };
    let mut from = from.into_iter();
    let Some(mut first) = from.next() else { return table("") };
    first.joins.extend(from.map(|tables| Join {
        relation: nested(tables),
        global: false,
        join_operator: JoinOperator::CrossJoin(JoinConstraint::None),
    }));
    nested(first)
}

/// A table of a name.
pub(in crate::query) fn table(name: &str) -> TableFactor {
    TableFactor::Table {
        name: ObjectName::from(vec![Ident::with_quote('"', name)]),
        alias: None,
        args: None,
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    }
}

/// Writes the columns into `projection`, each with a name of its own, and returns the names that AS
/// gave and that are others now.
fn written_out(
    items: Vec<SelectItem>,
    from: &LogicalPlan,
    projection: &mut Vec<SelectItem>,
    context: &dyn RelationPlannerContext,
) -> DfResult<Vec<(String, String)>> {
    let mut names = Vec::new();
    for item in items {
        match item {
            SelectItem::Wildcard(options) => {
                let columns = expand_wildcard(from.schema(), from, Some(&planned(&options)))?;
                columns_of_star(columns, &options, projection, &mut names);
            }
            SelectItem::QualifiedWildcard(
                SelectItemQualifiedWildcardKind::ObjectName(table),
                options,
            ) => {
                let table = context.object_name_to_table_reference(table)?;
                let columns =
                    expand_qualified_wildcard(&table, from.schema(), Some(&planned(&options)))?;
                columns_of_star(columns, &options, projection, &mut names);
            }
            other => {
                names.push(names::output(&other).map(|(_, name)| name).unwrap_or_default());
                projection.push(other);
            }
        }
    }
    let mut renamed = Vec::new();
    for ((item, name), unique) in
        projection.iter_mut().zip(&names).zip(names::unique(&names).unwrap_or_default())
    {
        if *name == unique {
            continue;
        }
        let alias = Ident::with_quote('"', unique.clone());
        match item {
            SelectItem::ExprWithAlias { alias: given, .. } => {
                *given = alias;
                renamed.push((name.clone(), unique));
            }
            SelectItem::UnnamedExpr(expr) => {
                let expr = std::mem::replace(expr, number(0));
                *item = SelectItem::ExprWithAlias { expr, alias };
            }
            _ => {}
        }
    }
    Ok(renamed)
}

fn planned(options: &WildcardAdditionalOptions) -> WildcardOptions {
    WildcardOptions {
        ilike: None,
        exclude: options.opt_exclude.clone(),
        except: options.opt_except.clone(),
        replace: None,
        rename: None,
    }
}

/// The columns that a star stands for, or the expressions that REPLACE puts in their places.
fn columns_of_star(
    columns: Vec<PlanExpr>,
    options: &WildcardAdditionalOptions,
    projection: &mut Vec<SelectItem>,
    names: &mut Vec<String>,
) {
    for expr in columns {
        let PlanExpr::Column(column) = expr else { continue };
        let mut replaced = options.opt_replace.iter().flat_map(|replace| &replace.items);
        projection.push(match replaced.find(|item| item.column_name.value == column.name) {
            Some(item) => SelectItem::ExprWithAlias {
                expr: item.expr.clone(),
                alias: Ident::with_quote('"', &column.name),
            },
            None => SelectItem::UnnamedExpr(named(&column)),
        });
        names.push(column.name);
    }
}

/// A column with its table.
fn named(column: &Column) -> Expr {
    let mut parts: Vec<&str> = match &column.relation {
        None => Vec::new(),
        Some(TableReference::Bare { table }) => vec![table],
        Some(TableReference::Partial { schema, table }) => vec![schema, table],
        Some(TableReference::Full { catalog, schema, table }) => vec![catalog, schema, table],
    };
    parts.push(&column.name);
    let mut parts: Vec<Ident> =
        parts.into_iter().map(|part| Ident::with_quote('"', part)).collect();
    match (parts.len(), parts.pop()) {
        (1, Some(name)) => Expr::Identifier(name),
        (_, name) => Expr::CompoundIdentifier(parts.into_iter().chain(name).collect()),
    }
}

/// A name in ORDER BY that AS gave to a column means that column, even if tables have a column of
/// that name.
fn rename_keys(
    order: &mut OrderBy,
    renamed: &[(String, String)],
    context: &dyn RelationPlannerContext,
) {
    let OrderByKind::Expressions(keys) = &mut order.kind else { return };
    for key in keys {
        let Expr::Identifier(name) = &key.expr else { continue };
        let name = context.normalize_ident(name.clone());
        if let Some((_, unique)) = renamed.iter().find(|(given, _)| *given == name) {
            key.expr = Expr::Identifier(Ident::with_quote('"', unique.clone()));
        }
    }
}
