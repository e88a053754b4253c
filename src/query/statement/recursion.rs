//! Recursive parts of WITH.
//!
//! The planner takes such a part to pieces, and forgets its ORDER BY, LIMIT and WITH, of one
//! without recursion too. It takes the recursion's columns for never NULL where those of the first
//! rows are so, passes over the names in `w (n)`, and prunes columns that the next step needs. So
//! the first rows become a relation that [`planner`](super::planner) plans, with names of its own,
//! whose columns may be NULL and are never pruned:
//!
//! ```text
//! w (n) AS (first UNION ALL next)     w AS (SELECT * FROM (first) AS start (n) UNION ALL SELECT * FROM (next) AS step)
//! ```

use std::ops::ControlFlow;

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr as PlanExpr, ExprSchemable, LogicalPlan};
use datafusion::sql::sqlparser::ast::{
    Cte, Expr, Ident, ObjectName, Query, SetExpr, SetOperator, SetQuantifier, TableAlias,
    TableAliasColumnDef, TableFactor, Visit, Visitor,
};

use super::MARK;
use super::equal::{query_of, select_from};
use super::joins::{folded, last};
use crate::{Error, Result};

/// The name of the relation of first rows.
pub(super) fn start_mark() -> String {
    format!("{MARK}start")
}

fn step_mark() -> String {
    format!("{MARK}step")
}

/// Makes relations of the two sides of each recursive part.
///
/// # Errors
/// `Query` for parts that the engine would answer wrongly or ignore.
pub(super) fn start(query: &mut Query) -> Result<()> {
    let Some(with) = query.with.as_mut().filter(|with| with.recursive) else { return Ok(()) };
    let names: Vec<String> = with.cte_tables.iter().map(|cte| folded(&cte.alias.name)).collect();
    for (at, cte) in with.cte_tables.iter_mut().enumerate() {
        if let Some(later) = names[at + 1..].iter().find(|later| count(&*cte.query, later).all > 0)
        {
            return Err(Error::query(format!(
                "{:?} reads {later:?}, which WITH RECURSIVE names after it; write {later:?} before it",
                names[at]
            )));
        }
        start_of(cte, &names[at])?;
    }
    Ok(())
}

fn start_of(cte: &mut Cte, name: &str) -> Result<()> {
    if count(&*cte.query, name).all == 0 {
        // Without recursion; below brackets it stays whole.
        let inner = std::mem::replace(&mut *cte.query, query_of(empty()));
        *cte.query = query_of(SetExpr::Query(Box::new(inner)));
        return Ok(());
    }
    let refused = |what: &str, instead: &str| {
        Err(Error::query(format!("the recursive part {name:?} of WITH {what}; {instead}")))
    };
    let Query { with, body, order_by, limit_clause, fetch, pipe_operators, .. } = &mut *cte.query;
    let clause = match () {
        () if with.is_some() => "WITH",
        () if order_by.is_some() => "ORDER BY",
        () if limit_clause.is_some() || fetch.is_some() => "LIMIT or OFFSET",
        () if !pipe_operators.is_empty() => "|>",
        () => "",
    };
    match clause {
        "" => {}
        "WITH" => return refused("has a WITH of its own", "write its parts before this one"),
        clause => {
            return refused(
                &format!("cannot have {clause} of its own"),
                "write a condition that ends the recursion, and ORDER BY and LIMIT where it is read",
            );
        }
    }
    let SetExpr::SetOperation { op, set_quantifier, left, right } = &mut **body else {
        return refused(
            "reads itself",
            "it must be first rows UNION ALL rows made of those before",
        );
    };
    if *op != SetOperator::Union
        || !matches!(
            set_quantifier,
            SetQuantifier::All | SetQuantifier::Distinct | SetQuantifier::None
        )
    {
        return refused(
            "needs UNION or UNION ALL between its first rows and the next",
            "write one of them",
        );
    }
    if count(&**left, name).all > 0 {
        return refused(
            "reads itself in its first rows",
            "write the rows that need none before UNION ALL, and one SELECT that reads it after",
        );
    }
    let read = count(&**right, name);
    if read.all != 1 || read.in_expressions > 0 {
        return refused(
            "must read itself once, in FROM",
            "the rows before are there once: write one FROM with it, and join other tables",
        );
    }
    let columns = std::mem::take(&mut cte.alias.columns);
    **left = named(left, start_mark(), columns);
    **right = named(right, step_mark(), Vec::new());
    Ok(())
}

fn named(body: &SetExpr, name: String, columns: Vec<TableAliasColumnDef>) -> SetExpr {
    select_from(TableFactor::Derived {
        lateral: false,
        subquery: Box::new(query_of(body.clone())),
        alias: Some(TableAlias { explicit: true, name: Ident::with_quote('"', name), columns }),
        sample: None,
    })
}

fn empty() -> SetExpr {
    SetExpr::Values(datafusion::sql::sqlparser::ast::Values {
        explicit_row: false,
        value_keyword: false,
        rows: Vec::new(),
    })
}

/// How often a table is read.
#[derive(Default)]
struct Reads<'a> {
    table: &'a str,
    all: usize,
    in_expressions: usize,
    expressions: usize,
}

impl Visitor for Reads<'_> {
    type Break = ();

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        if relation.0.len() == 1 && last(relation).as_deref() == Some(self.table) {
            self.all += 1;
            self.in_expressions += usize::from(self.expressions > 0);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.expressions += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.expressions -= 1;
        ControlFlow::Continue(())
    }
}

fn count<'a, V: Visit>(part: &V, table: &'a str) -> Reads<'a> {
    let mut reads = Reads { table, ..Reads::default() };
    let _ = part.visit(&mut reads);
    reads
}

/// Refuses recursions whose next rows would lose something as rows of the types of the first.
///
/// # Errors
/// `Query` naming the column and its types.
pub fn check_recursion(plan: &LogicalPlan) -> Result<()> {
    let mut found = Ok(());
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::RecursiveQuery(recursion) = node
            && let LogicalPlan::Projection(next) = &*recursion.recursive_term
            && found.is_ok()
        {
            let mut columns = next.expr.iter().zip(recursion.static_term.schema().fields());
            found = columns.try_for_each(|(expr, first)| {
                match loss(expr, next.input.schema()) {
                    None => Ok(()),
                    Some(data_type) => Err(Error::query(format!(
                        "the column {:?} of the recursive part {:?} of WITH is {} in its first rows and {data_type} in the next; \
                         write CAST(… AS …) around it in both",
                        first.name(),
                        recursion.name,
                        first.data_type()
                    ))),
                }
            });
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    found
}

/// The type of a column that a cast of the planner's makes less of.
fn loss(expr: &PlanExpr, input: &DFSchema) -> Option<DataType> {
    let PlanExpr::Cast(cast) = expr.clone().unalias() else { return None };
    let PlanExpr::Column(column) = &*cast.expr else { return None };
    let is_step = column.relation.as_ref().is_some_and(|table| table.table() == step_mark());
    let from = cast.expr.get_type(input).ok()?;
    (is_step && loses(&from, &cast.data_type)).then_some(from)
}

/// Returns true if a cast may change a value without an error.
fn loses(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Date32, Decimal128, Decimal256, Float32, Float64, LargeUtf8, Null, Timestamp, Utf8,
        Utf8View,
    };
    let is_text = |data_type: &DataType| matches!(data_type, Utf8 | LargeUtf8 | Utf8View);
    match (from, to) {
        (Null, _) | (Float32, Float64) | (Date32, Timestamp(..)) => false,
        // What does not fit is an error.
        (from, to) if from.is_integer() && (to.is_integer() || *to == Float64) => false,
        (from, Decimal128(..) | Decimal256(..)) if from.is_integer() => false,
        (Decimal128(_, from) | Decimal256(_, from), Decimal128(_, to) | Decimal256(_, to)) => {
            from > to
        }
        (Timestamp(from, zone), Timestamp(to, other)) => {
            from > to || zone.is_some() != other.is_some()
        }
        (from, to) if is_text(from) && is_text(to) => false,
        (from, to) => !from.equals_datatype(to),
    }
}
