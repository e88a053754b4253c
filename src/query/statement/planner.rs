//! Relations that DataFusion's planner plans wrongly or not at all, planned here: see [`joins`],
//! [`recursion`], [`multisets`].

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, TableReference};
use datafusion::datasource::empty::EmptyTable;
use datafusion::datasource::provider_as_source;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, lit};
use datafusion::sql::sqlparser::ast::{
    JoinConstraint, JoinOperator, ObjectNamePart, TableAlias, TableFactor, TableSample,
    TableSampleKind, TableSampleModifier, TableWithJoins,
};

use super::joins::{self, Asked};
use super::multisets::{self, Counted};
use super::{MARK, names, recursion, stars};
use crate::query::engine_fixes::functional_dependencies::relation_without_keys;
use crate::query::engine_fixes::row_comparisons::{ROW, VALUE};

/// Plans the relations that [`sound_statement`](super::sound_statement) makes, and gives the
/// columns of subqueries different names.
#[derive(Debug, Default)]
pub struct SoundRelations {
    /// Plans that a relation of a statement stands for.
    planned: stars::Planned,
}

impl RelationPlanner for SoundRelations {
    fn plan_relation(
        &self,
        mut relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        if let TableFactor::Table { alias, .. } = &mut relation
            && let Some(alias) = alias.take_if(|alias| !alias.columns.is_empty())
        {
            let (plan, alias) = named(context.plan(relation)?, alias, context)?;
            let planned = PlannedRelation::new(plan, Some(alias));
            return Ok(RelationPlanning::Planned(Box::new(planned)));
        }
        if let Some(plan) = self.planned.named(&relation) {
            let planned = PlannedRelation::new(plan?, None);
            return Ok(RelationPlanning::Planned(Box::new(planned)));
        }
        let planned = match relation {
            TableFactor::Derived { subquery, alias: Some(alias), .. }
                if alias.name.value == stars::mark() =>
            {
                PlannedRelation::new(self.planned.written_out(*subquery, context)?, None)
            }
            TableFactor::NestedJoin { table_with_joins, alias: Some(alias) } if is_mark(&alias) => {
                let tables = *table_with_joins;
                let plan = match Counted::of_mark(&alias.name.value) {
                    Some(counted) => counted_sets(counted, tables, context)?,
                    None => joined(tables, &alias, context)?,
                };
                PlannedRelation::new(plan, None)
            }
            TableFactor::Derived { lateral, subquery, alias: Some(alias), sample: None } => {
                // What is marked so comes here again, and is planned as any subquery.
                let marked =
                    TableFactor::Derived { lateral, subquery, alias: None, sample: Some(seen()) };
                let plan = relation_without_keys(names::distinct_names(context.plan(marked)?)?)?;
                let is_start = alias.name.value == recursion::start_mark();
                let (plan, alias) = named(plan, alias, context)?;
                match is_start {
                    true => PlannedRelation::new(first_rows(plan, alias)?, None),
                    false => PlannedRelation::new(plan, Some(alias)),
                }
            }
            // A part of WITH, or a table.
            TableFactor::Table {
                name,
                alias,
                args: None,
                sample: None,
                with_hints,
                version,
                with_ordinality,
                partitions,
                json_path,
                index_hints,
            } => {
                let marked = TableFactor::Table {
                    name,
                    alias,
                    args: None,
                    sample: Some(seen()),
                    with_hints,
                    version,
                    with_ordinality,
                    partitions,
                    json_path,
                    index_hints,
                };
                PlannedRelation::new(relation_without_keys(context.plan(marked)?)?, None)
            }
            TableFactor::NestedJoin { table_with_joins, alias: Some(alias) }
                if !alias.columns.is_empty() =>
            {
                let plan = TableFactor::NestedJoin { table_with_joins, alias: None };
                let plan = names::distinct_names(context.plan(plan)?)?;
                let (plan, alias) = named(plan, alias, context)?;
                PlannedRelation::new(plan, Some(alias))
            }
            other => return Ok(RelationPlanning::Original(Box::new(other))),
        };
        Ok(RelationPlanning::Planned(Box::new(planned)))
    }
}

fn is_mark(alias: &TableAlias) -> bool {
    alias.name.value.starts_with(MARK)
}

/// A sample that no statement has; it marks samples of subqueries, which are refused.
fn seen() -> TableSampleKind {
    TableSampleKind::BeforeTableAlias(Box::new(TableSample {
        modifier: TableSampleModifier::Sample,
        name: None,
        quantity: None,
        seed: None,
        bucket: None,
        offset: None,
    }))
}

fn counted_sets(
    counted: Counted,
    tables: TableWithJoins,
    context: &mut dyn RelationPlannerContext,
) -> Result<LogicalPlan> {
    let TableWithJoins { relation, mut joins } = tables;
    let (Some(join), true) = (joins.pop(), joins.is_empty()) else { return Err(malformed()) };
    let (left, right) = (context.plan(relation)?, context.plan(join.relation)?);
    multisets::plan(counted, left, right)
}

/// A plan with the names that an alias gives to its columns: to the first, where it gives fewer.
/// The planner finds the columns by their names in small letters.
fn named(
    plan: LogicalPlan,
    alias: TableAlias,
    context: &dyn RelationPlannerContext,
) -> Result<(LogicalPlan, TableAlias)> {
    let TableAlias { explicit, name, columns } = alias;
    let found = plan.schema().columns();
    let named = TableAlias { explicit, name, columns: Vec::new() };
    let is_row = [ROW, VALUE].iter().any(|mark| named.name.value.starts_with(mark));
    if is_row && columns.len() != found.len() {
        return Err(DataFusionError::Plan(format!(
            "a row of {} values is compared with a subquery of {}: only rows of one length are compared",
            columns.len(),
            match found.len() {
                1 => "one column".to_owned(),
                more => format!("{more} columns"),
            }
        )));
    }
    if columns.len() > found.len() {
        return Err(DataFusionError::Plan(format!(
            "{} names {} columns, and there are {}",
            named.name.value.trim_start_matches(MARK),
            columns.len(),
            found.len()
        )));
    }
    if columns.is_empty() {
        return Ok((plan, named));
    }
    let mut names = columns.into_iter().map(|column| context.normalize_ident(column.name));
    let columns: Vec<Expr> = found
        .into_iter()
        .map(|column| match names.next() {
            Some(name) => Expr::Column(column).alias(name),
            None => Expr::Column(column),
        })
        .collect();
    let plan = LogicalPlanBuilder::from(plan).project(columns)?.build()?;
    Ok((names::distinct_names(plan)?, named))
}

/// The first rows of a recursion, whose columns may be NULL.
fn first_rows(plan: LogicalPlan, alias: TableAlias) -> Result<LogicalPlan> {
    let found = plan.schema().columns();
    let names: Vec<String> = found.iter().map(|column| column.name.clone()).collect();
    let fields = plan.schema().fields().iter().zip(&names);
    let fields: Vec<Field> =
        fields.map(|(field, name)| Field::new(name, field.data_type().clone(), true)).collect();
    // A UNION ALL with a table without rows, of which the optimiser does not know that.
    let none = provider_as_source(Arc::new(EmptyTable::new(Arc::new(Schema::new(fields)))));
    let none = LogicalPlanBuilder::scan(TableReference::bare(format!("{MARK}none")), none, None)?
        .build()?;
    let columns = found.into_iter().zip(names);
    let columns: Vec<Expr> =
        columns.map(|(column, name)| Expr::Column(column).alias(name)).collect();
    LogicalPlanBuilder::from(plan)
        .project(columns)?
        .union(none)?
        .alias(TableReference::bare(alias.name.value))?
        .build()
}

/// A tree of joins whose last one is by columns of the same name.
fn joined(
    tables: TableWithJoins,
    alias: &TableAlias,
    context: &mut dyn RelationPlannerContext,
) -> Result<LogicalPlan> {
    let TableWithJoins { relation, mut joins } = tables;
    let join = joins.pop().ok_or_else(malformed)?;
    let left = match joins.is_empty() {
        true => context.plan(relation)?,
        false => {
            let table_with_joins = Box::new(TableWithJoins { relation, joins });
            context.plan(TableFactor::NestedJoin { table_with_joins, alias: None })?
        }
    };
    let right = context.plan(join.relation)?;
    let kind = match join.join_operator {
        JoinOperator::Left(_) | JoinOperator::LeftOuter(_) => JoinType::Left,
        JoinOperator::Right(_) | JoinOperator::RightOuter(_) => JoinType::Right,
        JoinOperator::FullOuter(_) => JoinType::Full,
        JoinOperator::LeftSemi(_) => JoinType::LeftSemi,
        JoinOperator::RightSemi(_) => JoinType::RightSemi,
        JoinOperator::LeftAnti(_) => JoinType::LeftAnti,
        JoinOperator::RightAnti(_) => JoinType::RightAnti,
        _ => JoinType::Inner,
    };
    let names = match joins::constraint(&join.join_operator) {
        Some(JoinConstraint::Using(names)) => names
            .iter()
            .map(|name| match &name.0[..] {
                [ObjectNamePart::Identifier(ident)] => Ok(context.normalize_ident(ident.clone())),
                _ => Err(DataFusionError::Plan(format!(
                    "USING ({name}): a column of both sides is named without its table"
                ))),
            })
            .collect::<Result<Vec<_>>>()?,
        _ => common_names(left.schema(), right.schema()),
    };
    let keys = names
        .iter()
        .map(|name| Ok((key(left.schema(), name, "left")?, key(right.schema(), name, "right")?)))
        .collect::<Result<Vec<(Column, Column)>>>()?;
    let columns = match kind {
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => {
            Some(columns(kind, &left, &right, &keys, alias)?)
        }
        _ => None,
    };
    let on = keys.into_iter().unzip::<Column, Column, Vec<_>, Vec<_>>();
    let builder = LogicalPlanBuilder::from(left);
    let builder = match on.0.is_empty() {
        true => builder.join_on(right, kind, [lit(true)])?,
        false => builder.join_detailed(right, kind, on, None, NullEquality::NullEqualsNothing)?,
    };
    match columns {
        Some(columns) => builder.project(columns)?.build(),
        None => builder.build(),
    }
}

/// The columns of a join by columns of the same name.
fn columns(
    kind: JoinType,
    left: &LogicalPlan,
    right: &LogicalPlan,
    keys: &[(Column, Column)],
    alias: &TableAlias,
) -> Result<Vec<Expr>> {
    let (of_left, of_right) = (left.schema().columns(), right.schema().columns());
    let mut columns: Vec<Expr> = of_left
        .iter()
        .map(|column| match keys.iter().find(|(key, _)| key == column) {
            Some((_, other)) if kind == JoinType::Right => Expr::Column(other.clone()),
            Some((key, other)) if kind == JoinType::Full => {
                let values = vec![Expr::Column(key.clone()), Expr::Column(other.clone())];
                // Of a qualifier of its own, so that it may be joined with another of its name.
                let sides = [key, other].map(|key| key.relation.as_ref().map(ToString::to_string));
                let sides = sides.map(Option::unwrap_or_default).join("=");
                let table = TableReference::bare(format!("{MARK}{sides}"));
                coalesce(values).alias_qualified(Some(table), key.name.clone())
            }
            _ => Expr::Column(column.clone()),
        })
        .collect();
    let is_key = |column: &&Column| keys.iter().any(|(_, key)| key == *column);
    columns.extend(of_right.iter().filter(|column| !is_key(column)).cloned().map(Expr::Column));
    for asked in alias.columns.iter().filter_map(|column| Asked::read(&column.name.value)) {
        match asked {
            Asked::Keep { table, key } => {
                let is_it = |column: &&Column| {
                    column.name == key
                        && column.relation.as_ref().is_some_and(|of| of.table() == table)
                };
                if let Some(column) = of_left.iter().chain(&of_right).find(is_it) {
                    let kept = Expr::Column(column.clone());
                    columns.push(
                        kept.alias_qualified(column.relation.clone(), joins::hidden(table, key)),
                    );
                }
            }
            Asked::NoKey { table, column } => {
                if keys.iter().any(|(key, _)| key.name == column) {
                    return Err(DataFusionError::Plan(format!(
                        "{table}.{column} is one column with another of a NATURAL JOIN; write JOIN … USING ({column}), or \
                         {column} without its table"
                    )));
                }
            }
        }
    }
    Ok(columns)
}

/// The columns that a NATURAL JOIN is by.
fn common_names(left: &DFSchema, right: &DFSchema) -> Vec<String> {
    let of_right: HashSet<&String> = right.fields().iter().map(|field| field.name()).collect();
    let mut seen = HashSet::new();
    let names = left.fields().iter().map(|field| field.name());
    let common = names.filter(|name| of_right.contains(name) && !name.starts_with(MARK));
    common.filter(|name| seen.insert(*name)).cloned().collect()
}

/// The column of one side that a name of USING stands for.
fn key(schema: &DFSchema, name: &str, side: &str) -> Result<Column> {
    let found: Vec<Column> =
        schema.columns().into_iter().filter(|column| column.name == name).collect();
    match &found[..] {
        [column] => Ok(column.clone()),
        [] => Err(DataFusionError::Plan(format!(
            "USING ({name}): the {side} side has no such column; it has {}",
            schema.field_names().join(", ")
        ))),
        _ => Err(DataFusionError::Plan(format!(
            "USING ({name}): the {side} side has several columns of that name; write ON with the tables' names"
        ))),
    }
}

fn malformed() -> DataFusionError {
    DataFusionError::Internal("a marked relation is malformed".to_owned())
}
