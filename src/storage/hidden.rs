//! Errors of stores without the secrets that they may repeat.

use std::collections::BTreeMap;

use object_store::Error as StoreError;

use super::options::redact;

/// The error with the file's URL, and without secrets.
pub(super) fn hide(
    error: StoreError,
    path: String,
    secrets: &BTreeMap<String, String>,
) -> StoreError {
    match error {
        StoreError::NotFound { source, .. } => {
            StoreError::NotFound { path, source: safe(source, secrets) }
        }
        StoreError::PermissionDenied { source, .. } => {
            StoreError::PermissionDenied { path, source: safe(source, secrets) }
        }
        StoreError::Unauthenticated { source, .. } => {
            StoreError::Unauthenticated { path, source: safe(source, secrets) }
        }
        StoreError::Generic { store, source } => {
            StoreError::Generic { store, source: safe(source, secrets) }
        }
        other => other,
    }
}

/// XML elements in which S3 repeats parts of a refused request: the key, the token, and the signed
/// text.
const REPEATED: &[&str] = &[
    "AWSAccessKeyId",
    "Token-0",
    "StringToSign",
    "StringToSignBytes",
    "SignatureProvided",
    "CanonicalRequest",
    "CanonicalRequestBytes",
];

/// A store's answer without the secrets that it may repeat.
fn safe(
    source: Box<dyn std::error::Error + Send + Sync>,
    secrets: &BTreeMap<String, String>,
) -> Box<dyn std::error::Error + Send + Sync> {
    // An error of this crate holds none, and its kind and cause are kept.
    if source.is::<crate::Error>() {
        return source;
    }
    let text = source.to_string();
    let hidden = without_elements(redact(&text, secrets));
    match hidden == text {
        true => source,
        false => hidden.into(),
    }
}

fn without_elements(mut text: String) -> String {
    for name in REPEATED {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        if let Some(start) = text.find(&open).map(|at| at + open.len())
            && let Some(length) = text[start..].find(&close)
        {
            text.replace_range(start..start + length, "***");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_s3_repeats_is_hidden() {
        let text = "<Error><Code>InvalidToken</Code><Token-0>abc</Token-0>\
                    <AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        let expected = "<Error><Code>InvalidToken</Code><Token-0>***</Token-0>\
                        <AWSAccessKeyId>***</AWSAccessKeyId></Error>";
        assert_eq!(without_elements(text.to_owned()), expected);
    }
}
