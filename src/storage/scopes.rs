//! Storage options from the user: for all stores, and for locations below a prefix of URLs.

use std::collections::BTreeMap;
use std::fmt;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::aliases::translate;
use super::location::{Location, Scheme};
use super::options::{is_credential, shown};
use crate::{Error, Result};

/// Options of object stores, in any vocabulary (see `aliases`).
///
/// Its serialised form is one map: `{"aws_region": "x", "s3://bucket-a/": {"key": …}}`. A key that
/// holds `://` is a prefix of URLs, and its map is added to the others for locations below it; of
/// several prefixes the longest one alone counts. A prefix ends where a name of a path ends:
/// `s3://b/x` is no prefix of `s3://b/xy`. `s3://` is one of all buckets.
///
/// The serialised form holds secrets: it is for a worker process, and never for a checkpoint or a
/// log. The `Debug` form shows none.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, Value>", into = "BTreeMap<String, Value>")]
pub struct StorageOptions {
    everywhere: BTreeMap<String, Value>,
    below: BTreeMap<String, BTreeMap<String, Value>>,
}

/// Options of one part of a store, under one name each.
#[derive(Debug)]
pub(super) struct Scope {
    /// The directory that they are for; empty for all of the store.
    pub(super) prefix: Path,
    pub(super) options: BTreeMap<String, String>,
}

impl StorageOptions {
    /// Returns true if nothing is said.
    pub fn is_empty(&self) -> bool {
        self.everywhere.is_empty() && self.below.is_empty()
    }

    /// The options of a store by the parts of it that have some, the longest prefix first; the last
    /// one is for all the rest.
    ///
    /// # Errors
    ///
    /// `Config`, for a malformed option, or two names of one.
    pub(super) fn of_store(&self, location: &Location) -> Result<Vec<Scope>> {
        let scheme = location.scheme();
        let everywhere = translate(scheme, &flat(&self.everywhere, scheme)?)?;
        let (mut root, mut scopes) = (None, Vec::new());
        for (text, options) in &self.below {
            let prefix = Prefix::of(text)?;
            let Some(key) = prefix.key_in(location) else { continue };
            let own = translate(scheme, &flat(options, scheme)?)?;
            let options = merged(scheme, &everywhere, own);
            match key {
                // All of the store: one that names it comes before `s3://`.
                "" if root.is_some() && prefix.authority.is_empty() => {}
                "" => root = Some(options),
                key => {
                    let prefix = Path::parse(key).map_err(|_| {
                        Error::config(format!("{text:?} in storage_options is no prefix of URLs"))
                    })?;
                    scopes.push(Scope { prefix, options });
                }
            }
        }
        scopes.sort_by_key(|scope| std::cmp::Reverse(scope.prefix.as_ref().len()));
        let options = root.unwrap_or(everywhere);
        scopes.push(Scope { prefix: Path::default(), options });
        Ok(scopes)
    }

    /// The directories of a store that have options of their own.
    ///
    /// # Errors
    ///
    /// Errors of `of_store`.
    pub fn directories(&self, location: &Location) -> Result<Vec<Path>> {
        let scopes = self.of_store(location)?.into_iter().map(|scope| scope.prefix);
        Ok(scopes.filter(|prefix| !prefix.as_ref().is_empty()).collect())
    }

    /// The options of a URL of a store that only a file system of fsspec knows, as they were given.
    pub(super) fn of_foreign(&self, url: &str) -> Result<BTreeMap<String, Value>> {
        let mut options = self.everywhere.clone();
        let mut longest: Option<(usize, &BTreeMap<String, Value>)> = None;
        for (text, own) in &self.below {
            Prefix::of(text)?;
            let bare = text.trim_end_matches('/');
            let is_below = text.ends_with("://") && url.starts_with(text.as_str())
                || url
                    .strip_prefix(bare)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            if is_below && longest.is_none_or(|(length, _)| length < text.len()) {
                longest = Some((text.len(), own));
            }
        }
        if let Some((_, own)) = longest {
            options.extend(own.clone());
        }
        Ok(options)
    }
}

/// `over` before `under`; credentials are replaced as a whole, never mixed.
pub(super) fn merged(
    scheme: Scheme,
    under: &BTreeMap<String, String>,
    over: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let says_who = over.keys().any(|name| is_credential(scheme, name));
    let mut options: BTreeMap<String, String> = under
        .iter()
        .filter(|(name, _)| !(says_who && is_credential(scheme, name)))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    options.extend(over);
    options
}

/// A prefix of URLs, in its parts.
struct Prefix<'a> {
    scheme: String,
    authority: &'a str,
    key: &'a str,
}

impl<'a> Prefix<'a> {
    fn of(text: &'a str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| {
            Error::config(format!("{text:?} in storage_options is no prefix of URLs"))
        })?;
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_azure = one_spelling(scheme) == "az";
        let holds_password = match authority.split_once('@') {
            Some((container, _)) => !is_azure || container.contains(':'),
            None => false,
        };
        if holds_password {
            return Err(Error::config(format!(
                "a prefix of {scheme}:// URLs in storage_options must not hold credentials; they are \
                 options of it"
            )));
        }
        if key.contains(['*', '?', '[']) {
            return Err(Error::config(format!(
                "{text:?} in storage_options is a pattern, where a prefix is needed: the options are for \
                 all that lies below it"
            )));
        }
        Ok(Self { scheme: one_spelling(scheme), authority, key: key.trim_matches('/') })
    }

    /// The directory in the store of `location` that this is a prefix of; None where it is of
    /// another one.
    fn key_in(&self, location: &Location) -> Option<&'a str> {
        let (scheme, authority) = location.store_root().split_once("://")?;
        let is_here = self.scheme == one_spelling(scheme)
            && (self.authority == authority || self.authority.is_empty() && self.key.is_empty());
        is_here.then_some(self.key)
    }
}

/// Names of one kind of store: a user's path may use another name than the prefix.
fn one_spelling(scheme: &str) -> String {
    match scheme.to_ascii_lowercase().as_str() {
        "s3a" | "s3n" => "s3".into(),
        "gcs" => "gs".into(),
        "azure" | "abfs" | "abfss" => "az".into(),
        other => other.to_owned(),
    }
}

/// Options whose nested ones are written with dots.
pub(super) fn flat(
    options: &BTreeMap<String, Value>,
    scheme: Scheme,
) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for (name, value) in options {
        flatten(name.clone(), value, scheme, &mut found)?;
    }
    Ok(found)
}

fn flatten(
    name: String,
    value: &Value,
    scheme: Scheme,
    found: &mut BTreeMap<String, String>,
) -> Result<()> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        // What stands in a file of Google's credentials is one value.
        Value::Object(_) if scheme == Scheme::Gcs && is_google_key(&name) => value.to_string(),
        Value::Object(inner) => {
            for (part, value) in inner {
                flatten(format!("{name}.{part}"), value, scheme, found)?;
            }
            return Ok(());
        }
        Value::Null | Value::Array(_) => {
            return Err(Error::config(format!(
                "storage_options[{name:?}] must be a string, number, bool or dict of them"
            )));
        }
    };
    found.insert(name, text);
    Ok(())
}

fn is_google_key(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name == "token" || name.ends_with("service_account_key")
}

impl TryFrom<BTreeMap<String, Value>> for StorageOptions {
    type Error = String;

    fn try_from(all: BTreeMap<String, Value>) -> Result<Self, String> {
        let mut found = Self::default();
        for (name, value) in all {
            match value {
                Value::Object(options) if name.contains("://") => {
                    Prefix::of(&name).map_err(|error| error.to_string())?;
                    if options.keys().any(|name| name.contains("://")) {
                        return Err(format!("{name:?} in storage_options holds another prefix"));
                    }
                    found.below.insert(name, options.into_iter().collect());
                }
                _ if name.contains("://") => {
                    return Err(format!(
                        "{name:?} in storage_options is a prefix of URLs, so it needs a dict of options"
                    ));
                }
                value => {
                    found.everywhere.insert(name, value);
                }
            }
        }
        Ok(found)
    }
}

impl From<StorageOptions> for BTreeMap<String, Value> {
    fn from(options: StorageOptions) -> Self {
        let mut all = options.everywhere;
        let below = options.below.into_iter();
        all.extend(below.map(|(prefix, own)| (prefix, Value::Object(own.into_iter().collect()))));
        all
    }
}

impl FromIterator<(String, String)> for StorageOptions {
    /// Options for all stores.
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        let everywhere = pairs.into_iter().map(|(name, value)| (name, Value::String(value)));
        Self { everywhere: everywhere.collect(), below: BTreeMap::new() }
    }
}

impl fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = |options: &BTreeMap<String, Value>| {
            let flat = flat(options, Scheme::Foreign).unwrap_or_default();
            shown(&flat)
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<BTreeMap<String, String>>()
        };
        let mut all = f.debug_map();
        all.entries(&texts(&self.everywhere));
        all.entries(self.below.iter().map(|(prefix, own)| (prefix, texts(own))));
        all.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> StorageOptions {
        serde_json::from_str(text).unwrap()
    }

    fn regions(options: &StorageOptions, path: &str) -> Vec<(String, String)> {
        let scopes = options.of_store(&Location::parse(path).unwrap()).unwrap();
        let region = |scope: &Scope| scope.options.get("aws_region").cloned().unwrap_or_default();
        scopes.iter().map(|scope| (scope.prefix.to_string(), region(scope))).collect()
    }

    #[test]
    fn the_longest_prefix_wins_at_the_borders_of_names() {
        let options = options(
            r#"{"region": "all", "s3://": {"region": "s3"}, "s3a://b": {"region": "b"},
                "s3://b/x/y/": {"region": "xy"}, "s3://b/x": {"region": "x"},
                "gs://b/x": {"token": "anon"}}"#,
        );
        let text = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        assert_eq!(regions(&options, "s3://b/q"), text(&[("x/y", "xy"), ("x", "x"), ("", "b")]));
        assert_eq!(regions(&options, "s3a://c/x/q"), text(&[("", "s3")]));
        let again: BTreeMap<String, Value> = options.clone().into();
        assert_eq!(StorageOptions::try_from(again), Ok(options));
    }

    #[test]
    fn credentials_are_replaced_as_a_whole() {
        let options = options(
            r#"{"key": "k", "secret": "s3cret", "token": "t0ken", "region": "r",
                "s3://open/": {"anon": true}, "s3://own": {"key": "k2", "secret": "z"}}"#,
        );
        let found = |path: &str| {
            let location = Location::parse(path).unwrap();
            options.of_store(&location).unwrap().pop().unwrap().options
        };
        let names = |path: &str| found(path).into_keys().collect::<Vec<_>>().join(" ");
        assert_eq!(names("s3://open/x"), "aws_region aws_skip_signature");
        assert_eq!(names("s3://own/x"), "aws_access_key_id aws_region aws_secret_access_key");
        assert_eq!(found("s3://other/x")["aws_session_token"], "t0ken");
        let text = format!("{options:?}");
        assert!(!text.contains("s3cret") && !text.contains("t0ken"), "{text}");
        assert!(text.contains("region"), "{text}");
    }

    #[test]
    fn malformed_prefixes_are_named() {
        for (text, part) in [
            (r#"{"s3://b": "x"}"#, "needs a dict"),
            (r#"{"s3://b": {"gs://c": {}}}"#, "another prefix"),
            (r#"{"s3://me:pw@b": {}}"#, "must not hold credentials"),
            (r#"{"s3://b/*.parquet": {}}"#, "a pattern"),
        ] {
            let error = serde_json::from_str::<StorageOptions>(text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("pw"), "{error}");
        }
    }
}
