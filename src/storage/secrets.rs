//! The secrets that this process was given, so that no message shows one, whoever repeats it:
//! stores answer with the key that they refuse, and gateways with the whole request.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::Value;

use super::options::{is_flag, is_secret};

/// Shorter values are words or numbers of a message, more likely than secrets in it.
const SHORTEST: usize = 4;

/// One secret in one spelling. The list only grows, by a few entries for each store: a lock would
/// not survive a fork.
struct Noted {
    secret: String,
    next: *const Noted,
}

static NOTED: AtomicPtr<Noted> = AtomicPtr::new(ptr::null_mut());

/// Notes the secrets among options: secret values, and passwords in URLs.
pub(crate) fn note_secrets(options: &BTreeMap<String, String>) {
    for (name, value) in options {
        if is_secret(name) && !is_flag(value) {
            note_parts(value);
        } else if let Some((before, _)) = value.split_once("://") {
            // Metastores may be several, each by its own URL.
            let urls = value.split(',').map(|url| match url.contains("://") {
                true => url.trim().to_owned(),
                false => format!("{before}://{}", url.trim()),
            });
            urls.for_each(|url| passwords_of(&url).for_each(note));
        }
    }
}

/// A secret, and its parts if it is a document: keys of a service account, pairs of a query or of a
/// connection string.
fn note_parts(value: &str) {
    if let Ok(Value::Object(fields)) = serde_json::from_str(value) {
        let strings = fields.iter().filter_map(|(name, value)| Some((name, value.as_str()?)));
        strings.filter(|(name, _)| is_secret(name)).for_each(|(_, value)| note(value));
    }
    for pair in value.trim_start_matches('?').split(['&', ';']) {
        if let Some((name, value)) = pair.split_once('=')
            && (is_secret(name) || name.eq_ignore_ascii_case("sig"))
        {
            note(value);
        }
    }
    note(value);
}

/// Notes a secret in the spellings in which an answer may repeat it.
fn note(secret: &str) {
    if secret.len() < SHORTEST {
        return;
    }
    let decoded = percent_decode_str(secret).decode_utf8().unwrap_or_default();
    let encoded = utf8_percent_encode(&decoded, NON_ALPHANUMERIC).to_string();
    let escaped = secret.escape_default().to_string();
    let in_xml = secret.replace('&', "&amp;").replace('+', "&#43;").replace('"', "&#34;");
    for spelling in [secret.to_owned(), decoded.into_owned(), encoded, escaped, in_xml] {
        if spelling.len() >= SHORTEST && !all().any(|noted| noted == spelling) {
            push(spelling);
        }
    }
}

fn push(secret: String) {
    let entry = Box::into_raw(Box::new(Noted { secret, next: ptr::null() }));
    let mut head = NOTED.load(Ordering::Acquire);
    loop {
        // SAFETY: the entry was just made here, and nobody else has seen it.
        unsafe { (*entry).next = head };
        match NOTED.compare_exchange_weak(head, entry, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(newer) => head = newer,
        }
    }
}

fn all() -> impl Iterator<Item = &'static str> {
    let mut at: *const Noted = NOTED.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: entries come from `Box::into_raw` in `push`, are never freed, and never change
        // once they are seen.
        let noted = unsafe { at.as_ref() }?;
        at = noted.next;
        Some(noted.secret.as_str())
    })
}

/// `text` without any secret that was noted.
pub fn scrub(text: &str) -> String {
    let mut found: Vec<&str> = all().filter(|secret| text.contains(secret)).collect();
    // The longest first, so that no rest of a secret remains beside a shorter one.
    found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    found.into_iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
}

/// The passwords of `https://user:password@host/` and of
/// `postgresql://host/database?password=password`.
fn passwords_of(url: &str) -> impl Iterator<Item = &str> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let authority = address.split_once("://").and_then(|(_, rest)| rest.split('/').next());
    let user = authority.and_then(|authority| authority.rsplit_once('@'));
    let own = user.and_then(|(user, _)| user.split_once(':')).map(|(_, password)| password);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    own.into_iter().chain(pairs.filter(|(name, _)| is_secret(name)).map(|(_, value)| value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_not_shown_in_any_spelling() {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let options = [
            ("aws_secret_access_key", "planted/secret+one"),
            ("azure_storage_sas_token", "?sv=2021&sig=planted%2Btwo%3D"),
            ("google_service_account_key", r#"{"private_key": "planted\nthree", "type": "x"}"#),
            ("aws_endpoint", "http://me:plantedfour@127.0.0.1:9000"),
            ("uri", "thrift://one:9083,me:plantedfive@two:9083"),
            ("url", "postgresql://host/database?user=me&password=plantedsix"),
            ("aws_region", "not-planted"),
        ];
        note_secrets(&options.iter().map(own).collect());
        for shown in [
            "planted/secret+one",
            "planted%2Fsecret%2Bone",
            "planted/secret&#43;one",
            "planted+two=",
            "planted%2Btwo%3D",
            "planted\nthree",
            "planted\\nthree",
            "me:plantedfour@",
            "me:plantedfive@",
            "password=plantedsix",
        ] {
            let text = scrub(&format!("before {shown} after"));
            assert!(!text.contains("planted"), "{text}");
            assert!(text.starts_with("before ") && text.ends_with(" after"), "{text}");
        }
        assert_eq!(scrub("region not-planted, 2021"), "region not-planted, 2021");
    }
}
