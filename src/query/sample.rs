//! `FROM t TABLESAMPLE BERNOULLI (10) REPEATABLE (7)`: rows kept by their numbers, the same in
//! every process.
//!
//! DataFusion's planner passes over the clause. So it is taken out of the statement, and the
//! table's name becomes one in [`SAMPLE_SCHEMA`] that encodes the table and the sample.

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, ObjectNamePart, Query, TableAlias, TableFactor, TableSample,
    TableSampleKind, TableSampleMethod, TableSampleUnit, Value, ValueWithSpan, VisitMut,
    VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer, Word};

use crate::{Error, Result};

/// The schema of sampled tables, under the names that [`SampleName`] writes.
pub const SAMPLE_SCHEMA: &str = "sample";

/// The schema of names that have none.
const DEFAULT_SCHEMA: &str = "public";

/// How to write it, for errors.
const EXAMPLE: &str = "write TABLESAMPLE BERNOULLI (10) REPEATABLE (7)";

/// A sampled table, as a name.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleName {
    /// Percentage of the rows that are kept, each independently; in 0..=100.
    pub percent: f64,
    /// Another seed gives an independent sample.
    pub seed: u64,
    /// The schema of the table that is sampled.
    pub schema: String,
    /// Its name there.
    pub table: String,
}

impl fmt::Display for SampleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}.{}", self.percent, self.seed, self.schema, self.table)
    }
}

impl SampleName {
    /// Parses the text that [`Display`](fmt::Display) wrote; None for other text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        let (percent, seed, name) = (parts.next()?, parts.next()?, parts.next()?);
        let (schema, table) = name.split_once('.')?;
        Some(Self {
            percent: percent.parse().ok()?,
            seed: seed.parse().ok()?,
            schema: schema.to_owned(),
            table: table.to_owned(),
        })
    }
}

/// The SQL with each sample clause behind the table's alias, where the parser wants it and the
/// standard has it: `t TABLESAMPLE … AS x`, as Spark and Hive write it, becomes `t AS x TABLESAMPLE
/// …`. None where it has none such.
pub fn alias_first(sql: &str) -> Option<String> {
    if !sql.to_uppercase().contains("TABLESAMPLE") {
        return None;
    }
    // SQL that does not split into tokens does not parse either, and the parser says it better.
    let tokens = Tokenizer::new(&GenericDialect {}, sql).with_unescape(false).tokenize().ok()?;
    let mut out: Vec<Token> = Vec::with_capacity(tokens.len());
    let (mut at, mut found) = (0, false);
    while at < tokens.len() {
        if let Some((clause, alias)) =
            is_word(&tokens[at], &["TABLESAMPLE"]).then(|| clause_and_alias(&tokens, at)).flatten()
        {
            let space =
                || Token::Whitespace(datafusion::sql::sqlparser::tokenizer::Whitespace::Space);
            out.extend_from_slice(&tokens[clause..alias]);
            out.push(space());
            out.extend_from_slice(&tokens[at..clause]);
            out.push(space());
            (at, found) = (alias, true);
        } else {
            out.push(tokens[at].clone());
            at += 1;
        }
    }
    found.then(|| out.iter().map(ToString::to_string).collect())
}

/// Start and end of the alias after a sample clause that begins at the token `start`.
fn clause_and_alias(tokens: &[Token], start: usize) -> Option<(usize, usize)> {
    let mut at = next(tokens, start)?;
    if matches!(tokens[at], Token::Word(_)) {
        at = next(tokens, at)?;
    }
    at = next(tokens, group(tokens, at)?)?;
    if is_word(&tokens[at], &["REPEATABLE", "SEED"]) {
        at = next(tokens, group(tokens, next(tokens, at)?)?)?;
    }
    let alias = at;
    if !is_word(&tokens[at], &["AS"]) {
        return None;
    }
    let name = next(tokens, alias)?;
    let Token::Word(_) = tokens[name] else { return None };
    // `AS x (a, b)` names the columns too.
    let end = next(tokens, name).and_then(|at| group(tokens, at)).unwrap_or(name);
    Some((alias, end + 1))
}

/// Where the group in parentheses that begins at a token ends.
fn group(tokens: &[Token], start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return (at > start).then_some(at);
        }
    }
    None
}

fn is_word(token: &Token, words: &[&str]) -> bool {
    matches!(token, Token::Word(Word { value, quote_style: None, .. })
        if words.iter().any(|word| value.eq_ignore_ascii_case(word)))
}

/// The token after `at` that is no white space.
fn next(tokens: &[Token], at: usize) -> Option<usize> {
    (at + 1..tokens.len()).find(|at| !matches!(tokens[*at], Token::Whitespace(_)))
}

/// Moves the sample clauses of a statement, whose paths and catalog tables have been replaced, into
/// the tables' names.
///
/// # Errors
/// `Query` for a sample that would differ between processes, and for a sample of a relation that is
/// no table.
pub fn take_samples(query: &mut Query) -> Result<()> {
    let mut finder = SampleFinder::default();
    match VisitMut::visit(query, &mut finder) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

#[derive(Default)]
struct SampleFinder {
    /// Names of WITH, of the whole statement.
    ctes: HashSet<String>,
}

impl VisitorMut for SampleFinder {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let with = query.with.iter().flat_map(|with| &with.cte_tables);
        self.ctes.extend(with.map(|cte| folded(&cte.alias.name)));
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        match self.take(factor) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl SampleFinder {
    fn take(&self, factor: &mut TableFactor) -> Result<()> {
        let (name, alias, args, sample) = match factor {
            TableFactor::Table { name, alias, args, sample, .. } => (name, alias, args, sample),
            TableFactor::Derived { sample: Some(_), .. } => return Err(no_table("a subquery")),
            _ => return Ok(()),
        };
        let clause = match sample.take() {
            Some(
                TableSampleKind::BeforeTableAlias(clause)
                | TableSampleKind::AfterTableAlias(clause),
            ) => clause,
            None => return Ok(()),
        };
        let (percent, seed) = read(&clause)?;
        if args.is_some() {
            return Err(no_table(&format!("the table function {name}")));
        }
        let mut parts = Vec::with_capacity(name.0.len());
        for part in &name.0 {
            let ObjectNamePart::Identifier(ident) = part else {
                return Err(no_table(&name.to_string()));
            };
            parts.push(folded(ident));
        }
        let table = parts.pop().unwrap_or_default();
        if parts.is_empty() && self.ctes.contains(&table) {
            return Err(no_table(&format!("{table:?}, a part of WITH,")));
        }
        let schema = match parts.len() {
            0 => DEFAULT_SCHEMA.to_owned(),
            _ => parts.split_off(parts.len() - 1).remove(0),
        };
        if alias.is_none() {
            // Columns may be qualified by the table's own name.
            *alias = Some(TableAlias {
                explicit: true,
                name: Ident::with_quote('"', table.clone()),
                columns: Vec::new(),
            });
        }
        let sampled = SampleName { percent, seed, schema, table };
        *name = ObjectName::from(vec![
            Ident::with_quote('"', SAMPLE_SCHEMA),
            Ident::with_quote('"', sampled.to_string()),
        ]);
        Ok(())
    }
}

/// The percentage and the seed of a clause.
fn read(clause: &TableSample) -> Result<(f64, u64)> {
    let refuse = |what: String| Err(Error::query(what));
    if clause.bucket.is_some() {
        return refuse(format!(
            "TABLESAMPLE (BUCKET … OUT OF …) is not supported; {EXAMPLE}, which keeps each row with a probability"
        ));
    }
    match clause.name {
        Some(TableSampleMethod::Bernoulli) => {}
        Some(method) => {
            return refuse(format!(
                "TABLESAMPLE {method} is not supported, because it samples blocks or a number of rows, which depend on \
                 how files are read; {EXAMPLE}, which keeps each row with a probability"
            ));
        }
        None => return refuse(format!("TABLESAMPLE needs a method; {EXAMPLE}")),
    }
    let Some(quantity) = &clause.quantity else {
        return refuse(format!("TABLESAMPLE BERNOULLI needs a percentage; {EXAMPLE}"));
    };
    if quantity.unit == Some(TableSampleUnit::Rows) {
        return refuse(format!(
            "TABLESAMPLE BERNOULLI ({} ROWS) is not supported, because how many rows there are is not known before they \
             are read; give a percentage: {EXAMPLE}",
            quantity.value
        ));
    }
    if clause.offset.is_some() {
        return refuse(format!("TABLESAMPLE … OFFSET is not supported; {EXAMPLE}"));
    }
    let percent = match &quantity.value {
        Expr::Value(ValueWithSpan { value: Value::Number(text, _), .. }) => text.parse().ok(),
        _ => None,
    };
    let percent = match percent {
        Some(percent) if (0.0..=100.0).contains(&percent) => percent,
        _ => {
            return refuse(format!(
                "TABLESAMPLE BERNOULLI ({}): the percentage must be a number in 0..=100, for example (10) or (0.5)",
                quantity.value
            ));
        }
    };
    let Some(seed) = &clause.seed else {
        return refuse(format!(
            "TABLESAMPLE BERNOULLI ({}) takes another sample in every process, so ranks and resumed runs would disagree; \
             add a seed: TABLESAMPLE BERNOULLI ({}) REPEATABLE (7)",
            quantity.value, quantity.value
        ));
    };
    match &seed.value {
        Value::Number(text, _) if text.parse::<u64>().is_ok() => {
            Ok((percent, text.parse().unwrap_or_default()))
        }
        other => refuse(format!(
            "REPEATABLE ({other}): the seed must be a whole number in 0..={}",
            u64::MAX
        )),
    }
}

fn no_table(what: &str) -> Error {
    Error::query(format!(
        "TABLESAMPLE keeps rows by their numbers in a table's files, which the rows of {what} do not have; sample the \
         tables inside it: FROM t TABLESAMPLE BERNOULLI (10) REPEATABLE (7)"
    ))
}

/// The error for a view, which is found out when its name is looked up.
pub fn view_is_no_table(name: &str) -> Error {
    no_table(&format!("the view {name:?}"))
}

/// A name as SQL reads it.
fn folded(ident: &Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_move_before_clauses() {
        let words = |sql: String| sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let moved = |sql| words(alias_first(sql).unwrap_or_default());
        assert_eq!(
            moved(
                "SELECT 'it''s' FROM t tablesample bernoulli (10) REPEATABLE (7) AS x JOIN u ON true"
            ),
            "SELECT 'it''s' FROM t AS x tablesample bernoulli (10) REPEATABLE (7) JOIN u ON true"
        );
        assert_eq!(
            moved("SELECT * FROM t TABLESAMPLE BERNOULLI (1.5) REPEATABLE (7) AS \"X\" (a, b)"),
            "SELECT * FROM t AS \"X\" (a, b) TABLESAMPLE BERNOULLI (1.5) REPEATABLE (7)"
        );
        assert_eq!(
            moved("FROM t TABLESAMPLE SYSTEM (1) AS x"),
            "FROM t AS x TABLESAMPLE SYSTEM (1)"
        );
        for same in [
            "SELECT * FROM t AS x TABLESAMPLE BERNOULLI (10) REPEATABLE (7)",
            "SELECT * FROM t TABLESAMPLE BERNOULLI (10) REPEATABLE (7) WHERE a = 1",
            "SELECT sample AS x FROM t",
            "SELECT sample (1) AS x FROM t TABLESAMPLE SYSTEM (1)",
        ] {
            assert_eq!(alias_first(same), None, "{same}");
        }
    }

    #[test]
    fn names_are_read_back() {
        let name = SampleName {
            percent: 0.125,
            seed: u64::MAX,
            schema: "path".into(),
            table: "a b/c.d/*.parquet".into(),
        };
        assert_eq!(SampleName::parse(&name.to_string()), Some(name));
        assert_eq!(SampleName::parse("10 7"), None);
    }
}
