//! `INTERSECT ALL` and `EXCEPT ALL`, which count copies of a row: the engine makes semi and anti
//! joins of them, which do not.
//!
//! ```text
//! a INTERSECT ALL b        SELECT columns FROM (SELECT …, row_number() OVER (PARTITION BY <all columns>) AS copy FROM a)
//!                          INTERSECT (the same of b)
//! ```

use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{
    Expr as PlanExpr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, WindowFunctionDefinition,
    cast, ident,
};
use datafusion::sql::sqlparser::ast::{
    Ident, Join, JoinConstraint, JoinOperator, Query, SetExpr, SetOperator, SetQuantifier,
    TableAlias, TableFactor, TableWithJoins,
};

use super::equal::{query_of, select_from};
use super::{MARK, names};

/// Which of the two a marked relation stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    Intersect,
    Except,
}

impl Counted {
    fn mark(self) -> String {
        match self {
            Self::Intersect => format!("{MARK}intersect all"),
            Self::Except => format!("{MARK}except all"),
        }
    }

    /// The operation for which a relation's name stands.
    pub(super) fn of_mark(name: &str) -> Option<Self> {
        [Self::Intersect, Self::Except].into_iter().find(|counted| counted.mark() == name)
    }
}

/// Replaces each of them by a relation that [`plan`] plans.
pub(super) fn number(query: &mut Query) {
    number_body(&mut query.body);
}

fn number_body(body: &mut SetExpr) {
    let SetExpr::SetOperation { op, set_quantifier, left, right } = body else { return };
    number_body(left);
    number_body(right);
    let counted = match (op, set_quantifier) {
        (SetOperator::Intersect, SetQuantifier::All) => Counted::Intersect,
        (SetOperator::Except, SetQuantifier::All) => Counted::Except,
        _ => return,
    };
    let derived = |body: &SetExpr| TableFactor::Derived {
        lateral: false,
        subquery: Box::new(query_of(body.clone())),
        alias: None,
        sample: None,
    };
    let join = Join {
        relation: derived(right),
        global: false,
        join_operator: JoinOperator::CrossJoin(JoinConstraint::None),
    };
    let alias = TableAlias {
        explicit: true,
        name: Ident::with_quote('"', counted.mark()),
        columns: Vec::new(),
    };
    *body = select_from(TableFactor::NestedJoin {
        table_with_joins: Box::new(TableWithJoins { relation: derived(left), joins: vec![join] }),
        alias: Some(alias),
    });
}

/// The rows of one side that the other one has as often, or more often, or not.
///
/// # Errors
/// `Query` where the sides have other numbers of columns, or types that do not compare.
pub(super) fn plan(
    counted: Counted,
    left: LogicalPlan,
    right: LogicalPlan,
) -> DfResult<LogicalPlan> {
    let (left, right) = (names::distinct_names(left)?, names::distinct_names(right)?);
    let (columns, others) = (left.schema().fields().len(), right.schema().fields().len());
    let operator = if counted == Counted::Intersect { "INTERSECT ALL" } else { "EXCEPT ALL" };
    if columns != others {
        return Err(DataFusionError::Plan(format!(
            "{operator} needs the same number of columns on both sides; there are {columns} and {others}"
        )));
    }
    let mut types = Vec::with_capacity(columns);
    for (field, other) in left.schema().fields().iter().zip(right.schema().fields()) {
        let (one, two) = (field.data_type(), other.data_type());
        let common = if one == two { Some(one.clone()) } else { comparison_coercion(one, two) };
        types.push(common.ok_or_else(|| {
            DataFusionError::Plan(format!(
                "{operator} of the column {:?}: its types {one} and {two} do not compare; CAST one of them",
                field.name()
            ))
        })?);
    }
    let names: Vec<String> =
        left.schema().fields().iter().map(|field| field.name().clone()).collect();
    let numbered = |plan: LogicalPlan| -> DfResult<LogicalPlan> {
        let typed =
            plan.schema().columns().into_iter().zip(plan.schema().fields().iter()).zip(&types);
        let keys: Vec<PlanExpr> = typed
            .enumerate()
            .map(|(at, ((column, field), data_type))| {
                let value = PlanExpr::Column(column);
                let value = match field.data_type() == data_type {
                    true => value,
                    false => cast(value, data_type.clone()),
                };
                value.alias(format!("{MARK}{at}"))
            })
            .collect();
        let all = (0..columns).map(|at| ident(format!("{MARK}{at}"))).collect();
        let function = WindowFunctionDefinition::WindowUDF(row_number_udwf());
        let copy =
            PlanExpr::from(WindowFunction::new(function, vec![])).partition_by(all).build()?;
        let plan = LogicalPlanBuilder::from(plan).project(keys)?.window(vec![copy])?.build()?;
        let mut columns: Vec<PlanExpr> =
            plan.schema().columns().into_iter().map(PlanExpr::Column).collect();
        let copy = columns.pop().map(|copy| copy.alias(format!("{MARK}copy")));
        columns.extend(copy);
        LogicalPlanBuilder::from(plan).project(columns)?.build()
    };
    let (left, right) = (numbered(left)?, numbered(right)?);
    let found = match counted {
        Counted::Intersect => LogicalPlanBuilder::intersect(left, right, true)?,
        Counted::Except => LogicalPlanBuilder::except(left, right, true)?,
    };
    let columns = found.schema().columns();
    let named =
        columns.into_iter().zip(names).map(|(column, name)| PlanExpr::Column(column).alias(name));
    LogicalPlanBuilder::from(found).project(named.collect::<Vec<_>>())?.build()
}
