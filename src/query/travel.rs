//! Time travel: `FROM t FOR VERSION AS OF 123`, `TIMESTAMP AS OF '…'`, as Spark, Trino and
//! Databricks write it.
//!
//! The SQL parser knows no such clause in the dialect used here. So the clause is taken out of the
//! token stream, and its table's name carries it until the statement is parsed.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer, Word};

use crate::iceberg::TravelTo;
use crate::{Error, Result};

/// Between a table's name and the point in its history; no identifier holds it.
const MARK: char = '\u{1}';

/// The SQL with each clause moved into its table's name; None where it has none.
///
/// # Errors
/// `Query` for a clause without a value.
pub fn take_clauses(sql: &str) -> Result<Option<String>> {
    let upper = sql.to_uppercase();
    if !upper.contains("OF") || !(upper.contains("VERSION") || upper.contains("TIME")) {
        return Ok(None);
    }
    // SQL that does not split into tokens does not parse either, and the parser says it better.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, sql).with_unescape(false).tokenize() else {
        return Ok(None);
    };
    let mut out: Vec<Token> = Vec::with_capacity(tokens.len());
    let mut found = false;
    let mut at = 0;
    while at < tokens.len() {
        match clause(&tokens, at) {
            Some((kind, value_at)) if named(&out) => {
                let (travel, next) = value(&tokens, kind, value_at)?;
                mark(&mut out, &travel)?;
                found = true;
                at = next;
            }
            _ => {
                out.push(tokens[at].clone());
                at += 1;
            }
        }
    }
    Ok(found.then(|| out.iter().map(ToString::to_string).collect()))
}

#[derive(Clone, Copy)]
enum Kind {
    Version,
    Time,
}

/// Whether `[FOR] VERSION AS OF` or the like starts at a token, and where its value begins.
fn clause(tokens: &[Token], at: usize) -> Option<(Kind, usize)> {
    let mut at = at;
    if word(tokens.get(at)?)? == "FOR" {
        at = next(tokens, at)?;
    }
    let kind = match word(tokens.get(at)?)?.as_str() {
        "VERSION" | "SYSTEM_VERSION" => Kind::Version,
        "TIMESTAMP" | "SYSTEM_TIME" => Kind::Time,
        _ => return None,
    };
    at = next(tokens, at)?;
    if word(&tokens[at])? != "AS" {
        return None;
    }
    at = next(tokens, at)?;
    if word(&tokens[at])? != "OF" {
        return None;
    }
    Some((kind, next(tokens, at).unwrap_or(tokens.len())))
}

/// The point in history, and where the clause ends.
fn value(tokens: &[Token], kind: Kind, at: usize) -> Result<(TravelTo, usize)> {
    let mut at = at;
    if matches!(kind, Kind::Time)
        && tokens.get(at).and_then(word).is_some_and(|word| word == "TIMESTAMP")
    {
        at = next(tokens, at).unwrap_or(tokens.len());
    }
    let travel = match (kind, tokens.get(at)) {
        (Kind::Version, Some(Token::Number(text, _))) => match text.parse() {
            Ok(id) => TravelTo::Snapshot(id),
            Err(_) => return Err(Error::query(format!("VERSION AS OF {text}: no snapshot id"))),
        },
        (Kind::Version, Some(Token::SingleQuotedString(text))) => {
            TravelTo::version(&text.replace("''", "'"))
        }
        (Kind::Time, Some(Token::SingleQuotedString(text))) => TravelTo::time(text)?,
        (Kind::Version, _) => {
            return Err(Error::query(
                "VERSION AS OF needs a snapshot id or a version, or the name of a branch or tag in single quotes",
            ));
        }
        (Kind::Time, _) => {
            return Err(Error::query(
                "TIMESTAMP AS OF needs a time in single quotes: TIMESTAMP AS OF '2026-01-31 12:00:00'",
            ));
        }
    };
    Ok((travel, at + 1))
}

fn word(token: &Token) -> Option<String> {
    match token {
        Token::Word(Word { value, quote_style: None, .. }) => Some(value.to_uppercase()),
        _ => None,
    }
}

/// The token after `at` that is no white space.
fn next(tokens: &[Token], at: usize) -> Option<usize> {
    (at + 1..tokens.len()).find(|at| !matches!(tokens[*at], Token::Whitespace(_)))
}

/// True if the last token was a table's name, or may be one.
fn named(out: &[Token]) -> bool {
    let last = out.iter().rev().find(|token| !matches!(token, Token::Whitespace(_)));
    matches!(last, Some(Token::Word(_)))
}

/// Puts the point in history into the name that was last.
fn mark(out: &mut [Token], travel: &TravelTo) -> Result<()> {
    let last = out.iter_mut().rev().find(|token| !matches!(token, Token::Whitespace(_)));
    if let Some(Token::Word(name)) = last {
        let text = serde_json::to_string(travel)
            .map_err(|error| Error::query("a point in history has no text").with_source(error))?;
        if name.quote_style.is_none() {
            name.value = name.value.to_lowercase();
        }
        // Double quotes of the text are doubled, as inside any quoted name.
        name.value = format!("{}{MARK}{}", name.value, text.replace('"', "\"\""));
        name.quote_style = Some('"');
    }
    Ok(())
}

/// A name without the point in history that [`take_clauses`] put into it.
///
/// # Errors
/// An internal error where the mark is not of this module.
pub fn split_name(name: &str) -> Result<(&str, Option<TravelTo>)> {
    match name.split_once(MARK) {
        None => Ok((name, None)),
        Some((name, text)) => {
            let travel = serde_json::from_str(text)
                .map_err(|error| Error::query("a malformed point in history").with_source(error))?;
            Ok((name, Some(travel)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(sql: &str) -> String {
        take_clauses(sql).unwrap().unwrap_or_default().replace(MARK, "#")
    }

    #[test]
    fn clauses_move_into_names() {
        assert_eq!(
            moved("SELECT 'it''s' FROM a.T FOR VERSION AS OF 12 AS x WHERE v = 'of'"),
            "SELECT 'it''s' FROM a.\"t#{\"\"snapshot\"\":12}\"  AS x WHERE v = 'of'"
        );
        assert_eq!(
            moved("SELECT * FROM \"T\" version as of 'b' JOIN u TIMESTAMP AS OF '1970-01-02'"),
            "SELECT * FROM \"T#{\"\"reference\"\":\"\"b\"\"}\"  JOIN \"u#{\"\"time\"\":86400000}\" "
        );
        assert_eq!(take_clauses("SELECT version, version AS of FROM t").unwrap(), None);
        assert!(take_clauses("SELECT * FROM t VERSION AS OF x").is_err());
    }
}
