//! Regular expressions that DataFusion 53 takes for a LIKE, an equality or an IN list that says something else: `~* '^a$'` of which the
//! case counts, `'a\\b'` whose backslash becomes an escape, and `'.*'`.

/// A group without text: no pattern that begins so is taken for something else, and it matches what it did.
const NOTHING: &str = "()";

/// A pattern that means the same and is left as it is; None where there is no need.
pub(super) fn kept(pattern: &str, ignores_case: bool) -> Option<String> {
    let ends = |of: [&str; 2]| of.iter().any(|end| pattern.contains(end));
    let is_whole = ends(["^", r"\A"]) && ends(["$", r"\z"]);
    let may_be_backslash = [r"\\", r"\x", r"\u", r"\U"].iter().any(|odd| pattern.contains(odd));
    let is_odd = pattern == ".*" || ignores_case && is_whole || may_be_backslash;
    (is_odd && !pattern.starts_with(NOTHING)).then(|| format!("{NOTHING}{pattern}"))
}
