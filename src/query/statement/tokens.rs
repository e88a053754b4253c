//! Words that the parser does not know in the dialect used here, taken out of the text before it is parsed.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer, Word};

/// The SQL without `MATERIALIZED` and `NOT MATERIALIZED` behind the AS of a part of WITH: they change no row. None where it has
/// none such.
pub(in crate::query) fn without_materialized(sql: &str) -> Option<String> {
    if !sql.to_uppercase().contains("MATERIALIZED") {
        return None;
    }
    // SQL that does not split into tokens does not parse either, and the parser says it better.
    let tokens = Tokenizer::new(&GenericDialect {}, sql).with_unescape(false).tokenize().ok()?;
    let is_space = |token: &&(usize, &Token)| matches!(token.1, Token::Whitespace(_));
    let words: Vec<(usize, &Token)> =
        tokens.iter().enumerate().filter(|token| !is_space(&token)).collect();
    let mut left_out = Vec::new();
    for (at, (_, token)) in words.iter().enumerate() {
        let rest = match is_word(token, "AS") {
            true => &words[at + 1..],
            false => continue,
        };
        let (negation, rest) = match rest {
            [(at, not), rest @ ..] if is_word(not, "NOT") => (Some(*at), rest),
            rest => (None, rest),
        };
        // `FROM t AS materialized (a, b)` names a table and its columns.
        if let [(at, word), (_, Token::LParen), (_, begin), ..] = rest
            && is_word(word, "MATERIALIZED")
            && begins_query(begin)
        {
            left_out.extend(negation.into_iter().chain([*at]));
        }
    }
    if left_out.is_empty() {
        return None;
    }
    let kept = tokens.iter().enumerate().filter(|(at, _)| !left_out.contains(at));
    Some(kept.map(|(_, token)| token.to_string()).collect())
}

fn begins_query(token: &Token) -> bool {
    let words = ["SELECT", "WITH", "VALUES", "FROM", "TABLE"];
    *token == Token::LParen || words.iter().any(|word| is_word(token, word))
}

fn is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(Word { value, quote_style: None, .. }) if value.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_of_with_lose_the_word() {
        let without = |sql| {
            without_materialized(sql)
                .map(|sql| sql.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(
            without(
                "WITH a AS MATERIALIZED (SELECT 1), b (x) AS not materialized ((SELECT 2)) SELECT * FROM a, b"
            ),
            Some("WITH a AS (SELECT 1), b (x) AS ((SELECT 2)) SELECT * FROM a, b".to_owned())
        );
        for same in [
            "SELECT * FROM t AS materialized (a, b)",
            "SELECT x AS materialized FROM t",
            "SELECT 'AS MATERIALIZED (SELECT'",
        ] {
            assert_eq!(without(same), None, "{same}");
        }
    }
}
