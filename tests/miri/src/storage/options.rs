//! Which options are secrets, in short.

pub(super) fn is_flag(value: &str) -> bool {
    matches!(value, "true" | "false")
}

pub(super) fn is_secret(name: &str) -> bool {
    ["secret", "key", "token"].iter().any(|part| name.contains(part))
}
