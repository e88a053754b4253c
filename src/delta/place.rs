//! Where the files of a table are: a log names them relative to the table, or by URIs.

use std::borrow::Cow;

use object_store::path::Path;
use percent_encoding::percent_decode_str;

use crate::{Error, Result};

/// The directory of a table in its store.
#[derive(Clone, Debug, Default)]
pub struct TablePlace {
    /// The root of the store, as [`Location::store_root`](crate::storage::Location::store_root).
    pub store: String,
    /// The directory in it.
    pub directory: Path,
}

impl TablePlace {
    /// The key of a file that the log names.
    ///
    /// # Errors
    /// `Data` for a name that no store can hold; `Config` for a file in another store.
    pub fn key_of(&self, uri: &str) -> Result<Path> {
        // Nearly all are plain, and there may be millions.
        let decoded = match uri.contains('%') {
            true => percent_decode_str(uri).decode_utf8().map_err(|_| unreadable(uri))?,
            false => Cow::Borrowed(uri),
        };
        let Some(rest) = scheme_of(&decoded) else {
            return match decoded.starts_with('/') {
                // A path of the table's own file system.
                true => Path::parse(decoded.trim_start_matches('/')).map_err(|_| unreadable(uri)),
                false => {
                    let whole = [self.directory.as_ref(), "/", &decoded].concat();
                    Path::parse(whole.trim_start_matches('/')).map_err(|_| unreadable(uri))
                }
            };
        };
        let key = match (decoded.get(..5) == Some("file:"), self.store.as_str()) {
            (true, "file://") => Some(rest.trim_start_matches('/')),
            (true, _) => None,
            (false, store) => below(&decoded, store),
        };
        match key {
            Some(key) => Path::parse(key).map_err(|_| unreadable(uri)),
            None => Err(Error::config(format!(
                "the log names the file {uri:?}, which lies in another store than the table ({}); tables over several \
                 stores, such as shallow clones of a table elsewhere, are not supported: make a deep clone",
                self.store
            ))),
        }
    }

    /// The directory as a user would write it.
    pub fn text(&self) -> String {
        format!("{}/{}", self.store.trim_start_matches("file://"), self.directory)
    }

    /// A file as a user would write it.
    pub fn describe(&self, key: &Path) -> String {
        format!("{}/{key}", self.store.trim_start_matches("file://"))
    }
}

/// What comes behind `scheme:`, where a text has one.
fn scheme_of(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_once(':')?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter));
    (is_scheme && rest.starts_with('/')).then_some(rest)
}

/// The key of a URI in the store with this root, in any spelling of its scheme.
fn below<'a>(uri: &'a str, store: &str) -> Option<&'a str> {
    const SAME: &[&[&str]] =
        &[&["s3", "s3a", "s3n"], &["gs", "gcs"], &["abfs", "abfss"], &["az", "azure"]];
    let (scheme, rest) = uri.split_once("://")?;
    let (own, authority) = store.split_once("://")?;
    let is_same = scheme.eq_ignore_ascii_case(own)
        || SAME.iter().any(|names| names.contains(&scheme) && names.contains(&own));
    let key = rest.strip_prefix(authority)?.strip_prefix('/')?;
    is_same.then_some(key)
}

fn unreadable(uri: &str) -> Error {
    Error::data(format!("the log names a file {uri:?}, and no store can hold such a name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_beside_the_log_and_by_their_uris() {
        let local = TablePlace { store: "file://".to_owned(), directory: Path::from("data/t") };
        let s3 = TablePlace { store: "s3://b".to_owned(), directory: Path::from("t") };
        let key = |place: &TablePlace, uri: &str| place.key_of(uri).map(|key| key.to_string());
        assert_eq!(key(&local, "p=a%2520b/f.parquet").unwrap(), "data/t/p=a%20b/f.parquet");
        assert_eq!(key(&local, "p=1:2/f.parquet").unwrap(), "data/t/p=1:2/f.parquet");
        assert_eq!(key(&local, "file:/other/f.parquet").unwrap(), "other/f.parquet");
        assert_eq!(key(&local, "file:///other/f.parquet").unwrap(), "other/f.parquet");
        assert_eq!(key(&s3, "s3a://b/u/f.parquet").unwrap(), "u/f.parquet");
        assert!(key(&s3, "s3://c/u/f.parquet").unwrap_err().to_string().contains("another store"));
        assert!(key(&s3, "s3://bc/f.parquet").is_err());
        assert!(key(&local, "s3://b/f.parquet").is_err());
        assert!(key(&s3, "file:/b/f.parquet").is_err());
        assert_eq!(local.describe(&Path::from("a/b")), "/a/b");
        assert_eq!(s3.text(), "s3://b/t");
    }
}
