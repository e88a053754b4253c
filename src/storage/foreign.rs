//! Objects from outside this crate: credentials, whole file systems, and functions over columns.
//! The Python bindings implement these traits; nothing here knows Python.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use datafusion::logical_expr::Volatility;
use serde_json::Value;

use crate::{Error, Result};

/// Credentials from a function of the user's.
#[async_trait]
pub trait ForeignCredentials: Any + Send + Sync {
    /// The function's name, for errors.
    fn name(&self) -> String;

    /// Who it is, as the beginning of a sentence.
    fn describe(&self) -> String {
        format!("credential_provider {}", self.name())
    }

    /// Returns true if it is asked only where options name no credentials.
    fn is_fallback(&self) -> bool {
        false
    }

    /// Options of the store at `url` in any vocabulary, and under `expires_at_ms` when they end, in
    /// milliseconds since 1970-01-01 UTC, where that is known.
    ///
    /// # Errors
    ///
    /// `Storage`, naming the function, where it fails; `Config`, for an answer that is no options.
    async fn ask(&self, url: &str) -> Result<BTreeMap<String, Value>>;
}

/// One file of a foreign file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignFile {
    /// Its path below the root, without a leading slash.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// A name for the content, where the file system has one.
    pub e_tag: Option<String>,
    /// When it was last written, where the file system knows.
    pub last_modified: Option<DateTime<Utc>>,
}

/// The content of a directory in a foreign file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignListing {
    /// Files, in no order.
    pub files: Vec<ForeignFile>,
    /// Paths of directories; none of a recursive listing.
    pub directories: Vec<String>,
}

/// A file system that is reached by functions of the user's. Paths are below its root.
#[async_trait]
pub trait ForeignFiles: Any + Send + Sync {
    /// The prefix of a path (before a slash) when it is shown, which tells this file system from
    /// others: `memory:/`, `https://host`.
    fn root(&self) -> String;

    /// The current state of a file, bypassing caches; None if there is none.
    ///
    /// # Errors
    ///
    /// `Storage`, naming the file.
    async fn info(&self, path: &str) -> Result<Option<ForeignFile>>;

    /// The files of a directory, or all below it.
    ///
    /// # Errors
    ///
    /// `Storage`, naming the directory.
    async fn list(&self, directory: &str, recursive: bool) -> Result<ForeignListing>;

    /// Bytes of a file; fewer than asked for is an error.
    ///
    /// # Errors
    ///
    /// `Storage`, naming the file.
    async fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes>;
}

/// Opens URLs that `object_store` does not know.
#[async_trait]
pub trait ForeignOpener: Send + Sync {
    /// Returns true if some file system has this scheme, installed or not.
    async fn knows(&self, scheme: &str) -> Result<bool>;

    /// The one file system of these URLs, and their paths below its root.
    ///
    /// # Errors
    ///
    /// `Config`, where there are two file systems, or options that it refuses; errors of the
    /// bindings if a package is not installed.
    async fn open(
        &self,
        urls: &[String],
        options: &BTreeMap<String, Value>,
    ) -> Result<(Arc<dyn ForeignFiles>, Vec<String>)>;
}

static OPENER: OnceLock<Arc<dyn ForeignOpener>> = OnceLock::new();

/// Says who opens URLs that `object_store` does not know; the first call counts.
pub fn set_foreign_opener(opener: Arc<dyn ForeignOpener>) {
    OPENER.get_or_init(|| opener);
}

pub(super) fn opener() -> Option<&'static Arc<dyn ForeignOpener>> {
    OPENER.get()
}

/// A function of the user's over columns, for SQL.
pub trait ForeignFunction: Any + Send + Sync {
    /// Its name in SQL, and in errors.
    fn name(&self) -> &str;

    /// The types of its arguments.
    fn input_types(&self) -> &[DataType];

    /// The type of its result.
    fn return_type(&self) -> &DataType;

    /// Whether equal arguments give equal values.
    fn volatility(&self) -> Volatility;

    /// Stands for name, types, volatility and code: the same in every process that runs the same
    /// function, another one where the function changes.
    fn digest(&self) -> &str;

    /// Its values for arrays of [`input_types`](Self::input_types), each of `rows` rows, at least
    /// one.
    ///
    /// # Errors
    ///
    /// `Data`, naming the function, where it fails or returns no array.
    fn call(&self, arguments: Vec<ArrayRef>, rows: usize) -> Result<ArrayRef>;
}

impl fmt::Debug for dyn ForeignFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({})", self.name())
    }
}

/// An object sent to a worker process beside its plan, because it is not plain data.
#[derive(Clone)]
pub enum Foreign {
    /// Asked for credentials.
    Credentials(Arc<dyn ForeignCredentials>),
    /// Asked for files.
    Files(Arc<dyn ForeignFiles>),
    /// Called with columns.
    Function(Arc<dyn ForeignFunction>),
}

impl Foreign {
    pub(crate) fn credentials(&self) -> Result<Arc<dyn ForeignCredentials>> {
        match self {
            Self::Credentials(found) => Ok(Arc::clone(found)),
            other => Err(other.odd("credentials")),
        }
    }

    pub(crate) fn files(&self) -> Result<Arc<dyn ForeignFiles>> {
        match self {
            Self::Files(found) => Ok(Arc::clone(found)),
            other => Err(other.odd("files")),
        }
    }

    pub(crate) fn function(&self) -> Result<Arc<dyn ForeignFunction>> {
        match self {
            Self::Function(found) => Ok(Arc::clone(found)),
            other => Err(other.odd("a function")),
        }
    }

    fn odd(&self, wanted: &str) -> Error {
        Error::config(format!("the recipe has {self:?} where {wanted} must be"))
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credentials(found) => write!(f, "Credentials({})", found.name()),
            Self::Files(found) => write!(f, "Files({})", found.root()),
            Self::Function(found) => write!(f, "{found:?}"),
        }
    }
}
