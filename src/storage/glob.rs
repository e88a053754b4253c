//! Path patterns, matched name by name so that hidden names stay hidden.

use glob::{MatchOptions, Pattern};

use crate::{Error, Result};

/// Every character counts, and a hidden name is this module's business, not the pattern crate's.
const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// The names of a path from the first one that holds a wildcard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    parts: Vec<Segment>,
}

/// The pattern for one name, or with `**` for any number of directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// `**`: any number of directories, none of them hidden.
    Directories,
    /// One name.
    Name(Pattern),
}

/// Returns true if a name holds a wildcard.
pub(super) fn has_wildcard(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// Returns true if readers of directories skip the name: `_SUCCESS`, `_temporary`, `.part.crc`.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with(['_', '.'])
}

impl Glob {
    /// Compiles the names of a pattern; `text` is the user's spelling, for errors.
    pub(super) fn try_new<'a>(
        names: impl IntoIterator<Item = &'a str>,
        text: &str,
    ) -> Result<Self> {
        let parts = names
            .into_iter()
            .map(|name| match name {
                "**" => Ok(Segment::Directories),
                _ if name.contains("**") => Err(Error::config(format!(
                    "bad path pattern {text:?}: \"**\" must be a whole directory name, as in \
                     \"data/**/*.parquet\", but stands in {name:?}"
                ))),
                _ => Pattern::new(name).map(Segment::Name).map_err(|error| {
                    Error::config(format!(
                        "bad path pattern {text:?}: {} in {name:?}; write [[] for a literal [",
                        error.msg
                    ))
                }),
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { parts })
    }

    /// The parts, outermost first; never empty.
    pub(super) fn parts(&self) -> &[Segment] {
        &self.parts
    }

    /// The pattern as text, relative to the directory it starts in.
    pub(super) fn text(&self) -> String {
        let names: Vec<&str> = self.parts.iter().map(Segment::as_str).collect();
        names.join("/")
    }
}

impl Segment {
    /// Returns true if one name fits. A hidden name fits only where the pattern begins with its
    /// first character: `_*` finds `_a`, and `*` does not.
    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Directories => !is_hidden(name),
            Self::Name(pattern) => {
                let named =
                    !is_hidden(name) || pattern.as_str().chars().next() == name.chars().next();
                named && pattern.matches_with(name, OPTIONS)
            }
        }
    }

    fn as_str(&self) -> &str {
        match self {
            Self::Directories => "**",
            Self::Name(pattern) => pattern.as_str(),
        }
    }
}

/// Returns true if the names of a file fit all the parts. A `**` at the end takes everything below.
pub(super) fn matches(parts: &[Segment], names: &[&str]) -> bool {
    match (parts.split_first(), names.split_first()) {
        (None, None) => true,
        (None, Some(_)) | (Some((Segment::Name(_), _)), None) => false,
        (Some((Segment::Directories, rest)), None) => matches(rest, names),
        (Some((Segment::Directories, rest)), Some((name, below))) => {
            matches(rest, names) || (!is_hidden(name) && matches(parts, below))
        }
        (Some((part, rest)), Some((name, below))) => part.matches(name) && matches(rest, below),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, path: &str) -> bool {
        let glob = Glob::try_new(pattern.split('/'), pattern).unwrap();
        let names: Vec<&str> = path.split('/').collect();
        matches(glob.parts(), &names)
    }

    #[test]
    fn a_pattern_is_matched_name_by_name() {
        assert!(fits("*.csv", "a.csv"));
        assert!(!fits("*.csv", "x/a.csv"));
        assert!(fits("year=20[0-2]?/*.csv", "year=2019/a.csv"));
        assert!(!fits("year=20[!0-2]?/*.csv", "year=2019/a.csv"));
        assert!(fits("**/*.csv", "a.csv"));
        assert!(fits("**/*.csv", "x/y/a.csv"));
        assert!(fits("**", "x/y/a.csv"));
        assert!(fits("x/**/y/**/z", "x/1/2/y/z"));
        assert!(!fits("x/**/y/**/z", "x/1/2/z"));
    }

    #[test]
    fn hidden_names_must_be_named() {
        assert!(!fits("*", "_SUCCESS"));
        assert!(!fits("**/*.csv", "x/_tmp/a.csv"));
        assert!(!fits("**", "x/.git/a"));
        assert!(!fits("?a", ".a"));
        assert!(!fits("[_]a", "_a"));
        assert!(fits("_*", "_a"));
        assert!(fits("**/.hidden/*", "x/.hidden/a"));
    }

    #[test]
    fn many_wildcards_end() {
        let pattern = "**/a/".repeat(6) + "*";
        assert!(!fits(&pattern, &("a/".repeat(5) + "b/c")));
    }

    #[test]
    fn bad_patterns_are_refused() {
        for pattern in ["a**", "[a", "***"] {
            assert!(Glob::try_new(pattern.split('/'), pattern).is_err(), "{pattern}");
        }
    }
}
