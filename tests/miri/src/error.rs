//! The error of the crate without the engine's errors.

use std::error::Error as StdError;
use std::fmt;

use arrow::error::ArrowError;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    Config,
    Data,
    UnsupportedType,
    CheckpointMismatch,
}

#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    pub fn data(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Data, message)
    }

    pub fn checkpoint(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::CheckpointMismatch, message)
    }

    #[must_use]
    pub fn with_context(mut self, key: &str, value: impl fmt::Display) -> Self {
        self.message = format!("{} ({key}: {value})", self.message);
        self
    }

    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.message = format!("{}: {}", self.message, source.into());
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        Self::data(error.to_string())
    }
}

pub fn suggestion<'a>(_name: &str, _candidates: impl IntoIterator<Item = &'a str>) -> String {
    String::new()
}

pub fn list_names(names: &[&str]) -> String {
    names.join(", ")
}
