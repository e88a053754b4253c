//! A CTE whose rows differ each time they are computed has one set of rows in SQL, however often it
//! is used. DataFusion 53 writes its query in each of these places.
//!
//! Upstream: apache/datafusion#10337.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{self, Expr, Ident, ObjectName, Query, Visit, Visitor};

use crate::query::statement::written;
use crate::{Error, Result};

/// Refuses a CTE that is used several times and calls a volatile function, itself or by another
/// CTE.
///
/// # Errors
/// `Query` naming the CTE.
pub fn check_ctes_drawn_once(
    statement: &Statement,
    is_volatile: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let Statement::Statement(inner) = statement else { return Ok(()) };
    let ast::Statement::Query(query) = inner.as_ref() else { return Ok(()) };
    match query.visit(&mut Walk { is_volatile }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Walk<'a> {
    is_volatile: &'a dyn Fn(&str) -> bool,
}

impl Visitor for Walk<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        let Some(with) = &query.with else { return ControlFlow::Continue(()) };
        let mut drawn: Vec<String> = Vec::new();
        for cte in &with.cte_tables {
            let name = known_as(&cte.alias.name);
            let mut inside = Uses::of(self.is_volatile, &drawn);
            let _ = cte.query.visit(&mut inside);
            if inside.draws || inside.relations > 0 {
                drawn.push(name);
            }
        }
        for name in drawn {
            let mut uses = Uses::of(self.is_volatile, std::slice::from_ref(&name));
            let _ = query.visit(&mut uses);
            if uses.relations > 1 {
                let name = written(&name);
                return ControlFlow::Break(Error::query(format!(
                    "WITH {name} calls a function that gives another value on every call, as random(), and is used {} times: the \
                     engine would draw other rows for each; use it once, or keep its rows: \
                     session.register_table({name:?}, session.sql(…).to_arrow())",
                    uses.relations
                )));
            }
        }
        ControlFlow::Continue(())
    }
}

/// Functions and tables that a query uses.
struct Uses<'a> {
    is_volatile: &'a dyn Fn(&str) -> bool,
    names: &'a [String],
    draws: bool,
    relations: usize,
}

impl<'a> Uses<'a> {
    fn of(is_volatile: &'a dyn Fn(&str) -> bool, names: &'a [String]) -> Self {
        Self { is_volatile, names, draws: false, relations: 0 }
    }
}

impl Visitor for Uses<'_> {
    type Break = ();

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        if let [part] = &relation.0[..]
            && let Some(ident) = part.as_ident()
            && self.names.contains(&known_as(ident))
        {
            self.relations += 1;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr
            && let [part] = &function.name.0[..]
            && let Some(ident) = part.as_ident()
        {
            self.draws |= (self.is_volatile)(&known_as(ident));
        }
        ControlFlow::Continue(())
    }
}

/// A name as SQL knows it.
fn known_as(ident: &Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_lowercase(),
    }
}
