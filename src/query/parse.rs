//! Parsing: exactly one read-only statement; path literals and tables of catalogs become registered
//! tables.

use std::ops::ControlFlow;

use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast::{
    self, Ident, ObjectName, ObjectNamePart, Query, SetExpr, TableAlias, TableFactor, Value, Visit,
    VisitMut, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

use super::depth::check_depth;
use super::engine_fixes::distinct_precedence::bind;
use super::engine_fixes::functions::{name_replaced, over_lists, zones_as_calls};
use super::engine_fixes::refused::check_sound;
use super::engine_fixes::row_comparisons::write_out;
use super::sample::{alias_first, take_samples};
use super::statement::{sound_statement, with_bracketed_sets, without_materialized};
use super::travel::{split_name, take_clauses};
use crate::iceberg::TravelTo;
use crate::{Error, Result};

/// The schema under which path literals are registered, apart from the user's own table names.
pub const PATH_SCHEMA: &str = "path";

/// The schema under which tables of Iceberg catalogs, and pinned points of their history, are
/// registered.
pub const LAKE_SCHEMA: &str = "iceberg";

/// A table that a statement names by catalog, by a point in history, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LakeName {
    /// Catalog, namespaces and table; the table alone where it was registered under a name of its
    /// own.
    pub parts: Vec<String>,
    /// The point in its history.
    pub at: TravelTo,
    /// The name it is registered under, in [`LAKE_SCHEMA`].
    pub key: String,
}

/// One read-only statement.
#[derive(Debug, Clone)]
pub struct ParsedQuery {
    /// The statement, its path literals replaced by `"path"."<literal>"`.
    pub statement: Statement,
    /// The path literals, in order of appearance, each once.
    pub paths: Vec<String>,
    /// Tables of Iceberg catalogs, replaced by `"iceberg"."<key>"`, in order of appearance, each
    /// once.
    pub lakes: Vec<LakeName>,
}

impl ParsedQuery {
    /// A SELECT that the planner answers rightly, with the names of its tables found.
    ///
    /// # Arguments
    /// `is_catalog` returns true for the name of a registered catalog, and of a metadata table.
    ///
    /// # Errors
    /// `Query` where it does more than read, or has a clause that the planner would ignore.
    pub fn try_new(mut query: Query, is_catalog: impl Fn(&str) -> bool) -> Result<Self> {
        bind(&mut query);
        over_lists(&mut query);
        if let ControlFlow::Break(refused) = Visit::visit(&query, &mut Refusals) {
            return Err(refused.into());
        }
        sound_statement(&mut query)?;
        write_out(&mut query)?;
        check_sound(&query)?;
        let mut finder =
            TableFinder { is_catalog: &is_catalog, paths: Vec::new(), lakes: Vec::new() };
        if let ControlFlow::Break(error) = VisitMut::visit(&mut query, &mut finder) {
            return Err(error);
        }
        take_samples(&mut query)?;
        name_replaced(&mut query);
        zones_as_calls(&mut query);
        Ok(Self {
            statement: Statement::Statement(Box::new(ast::Statement::Query(Box::new(query)))),
            paths: finder.paths,
            lakes: finder.lakes,
        })
    }
}

/// Parses one statement, which is to be a SELECT.
///
/// # Errors
/// `Query` for a syntax error, several statements, or anything but SELECT, VALUES or WITH.
pub(super) fn parse_select(sql: &str) -> Result<Query> {
    let readable = readable(sql)?;
    let sql = readable.as_deref().unwrap_or(sql);
    let mut statements = DFParser::parse_sql_with_dialect(sql, &GenericDialect {})
        .map_err(|error| Error::query(format!("the SQL does not parse: {}", plain(&error))))?;
    let statement = match (statements.pop_front(), statements.len()) {
        (Some(statement), 0) => statement,
        (None, _) => return Err(Error::query("the SQL is empty; write one SELECT statement")),
        (Some(_), more) => {
            return Err(Error::query(format!(
                "{} statements were given; a query is exactly one SELECT statement",
                more + 1
            )));
        }
    };
    let Statement::Statement(inner) = statement else {
        return Err(not_read_only(&first_word(sql)));
    };
    match *inner {
        ast::Statement::Query(query) => Ok(*query),
        _ => Err(not_read_only(&first_word(sql))),
    }
}

/// The SQL without clauses that the parser does not know; None if it knows all.
fn readable(sql: &str) -> Result<Option<String>> {
    let mut changed = take_clauses(sql)?;
    for rewrite in [alias_first, without_materialized, with_bracketed_sets] {
        changed = rewrite(changed.as_deref().unwrap_or(sql)).or(changed);
    }
    Ok(changed)
}

fn not_read_only(what: &str) -> Error {
    Error::query(format!(
        "{what} is not allowed: a query only reads; write one SELECT statement (tables are \
         registered with session.register_…)"
    ))
}

fn first_word(sql: &str) -> String {
    sql.split_whitespace().next().unwrap_or_default().to_uppercase()
}

/// The parser's message without its Rust wrapping.
fn plain(error: &datafusion::error::DataFusionError) -> String {
    let text = error.strip_backtrace();
    let text = text.strip_prefix("SQL error: ").unwrap_or(&text);
    match text.strip_prefix("ParserError(\"").and_then(|text| text.strip_suffix("\")")) {
        Some(inner) => inner.replace("\\\"", "\"").replace("\\'", "'"),
        None => text.to_owned(),
    }
}

/// Parses one boolean SQL expression.
///
/// # Errors
/// `Query` saying where the expression ends too early, or what it does besides reading.
pub fn parse_predicate(text: &str) -> Result<ast::Expr> {
    check_depth(text)?;
    let readable = readable(text)?;
    let mut parser = Parser::new(&GenericDialect {})
        .try_with_sql(readable.as_deref().unwrap_or(text))
        .map_err(|error| malformed_filter(text, &error))?;
    let expr = parser.parse_expr().map_err(|error| malformed_filter(text, &error))?;
    if let ControlFlow::Break(refused) = expr.visit(&mut Refusals) {
        return Err(refused.into());
    }
    let next = parser.peek_token();
    if next.token != Token::EOF {
        return Err(Error::query(format!(
            "the filter {text:?} must be one boolean expression; it goes on with {:?}",
            next.token.to_string()
        )));
    }
    Ok(expr)
}

fn malformed_filter(text: &str, error: &ParserError) -> Error {
    let (ParserError::TokenizerError(message) | ParserError::ParserError(message)) = error else {
        return Error::query(format!("the filter {text:?} is nested too deeply"));
    };
    Error::query(format!("the filter {text:?} does not parse: {message}"))
}

/// `name` in double quotes.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A construct that a query may not hold: it only reads, and needs nothing besides its text.
enum Refused {
    Write(&'static str),
    Placeholder(String),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Write(what) => not_read_only(what),
            Refused::Placeholder(name) => Self::query(format!(
                "the placeholder {name} has no value here; write the value into the SQL"
            )),
        }
    }
}

/// Finds parts of a query that write (SELECT INTO, and DML inside WITH or set operations), and
/// placeholders.
struct Refusals;

impl Visitor for Refusals {
    type Break = Refused;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Self::Break> {
        writes(&query.body)
    }

    fn pre_visit_value(&mut self, value: &Value) -> ControlFlow<Self::Break> {
        match value {
            Value::Placeholder(name) => ControlFlow::Break(Refused::Placeholder(name.clone())),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn writes(body: &SetExpr) -> ControlFlow<Refused> {
    match body {
        SetExpr::Insert(_) => ControlFlow::Break(Refused::Write("INSERT")),
        SetExpr::Update(_) => ControlFlow::Break(Refused::Write("UPDATE")),
        SetExpr::Delete(_) => ControlFlow::Break(Refused::Write("DELETE")),
        SetExpr::Merge(_) => ControlFlow::Break(Refused::Write("MERGE")),
        SetExpr::Select(select) if select.into.is_some() => {
            ControlFlow::Break(Refused::Write("SELECT INTO"))
        }
        SetExpr::SetOperation { left, right, .. } => {
            writes(left)?;
            writes(right)
        }
        _ => ControlFlow::Continue(()),
    }
}

/// Replaces relations written as string literals, and tables of catalogs.
struct TableFinder<'a> {
    is_catalog: &'a dyn Fn(&str) -> bool,
    paths: Vec<String>,
    lakes: Vec<LakeName>,
}

impl TableFinder<'_> {
    /// The Iceberg table that a name means, if any.
    fn lake(&self, name: &ObjectName) -> Result<Option<LakeName>> {
        let mut parts = Vec::with_capacity(name.0.len());
        for part in &name.0 {
            let ObjectNamePart::Identifier(ident) = part else { return Ok(None) };
            parts.push(match ident.quote_style {
                Some(_) => ident.value.clone(),
                None => ident.value.to_lowercase(),
            });
        }
        let Some(last) = parts.pop() else { return Ok(None) };
        let (table, at) = split_name(&last)?;
        let (table, at) = (table.to_owned(), at);
        // A metadata table is named by one word, which holds a dollar sign.
        let first = parts.first().or(Some(&table).filter(|table| table.contains('$')));
        let of_catalog = first.is_some_and(|first| (self.is_catalog)(first));
        parts.push(table);
        if !of_catalog && at.is_none() {
            return Ok(None);
        }
        if !of_catalog && parts.len() > 1 {
            return Err(Error::query(format!(
                "{:?} is no registered Iceberg catalog, so {} has no history to travel in; register it with \
                 session.register_iceberg({:?}, {{…}})",
                parts[0],
                parts.join("."),
                parts[0]
            )));
        }
        let at = at.unwrap_or_default();
        let key = lake_key(&parts, &at);
        Ok(Some(LakeName { parts, at, key }))
    }
}

/// The name under which a table at a point of its history is registered.
fn lake_key(parts: &[String], at: &TravelTo) -> String {
    let quoted: Vec<String> = parts
        .iter()
        .map(|part| if part.contains('.') { quote_identifier(part) } else { part.clone() })
        .collect();
    format!("{}{at}", quoted.join("."))
}

impl VisitorMut for TableFinder<'_> {
    type Break = Error;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        let TableFactor::Table { name, alias, .. } = factor else {
            return ControlFlow::Continue(());
        };
        let lake = match self.lake(name) {
            Ok(Some(lake)) => lake,
            Ok(None) => return ControlFlow::Continue(()),
            Err(error) => return ControlFlow::Break(error),
        };
        if alias.is_none() {
            // Columns may be qualified by the table's own name: SELECT t.id FROM lake.ns.t.
            let table = lake.parts.last().cloned().unwrap_or_default();
            *alias = Some(TableAlias {
                explicit: true,
                name: Ident::with_quote('"', table),
                columns: Vec::new(),
            });
        }
        let key = Ident::with_quote('"', lake.key.clone());
        *name = ObjectName::from(vec![Ident::with_quote('"', LAKE_SCHEMA), key]);
        if !self.lakes.contains(&lake) {
            self.lakes.push(lake);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<Error> {
        if let ast::Expr::Function(function) = expr
            && let Some(filter) = function.filter.take()
        {
            // The engine counts rows for which it is NULL.
            let condition = Box::new(ast::Expr::Nested(filter));
            function.filter = Some(Box::new(ast::Expr::IsTrue(condition)));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<Error> {
        if let [ObjectNamePart::Identifier(Ident { value, quote_style: Some('\''), .. })] =
            relation.0.as_slice()
        {
            let path = value.clone();
            if !self.paths.contains(&path) {
                self.paths.push(path.clone());
            }
            *relation = ObjectName::from(vec![
                Ident::with_quote('"', PATH_SCHEMA),
                Ident::with_quote('"', path),
            ]);
        }
        ControlFlow::Continue(())
    }
}
