//! Full URIs as paths of one object store.
//!
//! A table's files may lie in several stores, and their names are the table's own: keys taken as
//! they stand, local paths with and without a scheme. [`path_of`] makes one [`Path`] of each, whose
//! first names are the scheme (with its colon) and the bucket, and [`uri_of`] is its inverse.

use object_store::path::Path;

use crate::{Error, Result, suggestion};

/// The root of a [`RoutedStore`](super::RoutedStore), below which every URI is a path.
pub(super) const ROUTED_ROOT: &str = "routed://";

/// The first name of a local file's path.
const LOCAL: &str = "file:";

/// The schemes of files in tables, and which one names the same store in a
/// [`Location`](super::Location).
const SCHEMES: &[(&str, &str)] = &[
    ("s3", "s3"),
    ("s3a", "s3"),
    ("s3n", "s3"),
    ("gs", "gs"),
    ("gcs", "gs"),
    ("abfs", "abfss"),
    ("abfss", "abfss"),
    ("wasb", "abfss"),
    ("wasbs", "abfss"),
    ("az", "az"),
    ("azure", "az"),
    ("http", "http"),
    ("https", "https"),
];

/// Where a URI leads: a store, and a key in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `file://`, `s3://bucket`, `gs://bucket`, `abfss://container@host`, `az://container` or
    /// `https://host`: equal for all spellings of one store.
    pub(super) root: String,
    /// The key as the store wants it.
    pub(super) key: Path,
    /// The outer path's part before the key: `s3a:/bucket`.
    pub(super) start: String,
}

/// The path of a URI: `s3://bucket/a/b` becomes `s3:/bucket/a/b`, and each of `/a/b`, `file:/a/b`
/// and `file:///a/b` becomes `file:/a/b`. Nothing is decoded: keys are taken literally, and so are
/// local paths, which Hadoop and Java write as they stand.
///
/// # Errors
///
/// `Config`, for a relative path, an unknown scheme, a URI without a bucket, with credentials or a
/// query string, and keys that no object store client can ask for (empty names, `..`, control
/// characters).
pub fn path_of(uri: &str) -> Result<Path> {
    if uri.starts_with('/') {
        return local_path(uri, uri);
    }
    let Some((scheme, rest)) = uri.split_once(':') else {
        return Err(Error::config(format!(
            "{uri:?} is neither an absolute path nor a URI; give the warehouse an absolute path"
        )));
    };
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "file" {
        let path = match rest.strip_prefix("//") {
            Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
            None => rest,
        };
        if !path.starts_with('/') {
            return Err(Error::config(format!(
                "{uri:?} must be an absolute path without a host, as in \"file:/data/a.parquet\""
            )));
        }
        return local_path(uri, path);
    }
    let Some(rest) = rest.strip_prefix("//") else {
        return Err(Error::config(format!(
            "{uri:?} is neither an absolute path nor a URI; give the warehouse an absolute path"
        )));
    };
    if !SCHEMES.iter().any(|(name, _)| *name == scheme) {
        let names: Vec<&str> = SCHEMES.iter().map(|(name, _)| *name).collect();
        return Err(Error::config(format!(
            "unknown scheme {scheme:?} of a file{}; the schemes are file, {}",
            suggestion(&scheme, names.iter().copied()),
            names.join(", "),
        )));
    }
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    let is_azure = store_scheme(&scheme) == "abfss";
    let container = authority.split_once('@').map(|(container, _)| container);
    // The message repeats nothing that may be a password.
    if container.is_some_and(|container| !is_azure || container.contains(':')) {
        return Err(Error::config(format!(
            "a {scheme}:// URI must not hold credentials; pass them as properties"
        )));
    }
    let is_http = scheme.starts_with("http");
    if is_http && key.contains(['?', '#']) {
        return Err(Error::config(format!(
            "a file's {scheme}:// URI must have no query string and no fragment"
        )));
    }
    if authority.is_empty() || authority.contains(['*', '?', '#', ' ']) {
        return Err(Error::config(format!("{uri:?} names no bucket, container or host")));
    }
    Path::parse(format!("{scheme}:/{authority}/{key}")).map_err(|error| unreadable(uri, error))
}

/// The URI of a path that [`path_of`] made; a local one as an absolute path without a scheme.
pub fn uri_of(path: &Path) -> String {
    let text = path.as_ref();
    match text.split_once('/') {
        Some((LOCAL, rest)) => format!("/{rest}"),
        Some((scheme, rest)) => format!("{scheme}//{rest}"),
        None if text == LOCAL => "/".into(),
        None => text.to_owned(),
    }
}

/// Returns true if a file of the store with this root lies on the local file system.
pub fn is_local_file(root: &str, path: &Path) -> bool {
    root.starts_with("file:")
        || (root == ROUTED_ROOT && path.as_ref().split('/').next() == Some(LOCAL))
}

/// The store of a path, and the key in it.
///
/// # Errors
///
/// `Config`, for a path that [`path_of`] did not make.
pub(super) fn place_of(path: &Path) -> Result<Place> {
    let text = path.as_ref();
    let foreign = || Error::config(format!("{text:?} is no path of a routed store"));
    let (scheme, rest) = text.split_once('/').unwrap_or((text, ""));
    if scheme == LOCAL {
        let key = Path::parse(rest).map_err(|_| foreign())?;
        return Ok(Place { root: "file://".into(), key, start: LOCAL.into() });
    }
    let scheme = scheme.strip_suffix(':').ok_or_else(foreign)?;
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.is_empty() {
        return Err(foreign());
    }
    let start = format!("{scheme}:/{authority}");
    let parsed = match scheme.starts_with("http") {
        // The one store whose names are URLs.
        true => Path::from_url_path(key),
        false => Path::parse(key),
    };
    let root_scheme = match store_scheme(scheme) {
        "abfss" if !authority.contains('@') => "az",
        known => known,
    };
    let key = parsed.map_err(|_| foreign())?;
    Ok(Place { root: format!("{root_scheme}://{authority}"), key, start })
}

fn store_scheme(scheme: &str) -> &'static str {
    SCHEMES.iter().find(|(name, _)| *name == scheme).map_or("", |(_, store)| store)
}

fn local_path(uri: &str, path: &str) -> Result<Path> {
    let mut names: Vec<String> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                // What lies above a symbolic link is above its target.
                let above = std::path::PathBuf::from(format!("/{}", names.join("/")));
                if let Ok(target) = std::fs::canonicalize(&above)
                    && let Some(target) = target.to_str()
                {
                    names =
                        target.split('/').filter(|n| !n.is_empty()).map(str::to_owned).collect();
                }
                names.pop();
            }
            _ => names.push(name.to_owned()),
        }
    }
    Path::parse(format!("{LOCAL}/{}", names.join("/"))).map_err(|error| unreadable(uri, error))
}

fn unreadable(uri: &str, error: object_store::path::Error) -> Error {
    Error::config(format!(
        "{uri:?} cannot be read: no name of a key may be empty, \".\" or \"..\", or hold a control \
         character"
    ))
    .with_source(error)
}
