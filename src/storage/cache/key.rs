//! The name of a file's version: no two contents share one.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use crate::fingerprint::Form;
use crate::storage::pin::FilePin;

/// A SHA-256. Its input cannot be read out of it, so it may be the name of a folder.
pub(super) type Key = [u8; 32];

/// A file without a strong etag is known by its time in seconds. One that was written this short a
/// time ago may be written again within the same second.
const SETTLED: Duration = Duration::from_secs(60);

/// The key of a pinned file, or None where nothing tells its version from the next one.
///
/// A strong etag and the size are an identity; so are size and time of the last write, once that is
/// a minute ago; and the size alone, for files of a `scope` in which no file is ever written twice.
pub(super) fn of(root: &str, scope: Option<&str>, pin: &FilePin, now: SystemTime) -> Option<Key> {
    let version = pin.version.as_deref().unwrap_or_default();
    let tag = pin.bare_e_tag().unwrap_or_default();
    let identity = if pin.strong_e_tag().is_some() && !tag.is_empty() {
        vec!["etag", tag, version]
    } else if let Some(modified) = pin.last_modified {
        let modified_at = SystemTime::from(modified);
        now.duration_since(modified_at).ok().filter(|age| *age >= SETTLED)?;
        return Some(digest(root, pin, &["time", &modified.timestamp().to_string(), tag, version]));
    } else {
        vec!["scope", scope?]
    };
    Some(digest(root, pin, &identity))
}

/// The key in hexadecimal digits.
pub(super) fn name(key: &Key) -> String {
    key.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn digest(root: &str, pin: &FilePin, identity: &[&str]) -> Key {
    let mut form = Form::new("cached file");
    form.text("root", root).text("path", pin.location.as_ref()).number("size", pin.size);
    identity.iter().for_each(|part| {
        form.text("version", part);
    });
    form.digest()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use object_store::path::Path;

    fn pin(e_tag: Option<&str>, seconds: Option<i64>) -> FilePin {
        FilePin {
            location: Path::from("a/b"),
            size: 7,
            last_modified: seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0)),
            e_tag: e_tag.map(str::to_owned),
            version: None,
            changed: None,
        }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn versions_have_keys_of_their_own() {
        let key = |root: &str, pin: &FilePin| of(root, None, pin, at(10_000)).unwrap();
        let base = pin(Some("\"x\""), Some(5));
        let mut found = vec![
            key("s3://b", &base),
            key("s3://c", &base),
            key("s3://b", &pin(Some("\"y\""), Some(5))),
            key("s3://b", &pin(Some("W/\"x\""), Some(5))),
            key("s3://b", &pin(None, Some(5))),
            key("s3://b", &pin(None, Some(6))),
            key("s3://b", &FilePin { size: 8, ..base.clone() }),
            key("s3://b", &FilePin { location: Path::from("a/c"), ..base.clone() }),
            key("s3://b", &FilePin { version: Some("1".into()), ..base.clone() }),
        ];
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 9);
        // Quotes come and go, and a listing tells the time more exactly than a header.
        assert_eq!(key("s3://b", &base), key("s3://b", &pin(Some("x"), Some(9))));
    }

    #[test]
    fn keys_stay_what_they_are() {
        let key = |pin: &FilePin| of("s3://b", None, pin, at(10_000)).unwrap();
        let found = [pin(Some("\"x\""), Some(5)), pin(None, Some(5))];
        let found = found
            .map(|pin| (name(&key(&pin))[..16].to_owned(), pin.content_name()[..16].to_owned()));
        assert_eq!(
            found,
            [
                ("a6902b8e3d9e5e4e".to_owned(), "f6eb42cc18e64f68".to_owned()),
                ("4ea4839a5425766d".to_owned(), "b20f0e666db55fde".to_owned()),
            ]
        );
    }

    #[test]
    fn what_cannot_be_told_apart_has_none() {
        assert!(of("r", None, &pin(None, None), at(100)).is_none());
        assert!(of("r", Some("table"), &pin(None, None), at(100)).is_some());
        assert_ne!(
            of("r", Some("table"), &pin(None, None), at(100)),
            of("r", Some("other"), &pin(None, None), at(100))
        );
        // Written within the last minute, or in the future: it may be written again in the same
        // second.
        assert!(of("r", None, &pin(None, Some(95)), at(100)).is_none());
        assert!(of("r", Some("table"), &pin(Some("W/\"x\""), Some(95)), at(100)).is_none());
        assert!(of("r", None, &pin(None, Some(200)), at(100)).is_none());
        assert!(of("r", None, &pin(None, Some(30)), at(100)).is_some());
        assert!(of("r", None, &pin(Some("\"x\""), Some(95)), at(100)).is_some());
    }
}
