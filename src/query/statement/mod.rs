//! The statement level: clauses that parse are honoured or refused by name, never passed over.
//!
//! DataFusion's planner uses the parts of a syntax tree that it knows and ignores the rest, so that
//! it answers another query. Here a statement becomes an equal one that the planner honours
//! ([`equal`], [`windows`], [`joins`], [`recursion`], [`multisets`], [`shadows`], [`orders`]);
//! clauses that the planner would still ignore are refused ([`clauses`], [`relations`], [`calls`]).
//! These take every structure of the tree apart by all its fields, so that one of a newer parser
//! does not compile unseen.

mod calls;
mod clauses;
mod equal;
mod groups;
mod intervals;
mod joins;
mod multisets;
mod names;
mod orders;
mod planner;
mod recursion;
mod relations;
mod shadows;
mod stars;
mod tokens;
mod windows;

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Query, Select, SetExpr, TableFactor, Visit, VisitMut, Visitor, VisitorMut,
};

pub(super) use equal::{query_of, select_from};
pub(super) use joins::last;
pub use names::distinct_names;
pub use planner::SoundRelations;
pub use recursion::check_recursion;
pub(super) use shadows::written;
pub(super) use stars::table;
pub use stars::{is_about_names, with_names_apart};
pub(super) use tokens::{with_bracketed_sets, without_materialized};
pub use windows::check_places;

use super::engine_fixes::number_digits::keep_digits;
use crate::{Error, Result};

/// Begins the names that this module gives to relations and columns; no identifier holds it.
const MARK: char = '\u{2}';

/// Makes an equal statement of one, and refuses clauses that the planner would ignore.
///
/// # Errors
/// `Query` naming the clause, and an alternative.
pub(super) fn sound_statement(query: &mut Query) -> Result<()> {
    shadows::rename(query);
    broken(VisitMut::visit(query, &mut Equal))?;
    broken(Visit::visit(query, &mut Clauses))
}

fn broken(flow: ControlFlow<Error>) -> Result<()> {
    match flow {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

fn flow(result: Result<()>) -> ControlFlow<Error> {
    match result {
        Err(error) => ControlFlow::Break(error),
        Ok(()) => ControlFlow::Continue(()),
    }
}

/// Rewrites: simple ones from the top, rewrites that depend on subqueries from the bottom.
struct Equal;

impl VisitorMut for Equal {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        flow(equal::rewrite(query))
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
            equal::plain_joins(table_with_joins);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        equal::rewrite_expr(expr);
        keep_digits(expr);
        flow(intervals::rewrite(expr))
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let rewrites = [
            windows::resolve,
            joins::wrap,
            names::tell_apart,
            orders::by_all,
            orders::by_windows,
            recursion::start,
        ];
        let steps = rewrites.into_iter().try_for_each(|step| step(query));
        flow(steps.map(|()| multisets::number(query)))
    }
}

/// Refuses the remaining clauses.
struct Clauses;

impl Visitor for Clauses {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        flow(clauses::check(query))
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Error> {
        flow(relations::check(factor))
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Error> {
        flow(calls::check(expr))
    }
}

/// Calls `each` with every SELECT of a body that is not in a query of its own.
fn each_select(body: &mut SetExpr, each: &mut dyn FnMut(&mut Select) -> Result<()>) -> Result<()> {
    match body {
        SetExpr::Select(select) => each(select),
        SetExpr::SetOperation { left, right, .. } => {
            each_select(left, each)?;
            each_select(right, each)
        }
        _ => Ok(()),
    }
}

fn refused(what: &str, instead: &str) -> Error {
    Error::query(format!("{what} is not supported: {instead}"))
}
