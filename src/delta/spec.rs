//! One version of a Delta table as plain data, for worker processes, which read no log.

use std::fmt;

use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::actions::VectorPlace;
use super::place::TablePlace;
use super::schema::Mapping;
use crate::fingerprint::{self, Form};
use crate::{Error, Result};

/// One data file of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// Its key in the store, neither encoded nor decoded.
    #[serde(with = "key")]
    pub key: Path,
    /// Its size in bytes.
    pub size: u64,
    /// Rows stored in it, deleted ones included.
    pub records: u64,
    /// The rows of it that are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vector: Option<Box<VectorPlace>>,
}

impl DataFile {
    /// Rows that are not deleted.
    pub fn live(&self) -> u64 {
        let deleted = self.vector.as_ref().map_or(0, |vector| vector.cardinality);
        self.records.saturating_sub(deleted)
    }
}

/// A key as its text.
mod key {
    use object_store::path::Path;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(key: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(key.as_ref())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Path, D::Error> {
        Path::parse(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A version of a table, pinned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeltaSpec {
    /// The table's name as the user wrote it.
    pub name: String,
    /// The root of its store.
    pub store: String,
    /// Its directory in the store.
    pub directory: String,
    /// The id that it keeps for life.
    pub table_id: String,
    /// The version.
    pub version: i64,
    /// For an incremental scan, the version after which it starts.
    pub after: Option<i64>,
    /// Whether the files hold changes since then, instead of rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes: bool,
    /// The schema, as the log has it.
    pub schema: String,
    /// How columns are found in files.
    pub mapping: Mapping,
    /// The columns that are the same in all rows of a file.
    pub partition_columns: Vec<String>,
    /// Data files, by key.
    pub files: Vec<DataFile>,
    /// A SQL predicate by which files are pruned, and no other.
    pub scan_filter: Option<String>,
}

impl DeltaSpec {
    /// With only these of its data files.
    #[must_use]
    pub fn narrowed(&self, kept: &[usize]) -> Self {
        let files = kept.iter().map(|index| self.files[*index].clone()).collect();
        Self { files, ..self.clone() }
    }

    /// The table's directory.
    ///
    /// # Errors
    /// `Config` where it is none.
    pub fn place(&self) -> Result<TablePlace> {
        let directory = Path::parse(&self.directory).map_err(|error| {
            Error::config(format!("{:?} is no directory", self.directory)).with_source(error)
        })?;
        Ok(TablePlace { store: self.store.clone(), directory })
    }

    /// Fingerprints the rows and the way they are read.
    ///
    /// # Errors
    /// `Config` where the schema cannot be read.
    pub fn identity(&self) -> Result<String> {
        let schema: serde_json::Value = serde_json::from_str(&self.schema)
            .map_err(|error| Error::config("a schema is malformed").with_source(error))?;
        let mut form = Form::new("delta schema");
        fingerprint::json(&mut form, "schema", &schema)?;
        form.text("mapping", &format!("{:?}", self.mapping).to_lowercase());
        form.list("partition columns", &self.partition_columns, |form, name| {
            form.text("name", name);
            Ok(())
        })?;
        form.optional_text("scan filter", self.scan_filter.as_deref());
        let what = if self.changes { " changes" } else { "" };
        let after = self.after.map(|version| format!("{what} after {version}"));
        let after = after.unwrap_or_default();
        let read_as = &form.name()[..16];
        Ok(format!("delta {} version {}{after} read as {read_as}", self.table_id, self.version))
    }
}

impl fmt::Display for DeltaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at version {}", self.name, self.version)
    }
}
