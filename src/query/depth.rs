//! SQL that is nested so deeply that planning it would overflow the stack, told from its tokens.
//!
//! The parser has a limit for brackets. Chains (`a AND b AND …`, `t JOIN u JOIN …`) it reads in a
//! loop, and makes a tree of them that is as deep as they are long. Planning, optimising and even
//! freeing that tree recurses once per level; a stack overflow there ends the process. So it must
//! not be made.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::{Error, Result};

/// Operators above each other in an expression. The stack of a process's first thread, 8 MiB, holds
/// more than 1,300.
const MOST_OPERATORS: usize = 1000;

/// Joins, set operations and common table expressions of a statement. The same stack holds more
/// than 300.
const MOST_RELATIONS: usize = 300;

/// Levels for which a common table expression counts, and a query over another one: such ones planned
/// within each other take that much more.
pub(super) const TABLE_EXPRESSION: usize = 3;

/// Brackets within each other beyond which the parser refuses the text by itself, and much beyond.
const PARSED_BRACKETS: usize = 500;

/// Operator counts between two brackets, so far.
#[derive(Clone, Copy, Default)]
struct Level {
    /// Operators of the expression in progress: `OR`, `AND` since the last of them, and other
    /// operators since the last of both. They bind in this order, so operands between two of the
    /// weaker ones are beside each other, not above.
    operators: [usize; 3],
    /// Whether commas separate relations.
    is_from: bool,
}

/// Refuses text with chains that are too long. Text that is no SQL passes: the parser reports its
/// errors. Returns the relations that count towards [`check_relations`].
///
/// # Errors
/// `Query`.
pub(super) fn check_depth(sql: &str) -> Result<usize> {
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, sql).tokenize() else { return Ok(0) };
    let mut levels = vec![Level::default()];
    let mut relations = 0;
    let mut after_as = false;
    for token in &tokens {
        match token {
            Token::LParen => {
                // `name AS (…)`: a common table expression, which may read the one before it.
                relations += if after_as { TABLE_EXPRESSION } else { 0 };
                levels.push(Level::default());
            }
            Token::LBracket => {
                // `a[1][2]`: the second one goes on above the first.
                if let Some(level) = levels.last_mut() {
                    level.operators[2] += 1;
                }
                levels.push(Level::default());
            }
            Token::RParen | Token::RBracket if levels.len() > 1 => {
                levels.pop();
            }
            _ => {}
        }
        if !matches!(token, Token::Whitespace(_)) {
            after_as = matches!(token, Token::Word(word) if word.keyword == Keyword::AS);
        }
        if levels.len() > PARSED_BRACKETS {
            return Ok(relations);
        }
        let Some(level) = levels.last_mut() else { break };
        match token {
            Token::Whitespace(_) | Token::EOF => continue,
            // Counted above.
            Token::LParen | Token::RParen | Token::LBracket | Token::RBracket => {}
            Token::Comma if level.is_from => relations += 1,
            Token::Comma | Token::SemiColon => level.operators = [0; 3],
            Token::Word(word) if word.quote_style.is_none() => match word.keyword {
                Keyword::FROM => *level = Level { operators: [0; 3], is_from: true },
                Keyword::SELECT
                | Keyword::WHERE
                | Keyword::HAVING
                | Keyword::QUALIFY
                | Keyword::GROUP
                | Keyword::ORDER
                | Keyword::WINDOW
                | Keyword::LIMIT => {
                    *level = Level::default();
                }
                Keyword::WHEN | Keyword::THEN | Keyword::ON => level.operators = [0; 3],
                Keyword::JOIN
                | Keyword::UNION
                | Keyword::INTERSECT
                | Keyword::EXCEPT
                | Keyword::WITH => {
                    relations += 1;
                }
                Keyword::OR => level.operators = [level.operators[0] + 1, 0, 0],
                Keyword::AND => level.operators = [level.operators[0], level.operators[1] + 1, 0],
                Keyword::ELSE
                | Keyword::NOT
                | Keyword::IS
                | Keyword::BETWEEN
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::SIMILAR
                | Keyword::AT
                | Keyword::COLLATE
                | Keyword::IN
                | Keyword::DIV
                | Keyword::XOR => {
                    level.operators[2] += 1;
                }
                _ => continue,
            },
            Token::Word(_) | Token::Number(..) | Token::SingleQuotedString(_) | Token::Period => {
                continue;
            }
            _ => level.operators[2] += 1,
        }
        let depth: usize = levels.iter().flat_map(|level| level.operators).sum();
        if depth > MOST_OPERATORS {
            return Err(Error::query(format!(
                "an expression has more than {MOST_OPERATORS} operators in one chain; write a long list as x IN (…), or \
                 register its values as a table and join that"
            )));
        }
        check_relations(relations)?;
    }
    Ok(relations)
}

/// Refuses more relations than the stack holds.
///
/// # Errors
/// `Query`.
pub(super) fn check_relations(relations: usize) -> Result<()> {
    if relations <= MOST_RELATIONS {
        return Ok(());
    }
    Err(Error::query(format!(
        "the statement has more than {MOST_RELATIONS} joins, set operations and relations; register the files of \
         a long UNION ALL as one table, or the rows of an intermediate query with session.register_table"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_chains_are_refused_and_long_lists_are_not() {
        let many = |part: &str| part.repeat(20_000);
        for chain in [
            format!("SELECT 1 WHERE 1 = 1{}", many(" AND 1 = 1")),
            format!("1 = 1{}", many(" OR 1 = 1")),
            format!("SELECT 1{}", many(" + 1")),
            format!("SELECT 1{}", many("::INT")),
            format!("SELECT x{} FROM t", many(" IS NULL")),
            format!("SELECT x{} FROM t", many("[1]")),
            format!("SELECT 1{}", many(" UNION ALL SELECT 1")),
            format!("SELECT 1 FROM t{}", many(", t")),
            format!("SELECT 1 FROM t{}", many(" CROSS JOIN t")),
            format!("WITH a AS (SELECT 1){} SELECT 1", many(", b AS (SELECT 1 FROM a)")),
        ] {
            assert!(check_depth(&chain).is_err(), "{}", &chain[..60]);
        }
        let listed: Vec<String> = (0..20_000).map(|n| format!("a + {n} AS c{n}")).collect();
        let numbers: Vec<String> = (0..20_000).map(|n| format!("-{n}")).collect();
        let cases: String = (0..20_000).map(|n| format!(" WHEN a = {n} THEN {n}")).collect();
        for flat in [
            format!("SELECT {} FROM t", listed.join(", ")),
            format!("SELECT a FROM t WHERE a IN ({})", numbers.join(", ")),
            format!("SELECT CASE{cases} END FROM t"),
            format!("a > 1{}", " OR a = 1 AND b > 2 AND NOT isnan(b + 1)".repeat(900)),
            "SELECT 'unfinished".to_owned(),
        ] {
            assert!(check_depth(&flat).is_ok(), "{}", &flat[..20]);
        }
    }

    #[test]
    fn brackets_do_not_hide_a_chain() {
        let chain = |inner: &str| format!("({inner}{})", " + 1".repeat(400));
        assert!(check_depth(&chain(&chain("1"))).is_ok());
        let nested = format!("1{}", format!(" + (1{}", " + 1".repeat(400)).repeat(3));
        assert!(check_depth(&nested).is_err());
    }
}
