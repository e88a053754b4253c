//! Parses a path that a user types: the store, the place in it, and the pattern.

use std::fmt;
use std::path::PathBuf;

use object_store::path::{Path, PathPart};
use percent_encoding::percent_decode_str;
use url::Url;

use super::glob::{Glob, has_wildcard};
use super::uri::{ROUTED_ROOT, uri_of};
use crate::{Error, Result, suggestion};

/// The kind of store that a [`Location`] lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// The local file system.
    Local,
    /// Amazon S3 or a store that speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage or Data Lake.
    Azure,
    /// One file on an HTTP server.
    Http,
    /// A file system that `object_store` does not know.
    Foreign,
}

/// The schemes a user may write, and the store that each one names.
const SCHEMES: &[(&str, Scheme)] = &[
    ("file", Scheme::Local),
    ("s3", Scheme::S3),
    ("s3a", Scheme::S3),
    ("gs", Scheme::Gcs),
    ("gcs", Scheme::Gcs),
    ("az", Scheme::Azure),
    ("azure", Scheme::Azure),
    ("abfs", Scheme::Azure),
    ("abfss", Scheme::Azure),
    ("http", Scheme::Http),
    ("https", Scheme::Http),
];

/// Query parameters of a signed URL.
const SIGNATURES: &[&str] =
    &["?sig=", "&sig=", "x-amz-signature=", "x-amz-credential=", "x-goog-signature="];

/// A file, a directory or a pattern in one store.
///
/// How names are read:
/// - A local path is taken as it stands, percent signs included, and made absolute; `~` is not
///   expanded and symbolic links are not resolved. A path that exists is no pattern, whatever
///   characters it has.
/// - `file://` and `http(s)://` are URLs, so `%20` means a space.
/// - In `s3://`, `gs://` and `az://` the rest is the object's key as the store's own tools print
///   it, so `%20` means those three characters.
///
/// `*`, `?` and `[a-z]` match within a name and `**` any number of directories. A pattern that ends
/// in `/` means everything below the directories it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    scheme: Scheme,
    /// `file://`, `s3://bucket`, `abfss://container@account.dfs.core.windows.net`, `https://host`.
    root: String,
    /// The path itself, or the directory that the pattern starts in.
    prefix: Path,
    glob: Option<Glob>,
    /// Whether the user wrote a trailing `/`, so that it cannot be a file.
    is_directory: bool,
}

impl Location {
    /// Parses the user's text.
    ///
    /// # Errors
    ///
    /// `Config`, for an empty path, an unknown scheme, a malformed pattern or URL, credentials or a
    /// query string in a URL, and names that no object store can hold (control characters, `..`).
    pub fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::config("a path is empty; name a file, a directory or a pattern"));
        }
        if let Some(rest) = text.strip_prefix("file:") {
            return Self::parse_file_url(text, rest);
        }
        match text.split_once("://") {
            None => Self::parse_local(text),
            Some((scheme, rest)) => Self::parse_url(scheme, rest),
        }
    }

    /// The store itself, by the [`store_root`](Self::store_root) of a location in it. So a process
    /// opens the store of files that another one found. An http(s) store has no other name.
    ///
    /// # Errors
    ///
    /// `Config`, for a root that no location has.
    pub fn of_store(root: &str) -> Result<Self> {
        let known = SCHEMES
            .iter()
            .find(|(name, _)| root.strip_prefix(name).is_some_and(|rest| rest.starts_with("://")));
        let Some(&(_, scheme)) = known else {
            return Err(Error::config(format!("{root:?} names no object store")));
        };
        let prefix = Path::default();
        Ok(Self { scheme, root: root.to_owned(), prefix, glob: None, is_directory: true })
    }

    /// A path below the root of a foreign file system: a file, a directory (with a `/` at its end,
    /// or not), or a pattern.
    ///
    /// # Errors
    ///
    /// `Config`, for names that no object store can hold, and a malformed pattern.
    pub fn foreign(root: &str, key: &str) -> Result<Self> {
        let text = format!("{root}/{key}");
        let is_directory = key.is_empty() || key.ends_with('/');
        let names = key.split('/').filter(|name| !name.is_empty()).map(str::to_owned);
        let names: Vec<String> = names.collect();
        let is_pattern = names.iter().any(|name| has_wildcard(name));
        Self::from_names(Scheme::Foreign, root.to_owned(), names, is_directory, is_pattern, &text)
    }

    /// The scheme of a URL that no store of `object_store` has: `hf` of `hf://…`, or the first of a
    /// chained one, `zip` of `zip://a.csv::s3://bucket/a.zip`.
    pub(super) fn foreign_scheme(text: &str) -> Option<&str> {
        let (scheme, _) = text.split_once("://")?;
        let is_name = |name: &str| {
            !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        };
        // A key may hold `::`, too.
        let is_url = |part: &str| part.split_once("://").is_some_and(|(name, _)| is_name(name));
        let is_chained = scheme.contains("::") || text.split("::").skip(1).any(is_url);
        let scheme = scheme.split("::").next()?;
        let known = SCHEMES.iter().any(|(name, _)| scheme.eq_ignore_ascii_case(name));
        (is_name(scheme) && (!known || is_chained)).then_some(scheme)
    }

    /// Returns true if a path lies in a store for which credentials can be asked.
    pub(crate) fn takes_credentials(text: &str) -> bool {
        let Some((name, _)) = text.split_once("://") else { return false };
        let kind = SCHEMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        kind.is_some_and(|(_, scheme)| matches!(scheme, Scheme::S3 | Scheme::Gcs | Scheme::Azure))
    }

    /// The kind of store.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns true if it lies in the local file system.
    pub fn is_local(&self) -> bool {
        self.scheme == Scheme::Local
    }

    /// The store without a path: `file://`, `s3://bucket`,
    /// `abfss://container@account.dfs.core.windows.net`, `https://host`. Two locations lie in the
    /// same store exactly when their roots are equal.
    pub fn store_root(&self) -> &str {
        &self.root
    }

    /// The path in the store, or the directory that the pattern starts in.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// The pattern below [`prefix`](Self::prefix).
    pub fn pattern(&self) -> Option<String> {
        self.glob.as_ref().map(Glob::text)
    }

    pub(super) fn glob(&self) -> Option<&Glob> {
        self.glob.as_ref()
    }

    /// Returns true if the user wrote a trailing `/`, so that it cannot be a file.
    pub fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// The directory whose subdirectories may be hive partitions: the prefix without the
    /// `key=value` names at its end. So `t/year=2026/*.csv`, `t/year=2026/a.csv` and `t/year=2026`
    /// have the column `year` just as `t` has.
    pub fn hive_root(&self) -> Path {
        let names: Vec<PathPart<'_>> = self.prefix.parts().collect();
        let is_key = |at: usize| names[at].as_ref().find('=').is_some_and(|sign| sign > 0);
        let mut kept = names.len();
        // `t/year=2026/a.csv` may be a file: its directory decides.
        if self.glob.is_none() && kept >= 2 && !is_key(kept - 1) && is_key(kept - 2) {
            kept -= 1;
        }
        while kept > 0 && is_key(kept - 1) {
            kept -= 1;
        }
        names.into_iter().take(kept).collect()
    }

    /// The folder of a local location.
    pub fn local_folder(&self) -> PathBuf {
        let names: Vec<String> =
            self.prefix().parts().map(|name| name.as_ref().to_owned()).collect();
        local_path(&names)
    }

    /// The directory of this name below it.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let prefix = self.prefix.clone().join(name);
        Self { prefix, is_directory: true, ..self.clone() }
    }

    /// A path of the same store as a user would write it.
    pub fn describe(&self, path: &Path) -> String {
        describe(&self.root, path)
    }

    fn parse_local(text: &str) -> Result<Self> {
        let mut names = Vec::new();
        if !text.starts_with('/') {
            let current = std::env::current_dir().map_err(|error| {
                Error::config(format!("{text:?} is relative, and the current directory is unknown"))
                    .with_source(error)
            })?;
            names.extend(local_names(&current)?);
        }
        names.extend(text.split('/').map(str::to_owned));
        Self::from_local_names(text, names)
    }

    fn parse_file_url(text: &str, rest: &str) -> Result<Self> {
        let path = match rest.strip_prefix("//") {
            Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
            None => rest,
        };
        if !path.starts_with('/') {
            return Err(Error::config(format!(
                "{text:?} must be an absolute path without a host, as in \"file:///data/a.parquet\""
            )));
        }
        let names = path.split('/').map(|name| decode_name(text, name)).collect::<Result<_>>()?;
        Self::from_local_names(text, names)
    }

    /// `names` start at the root of the file system and may hold `.`, `..` and empty names.
    fn from_local_names(text: &str, names: Vec<String>) -> Result<Self> {
        let is_directory = names.last().is_none_or(|last| matches!(last.as_str(), "" | "." | ".."));
        let mut resolved: Vec<String> = Vec::with_capacity(names.len());
        for name in names {
            match name.as_str() {
                "" | "." => {}
                ".." => {
                    // What lies above a symbolic link is above its target.
                    if let Ok(target) = std::fs::canonicalize(local_path(&resolved)) {
                        resolved = local_names(&target)?;
                    }
                    resolved.pop();
                }
                _ => resolved.push(name),
            }
        }
        let is_pattern = resolved.iter().any(|name| has_wildcard(name))
            && local_path(&resolved).symlink_metadata().is_err();
        Self::from_names(Scheme::Local, "file://".into(), resolved, is_directory, is_pattern, text)
    }

    fn parse_url(scheme_name: &str, rest: &str) -> Result<Self> {
        let known = scheme_name.to_ascii_lowercase();
        let Some(&(_, scheme)) = SCHEMES.iter().find(|(name, _)| *name == known) else {
            let names: Vec<&str> = SCHEMES.iter().map(|(name, _)| *name).collect();
            return Err(Error::config(format!(
                "unknown scheme {scheme_name:?} of a path{}; the schemes are {}",
                suggestion(scheme_name, names.iter().copied()),
                names.join(", "),
            )));
        };
        if scheme == Scheme::Http {
            return Self::parse_http(&format!("{known}://{rest}"));
        }
        let lower = rest.to_ascii_lowercase();
        if SIGNATURES.iter().any(|name| lower.contains(name)) {
            return Err(Error::config(format!(
                "a {known}:// path must not hold a signature; pass credentials as storage_options, such as \
                 sas_token for Azure"
            )));
        }
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        let (container, account) = match authority.split_once('@') {
            Some((container, account)) => (container, Some(account)),
            None => (authority, None),
        };
        if account.is_some() && (scheme != Scheme::Azure || container.contains(':')) {
            return Err(Error::config(format!(
                "a {known}:// path must not hold credentials; pass them as storage_options"
            )));
        }
        if container.is_empty() || authority.contains([':', '*', '?', '[', '#', ' ']) {
            return Err(Error::config(format!(
                "{authority:?} is no bucket or container; write {known}://bucket/path"
            )));
        }
        let is_directory = key.is_empty() || key.ends_with('/');
        let key = key.strip_suffix('/').unwrap_or(key);
        let names: Vec<String> = match key {
            "" => Vec::new(),
            _ => key.split('/').map(str::to_owned).collect(),
        };
        let is_pattern = names.iter().any(|name| has_wildcard(name));
        let root = format!("{known}://{authority}");
        let text = format!("{known}://{rest}");
        Self::from_names(scheme, root, names, is_directory, is_pattern, &text)
    }

    /// No message repeats the URL before it is known to hold no secret.
    fn parse_http(text: &str) -> Result<Self> {
        let url = Url::parse(text)
            .map_err(|error| Error::config(format!("malformed http(s) path: {error}")))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::config("an http(s) path must not hold a user name or password"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(Error::config(format!(
                "an http(s) path names one file: \"?\", \"#\" and patterns are not supported after {:?}",
                &url[..url::Position::AfterPath]
            )));
        }
        let path = url.path();
        if path.ends_with('/') || path.contains('*') {
            return Err(Error::config(format!(
                "{text:?} must name one file: an http(s) server lists no directories or patterns"
            )));
        }
        if path.to_ascii_lowercase().contains("%2f") {
            return Err(Error::config(format!(
                "{text:?} has a slash inside of a name (%2F), which cannot be asked for; serve the file by another name"
            )));
        }
        let prefix = Path::from_url_path(path).map_err(|error| bad_path(text, error))?;
        let root = url[..url::Position::BeforePath].to_owned();
        Ok(Self { scheme: Scheme::Http, root, prefix, glob: None, is_directory: false })
    }

    fn from_names(
        scheme: Scheme,
        root: String,
        mut names: Vec<String>,
        is_directory: bool,
        is_pattern: bool,
        text: &str,
    ) -> Result<Self> {
        let fixed = match is_pattern {
            true => names.iter().position(|name| has_wildcard(name)).unwrap_or(names.len()),
            false => names.len(),
        };
        let prefix =
            Path::parse(names[..fixed].join("/")).map_err(|error| bad_path(text, error))?;
        let glob = if is_pattern {
            if is_directory {
                names.push("**".into());
            }
            Some(Glob::try_new(names[fixed..].iter().map(String::as_str), text)?)
        } else {
            None
        };
        Ok(Self { scheme, root, prefix, glob, is_directory })
    }
}

/// Shows the user's spelling; a location holds no secret.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(&self.root, &self.prefix))?;
        match &self.glob {
            Some(glob) if self.prefix.is_root() => f.write_str(&glob.text()),
            Some(glob) => write!(f, "/{}", glob.text()),
            None => Ok(()),
        }
    }
}

/// A path of the store with this root as a user would write it.
pub(super) fn describe(root: &str, path: &Path) -> String {
    if root == ROUTED_ROOT {
        return uri_of(path);
    }
    let root = root.strip_prefix("file://").unwrap_or(root);
    format!("{root}/{path}")
}

/// One name of a `file://` URL, decoded. A wildcard that was percent-encoded is no wildcard.
fn decode_name(text: &str, name: &str) -> Result<String> {
    let decoded = percent_decode_str(name)
        .decode_utf8()
        .ok()
        .filter(|decoded| !decoded.contains('/'))
        .ok_or_else(|| {
            Error::config(format!("{name:?} in {text:?} decodes to no file name in UTF-8"))
        })?;
    if has_wildcard(&decoded) && !has_wildcard(name) {
        return Ok(glob::Pattern::escape(&decoded));
    }
    Ok(decoded.into_owned())
}

/// The local path of names that start at the root.
pub(super) fn local_path<'a>(names: impl IntoIterator<Item = &'a String>) -> PathBuf {
    let mut path = PathBuf::from("/");
    path.extend(names);
    path
}

/// The names of an absolute local path.
fn local_names(path: &std::path::Path) -> Result<Vec<String>> {
    let text = path.to_str().ok_or_else(|| {
        Error::config(format!("the directory {} is not UTF-8; rename it", path.display()))
    })?;
    Ok(text.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn bad_path(text: &str, error: object_store::path::Error) -> Error {
    Error::config(format!(
        "{text:?} is no path of an object store: no name may be empty, \".\" or \"..\", \
         or hold a control character"
    ))
    .with_source(error)
}
