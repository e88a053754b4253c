//! Regular expressions are not rewritten: DataFusion 53 takes some for a LIKE, an equality or an IN
//! list that says something else, as `~* '^a$'`, of which the case counts, `'a\\\\b'`, whose
//! backslash becomes an escape, and `'.*'`.
//!
//! Upstream: apache/datafusion#22726.

/// A group without text: no pattern that begins with it is rewritten, and it matches as before.
const NOTHING: &str = "()";

/// An equivalent pattern that is not rewritten; None if it is one already.
pub(in crate::query) fn kept(pattern: &str) -> Option<String> {
    (!pattern.starts_with(NOTHING)).then(|| format!("{NOTHING}{pattern}"))
}
