//! Credentials and file systems that Python code gives. Each call runs on a thread of its own, so
//! that no thread of a runtime waits for the GIL.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use serde_json::Value;

use super::error::from_py;
use super::exits::stay_until_exit;
use super::udf::{PyFunction, object_of};
use crate::runtime::Runtimes;
use crate::storage::{
    Foreign, ForeignCredentials, ForeignFile, ForeignFiles, ForeignListing, ForeignOpener,
};
use crate::{Error, Result};

/// Path, size in bytes, etag, and milliseconds since 1970-01-01 UTC of the last write.
type FileRow = (String, u64, Option<String>, Option<i64>);

/// Runs `work` with the GIL, on a thread that may wait for it.
async fn call<T: Send + 'static>(
    work: impl FnOnce(Python<'_>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let io = Runtimes::current()?.io().clone();
    let attached = move || {
        stay_until_exit();
        Python::try_attach(work)
    };
    match io.spawn_blocking(attached).await {
        Ok(Some(result)) => result,
        Ok(None) => Err(Error::storage("the Python interpreter is ending")),
        Err(error) => Err(Error::storage("a call of Python code failed").with_source(error)),
    }
}

/// A `tensorquery.sql.credentials.Credentials`.
pub struct PyCredentials {
    object: Arc<Py<PyAny>>,
    name: String,
}

impl PyCredentials {
    /// Wraps it.
    pub fn try_new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let name = object.getattr("name")?.extract()?;
        Ok(Self { object: Arc::new(object.clone().unbind()), name })
    }
}

#[async_trait]
impl ForeignCredentials for PyCredentials {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn ask(&self, url: &str) -> Result<BTreeMap<String, Value>> {
        let (object, url, name) = (Arc::clone(&self.object), url.to_owned(), self.name.clone());
        let text: String = call(move |py| {
            let answer =
                object.bind(py).call_method1("ask", (url,)).and_then(|text| text.extract());
            answer.map_err(|error| from_py(py, error, format!("credential_provider {name} failed")))
        })
        .await?;
        serde_json::from_str(&text).map_err(|error| {
            Error::config(format!("credential_provider {} gave no options", self.name))
                .with_source(error)
        })
    }
}

/// A `tensorquery.sql.storage.Files`.
pub struct PyFiles {
    object: Arc<Py<PyAny>>,
    root: String,
}

impl PyFiles {
    /// Wraps it.
    pub fn try_new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let root = object.getattr("root")?.extract()?;
        Ok(Self { object: Arc::new(object.clone().unbind()), root })
    }

    fn failed(&self, what: &str, path: &str) -> String {
        format!("cannot {what} {}/{path}", self.root)
    }
}

fn file_of((path, size, e_tag, modified): FileRow) -> ForeignFile {
    let last_modified = modified.and_then(DateTime::from_timestamp_millis);
    ForeignFile { path, size, e_tag, last_modified }
}

#[async_trait]
impl ForeignFiles for PyFiles {
    fn root(&self) -> String {
        self.root.clone()
    }

    async fn info(&self, path: &str) -> Result<Option<ForeignFile>> {
        let (object, path) = (Arc::clone(&self.object), path.to_owned());
        let message = self.failed("look at", &path);
        let row: Option<FileRow> = call(move |py| {
            let row = object.bind(py).call_method1("info", (path,)).and_then(|row| row.extract());
            row.map_err(|error| from_py(py, error, message))
        })
        .await?;
        Ok(row.map(file_of))
    }

    async fn list(&self, directory: &str, recursive: bool) -> Result<ForeignListing> {
        let (object, directory) = (Arc::clone(&self.object), directory.to_owned());
        let message = self.failed("list", &directory);
        let (files, directories): (Vec<FileRow>, Vec<String>) = call(move |py| {
            let found = object.bind(py).call_method1("list", (directory, recursive));
            let found = found.and_then(|found| found.extract());
            found.map_err(|error| from_py(py, error, message))
        })
        .await?;
        Ok(ForeignListing { files: files.into_iter().map(file_of).collect(), directories })
    }

    async fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let (object, path) = (Arc::clone(&self.object), path.to_owned());
        let message = self.failed("read", &path);
        let bytes: PyBackedBytes = call(move |py| {
            let bytes = object.bind(py).call_method1("read", (path, range.start, range.end));
            let bytes = bytes.and_then(|bytes| Ok(bytes.extract()?));
            bytes.map_err(|error| from_py(py, error, message))
        })
        .await?;
        Ok(Bytes::from_owner(bytes))
    }
}

/// `tensorquery.sql.storage` opens URLs that `object_store` does not know.
pub struct PyOpener;

#[async_trait]
impl ForeignOpener for PyOpener {
    async fn knows(&self, scheme: &str) -> Result<bool> {
        let scheme = scheme.to_owned();
        call(move |py| {
            let known = py.import("tensorquery.sql.storage");
            let known = known.and_then(|module| module.call_method1("knows_scheme", (scheme,)));
            let known = known.and_then(|known| known.extract());
            known.map_err(|error| from_py(py, error, "cannot ask fsspec for its file systems"))
        })
        .await
    }

    async fn open(
        &self,
        urls: &[String],
        options: &BTreeMap<String, Value>,
    ) -> Result<(Arc<dyn ForeignFiles>, Vec<String>)> {
        let urls = urls.to_vec();
        let options = serde_json::to_string(options)
            .map_err(|error| Error::config("storage_options are no JSON").with_source(error))?;
        call(move |py| {
            let message = format!("cannot open {}", urls.first().map_or("", String::as_str));
            let open = || -> PyResult<(Arc<dyn ForeignFiles>, Vec<String>)> {
                let module = py.import("tensorquery.sql.storage")?;
                let opened = module.call_method1("open_urls", (urls, options))?;
                let (files, paths): (Bound<'_, PyAny>, Vec<String>) = opened.extract()?;
                Ok((Arc::new(PyFiles::try_new(&files)?), paths))
            };
            open().map_err(|error| from_py(py, error, message))
        })
        .await
    }
}

/// An object sent along with a worker's plan: "credentials", "files" or "function", and the object.
pub type Shipped = (&'static str, Py<PyAny>);

/// A foreign thing as an object of Python.
pub fn to_shipped(py: Python<'_>, thing: &Foreign) -> Result<Shipped> {
    let foreign = || {
        Error::config("credentials, files or functions that do not come from Python cannot travel")
    };
    match thing {
        Foreign::Credentials(given) => {
            let any: &dyn std::any::Any = &**given;
            let given = any.downcast_ref::<PyCredentials>().ok_or_else(foreign)?;
            Ok(("credentials", given.object.clone_ref(py)))
        }
        Foreign::Files(files) => {
            let any: &dyn std::any::Any = &**files;
            let files = any.downcast_ref::<PyFiles>().ok_or_else(foreign)?;
            Ok(("files", files.object.clone_ref(py)))
        }
        Foreign::Function(function) => {
            Ok(("function", object_of(py, function.as_ref()).ok_or_else(foreign)?))
        }
    }
}

/// The inverse of [`to_shipped`].
pub fn from_shipped(kind: &str, object: &Bound<'_, PyAny>) -> PyResult<Foreign> {
    Ok(match kind {
        "files" => Foreign::Files(Arc::new(PyFiles::try_new(object)?)),
        "function" => Foreign::Function(Arc::new(PyFunction::try_new(object)?)),
        _ => Foreign::Credentials(Arc::new(PyCredentials::try_new(object)?)),
    })
}
