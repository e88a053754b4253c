//! `SELECT * FROM one table` without a projection of its columns by name. DataFusion 53 looks up
//! each of them among all, several times: the planning of ten thousand columns took seconds, and
//! grew with their square.
//!
//! Upstream: apache/datafusion#7698.

use std::sync::LazyLock;

use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast::{self, Query, Select, SelectItem, SetExpr, TableFactor};

/// A statement that selects all columns of one relation, with one constant in their place; None for
/// any other.
pub fn without_star(statement: &Statement) -> Option<Statement> {
    let query = query_of(statement)?;
    let select = select_of(query)?;
    let [from] = &select.from[..] else { return None };
    let one = matches!(from.relation, TableFactor::Table { .. } | TableFactor::Derived { .. });
    if !one || !from.joins.is_empty() {
        return None;
    }
    let as_star = of_template(&STAR, query, select)?;
    // Whatever else it says, in fields that nobody thought of here, too.
    if *query != as_star {
        return None;
    }
    let constant = of_template(&CONSTANT, query, select)?;
    Some(Statement::Statement(Box::new(ast::Statement::Query(Box::new(constant)))))
}

/// The plan of `SELECT *`, made from the plan of [`without_star`].
pub fn below_constant(plan: &LogicalPlan) -> Option<LogicalPlan> {
    match plan {
        LogicalPlan::Projection(projection)
            if matches!(&projection.expr[..], [Expr::Literal(..)]) =>
        {
            Some(LogicalPlan::clone(&projection.input))
        }
        _ => None,
    }
}

static STAR: LazyLock<Option<Query>> = LazyLock::new(|| template("SELECT * FROM t"));
static CONSTANT: LazyLock<Option<Query>> = LazyLock::new(|| template("SELECT true FROM t"));

fn template(sql: &str) -> Option<Query> {
    query_of(&DFParser::parse_sql(sql).ok()?.pop_front()?).cloned()
}

/// The template with the relation and the condition of a statement.
fn of_template(
    template: &LazyLock<Option<Query>>,
    query: &Query,
    select: &Select,
) -> Option<Query> {
    let mut made = LazyLock::force(template).clone()?;
    made.with.clone_from(&query.with);
    let SetExpr::Select(body) = made.body.as_mut() else { return None };
    body.from.clone_from(&select.from);
    body.selection.clone_from(&select.selection);
    Some(made)
}

fn query_of(statement: &Statement) -> Option<&Query> {
    match statement {
        Statement::Statement(inner) => match inner.as_ref() {
            ast::Statement::Query(query) => Some(query),
            _ => None,
        },
        _ => None,
    }
}

fn select_of(query: &Query) -> Option<&Select> {
    match query.body.as_ref() {
        SetExpr::Select(select) if matches!(&select.projection[..], [SelectItem::Wildcard(_)]) => {
            Some(select)
        }
        _ => None,
    }
}
