//! The names under which a stage's files lie. Only what bears one of them is ever removed.

use crate::storage::{is_decimal, is_digest, is_hexadecimal};

/// The folder of the stages in the user's place.
pub(super) const ROOM: &str = "queries";

/// Returns true if a folder is one of ours by its name.
pub(super) fn is_key(name: &str) -> bool {
    is_digest(name)
}

/// Returns true for the folder of a build.
pub(super) fn is_build(name: &str) -> bool {
    let parts = name.strip_prefix("build-").map(|rest| rest.split('-'));
    parts.is_some_and(|mut parts| parts.clone().count() == 3 && parts.all(is_hexadecimal))
}

/// Returns true for a file in the folder of a build.
pub(super) fn is_part(name: &str) -> bool {
    let name = finished(name);
    let number = name
        .strip_prefix("part-")
        .and_then(|rest| rest.strip_suffix(".arrow").or_else(|| rest.strip_suffix(".parquet")));
    name == crate::formats::ipc::SUSPECT || number.is_some_and(is_decimal)
}

/// Returns true for a file beside the folders of builds.
pub(super) fn is_note(name: &str) -> bool {
    matches!(
        finished(name),
        "manifest.json" | "lease.json" | "progress.json" | "used" | super::verify::VERIFIED
    )
}

/// A name without the number that the local store appends as long as it writes a file.
fn finished(name: &str) -> &str {
    match name.rsplit_once('#') {
        Some((finished, number)) if is_decimal(number) => finished,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_are_ours() {
        assert!(is_build("build-18f2-1a-0") && is_part("part-00012.arrow"));
        assert!(is_part("part-00000.arrow#1") && is_part("part-00000.parquet"));
        assert!(is_note("manifest.json") && is_note("used#2") && is_key(&"0".repeat(64)));
        for name in
            ["build-", "build-x-1-2", "build-1-2", "build-1-2-3-4", "builds", "part-1.arrow"]
        {
            assert!(!is_build(name), "{name}");
        }
        for name in
            ["part-.arrow", "part-1.csv", "a.parquet", "part-x.parquet", "part-1.arrow#", ""]
        {
            assert!(!is_part(name), "{name}");
        }
        for name in ["manifest.json.bak", "data", "#1", "part-1.arrow"] {
            assert!(!is_note(name), "{name}");
        }
        assert!(!is_key(&"A".repeat(64)) && !is_key("queries"));
    }
}
