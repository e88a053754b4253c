//! Forms that the parser does not know, rewritten in the text before it is parsed.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer, Word};

/// The SQL without `MATERIALIZED` and `NOT MATERIALIZED` behind the AS of a part of WITH: they
/// change no row. None where it has none such.
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

/// The SQL with each of `GROUPING SETS (a, (b, c))` in brackets, as the parser wants them:
/// `GROUPING SETS ((a), (b, c))`. None where they all are.
pub(in crate::query) fn with_bracketed_sets(sql: &str) -> Option<String> {
    if !sql.to_uppercase().contains("GROUPING") {
        return None;
    }
    let mut tokens =
        Tokenizer::new(&GenericDialect {}, sql).with_unescape(false).tokenize().ok()?;
    let is_space = |token: &Token| matches!(token, Token::Whitespace(_));
    let words: Vec<usize> = (0..tokens.len()).filter(|at| !is_space(&tokens[*at])).collect();
    let mut brackets = Vec::new();
    for places in words.windows(3) {
        if let [grouping, sets, open] = *places
            && is_word(&tokens[grouping], "GROUPING")
            && is_word(&tokens[sets], "SETS")
            && tokens[open] == Token::LParen
        {
            brackets.extend(bare_sets(&tokens, open + 1)?);
        }
    }
    if brackets.is_empty() {
        return None;
    }
    brackets.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
    for (at, bracket) in brackets {
        tokens.insert(at, bracket);
    }
    Some(tokens.iter().map(Token::to_string).collect())
}

/// Where brackets are missing around the sets that begin at a token; None where the list does not
/// end.
fn bare_sets(tokens: &[Token], begin: usize) -> Option<Vec<(usize, Token)>> {
    let mut brackets = Vec::new();
    let (mut depth, mut first, mut is_bare) = (0, None, false);
    for (at, token) in tokens.iter().enumerate().skip(begin) {
        match token {
            Token::Whitespace(_) => continue,
            Token::Comma | Token::RParen if depth == 0 => {
                if let Some(first) = first.take().filter(|_| is_bare) {
                    brackets.extend([(first, Token::LParen), (at, Token::RParen)]);
                }
                is_bare = false;
                if *token == Token::RParen {
                    return Some(brackets);
                }
                continue;
            }
            // `(a) + 1` begins with a bracket, and is none.
            Token::LParen => is_bare |= depth == 0 && first.is_some(),
            Token::RParen => {}
            _ => is_bare |= depth == 0,
        }
        first.get_or_insert(at);
        match token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
    }
    None
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
    fn each_grouping_set_has_brackets() {
        let bracketed = |sql| {
            let rewritten = with_bracketed_sets(sql);
            rewritten.map(|sql| sql.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        for (sql, expected) in [
            ("GROUPING SETS (a, (b, c), ())", "GROUPING SETS ((a), (b, c), ())"),
            ("grouping sets ( f(a, b) , (a) + 1)", "grouping sets ( (f(a, b) ), ((a) + 1))"),
            (
                "GROUPING SETS ((a), b), GROUPING SETS (c)",
                "GROUPING SETS ((a), (b)), GROUPING SETS ((c))",
            ),
        ] {
            assert_eq!(bracketed(sql), Some(expected.to_owned()), "{sql}");
        }
        for same in
            ["GROUPING SETS ((a), (b, c), ())", "SELECT 'GROUPING SETS (a)'", "GROUPING SETS (a"]
        {
            assert_eq!(bracketed(same), None, "{same}");
        }
    }

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
