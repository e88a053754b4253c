//! One snapshot of an Iceberg table as plain data, for worker processes, which have no catalog.

use std::fmt;
use std::sync::Arc;

use iceberg::spec::{NameMapping, Schema as IcebergSchema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fingerprint::{self, Form};
use crate::{Error, Result};

/// How the rows of a data file or a delete file are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Apache Parquet.
    Parquet,
    /// Apache ORC.
    Orc,
    /// Apache Avro; delete files only.
    Avro,
}

/// One data file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// The file's URI as the manifest has it, which position deletes name it by.
    pub uri: String,
    /// The file's size in bytes.
    pub size: u64,
    /// Rows stored in it, deleted ones included.
    pub records: u64,
    /// Its format.
    pub format: Storage,
    /// The partition spec it was written under.
    pub spec: i32,
    /// Its data sequence number: an equality delete applies where its own is greater.
    pub sequence: i64,
    /// Indices of the delete files that list positions in it: one deletion vector, or position
    /// delete files.
    pub positions: Vec<u32>,
    /// Indices of the groups of equality deletes that may delete rows of it.
    pub equality: Vec<u32>,
}

impl DataFile {
    /// Returns true if any delete may apply to it.
    pub fn has_deletes(&self) -> bool {
        !self.positions.is_empty() || !self.equality.is_empty()
    }
}

/// The kind of a delete file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeleteKind {
    /// Paths of data files and positions in them.
    Positions,
    /// A deletion vector: the bytes of one Puffin blob, for one data file.
    Vector {
        /// Where the blob starts.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// Rows that say by some columns which rows are deleted.
    Equality,
}

/// One delete file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteFile {
    /// Its URI.
    pub uri: String,
    /// Its size in bytes.
    pub size: u64,
    /// Rows in it, or positions in a deletion vector.
    pub records: u64,
    /// Its format; a deletion vector's Puffin file has none of these.
    pub format: Storage,
    /// Its data sequence number.
    pub sequence: i64,
    /// The kind of deletes in it.
    pub kind: DeleteKind,
    /// For position deletes, the data file they are of, where metadata says that it is only one.
    pub target: Option<String>,
}

/// Equality deletes by the same columns and of the same partition (or of all), of any sequence
/// numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EqualityGroup {
    /// The columns' names in [`LakeSpec::schema`].
    pub columns: Vec<String>,
    /// Indices of the delete files.
    pub files: Vec<u32>,
}

/// A snapshot of a table, pinned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LakeSpec {
    /// The table's name as the user wrote it.
    pub name: String,
    /// The table's UUID.
    pub uuid: String,
    /// The metadata file the snapshot was found in, where it is known.
    pub metadata_location: Option<String>,
    /// The snapshot; None for a table without one, and so without rows.
    pub snapshot: Option<i64>,
    /// For an incremental scan, the snapshot after which it starts.
    pub after: Option<i64>,
    /// The columns that a query sees, then columns of equality deletes that the table has dropped.
    #[serde(deserialize_with = "super::defaults::deserialize")]
    pub schema: Arc<IcebergSchema>,
    /// How many of the columns a query sees.
    pub visible: usize,
    /// Column names of files without field ids.
    pub mapping: Option<NameMapping>,
    /// Data files, by path.
    pub files: Vec<DataFile>,
    /// Delete files.
    pub deletes: Vec<DeleteFile>,
    /// Equality deletes.
    pub groups: Vec<EqualityGroup>,
    /// A SQL predicate by which files are pruned, and no other.
    pub scan_filter: Option<String>,
}

impl LakeSpec {
    /// With only these of its data files.
    #[must_use]
    pub fn narrowed(&self, kept: &[usize]) -> Self {
        let files = kept.iter().map(|index| self.files[*index].clone()).collect();
        Self { files, ..self.clone() }
    }

    /// Fingerprints the rows and the way they are read: the snapshot, and the schema, which can
    /// change without one.
    ///
    /// # Errors
    /// `Config` where the schema cannot be written as JSON.
    pub fn identity(&self) -> Result<String> {
        let after = self.after.map(|id| format!(" after {id}")).unwrap_or_default();
        let snapshot = match self.snapshot {
            Some(id) => format!("snapshot {id}{after}"),
            None => "without a snapshot".to_owned(),
        };
        Ok(format!("{} {snapshot} read as {}", self.uuid, &self.read_as()?.name()[..16]))
    }

    /// The schema and how its columns are found in files, as the JSON of Iceberg's specification
    /// has them.
    fn read_as(&self) -> Result<Form> {
        let unwritable = |error| Error::config("a schema cannot be written").with_source(error);
        let mut schema = serde_json::to_value(&self.schema).map_err(unwritable)?;
        if let Some(ids) = schema.get_mut("identifier-field-ids").and_then(Value::as_array_mut) {
            // A set, which has another order each time.
            ids.sort_by_key(Value::as_i64);
        }
        let mapping = serde_json::to_value(&self.mapping).map_err(unwritable)?;
        let mut form = Form::new("iceberg schema");
        fingerprint::json(&mut form, "schema", &schema)?;
        fingerprint::json(&mut form, "name mapping", &mapping)?;
        form.optional_text("scan filter", self.scan_filter.as_deref());
        Ok(form)
    }
}

impl fmt::Display for LakeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.snapshot {
            Some(id) => write!(f, "{} at snapshot {id}", self.name),
            None => write!(f, "{} without a snapshot", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use iceberg::spec::{NestedField, PrimitiveType, Type};

    use super::*;

    fn spec(keys: &[i32], name: &str) -> LakeSpec {
        let field = |id| {
            let kind = Type::Primitive(PrimitiveType::Long);
            Arc::new(NestedField::required(id, format!("{name}{id}"), kind))
        };
        let schema = IcebergSchema::builder()
            .with_fields((1..=8).map(field))
            .with_identifier_field_ids(keys.iter().copied())
            .build()
            .unwrap();
        LakeSpec {
            name: "t".to_owned(),
            uuid: "u".to_owned(),
            metadata_location: None,
            snapshot: Some(7),
            after: None,
            schema: Arc::new(schema),
            visible: 8,
            mapping: None,
            files: Vec::new(),
            deletes: Vec::new(),
            groups: Vec::new(),
            scan_filter: None,
        }
    }

    #[test]
    fn an_identity_is_the_same_each_time_a_table_is_loaded() {
        let keys = [1, 2, 3, 4, 5, 6, 7];
        let found = spec(&keys, "c").identity().unwrap();
        assert_eq!(found, "u snapshot 7 read as 48f6a2bdefcf9ac3");
        for _ in 0..20 {
            assert_eq!(spec(&keys, "c").identity().unwrap(), found);
        }
        let filtered = LakeSpec { scan_filter: Some("c1 > 1".to_owned()), ..spec(&keys, "c") };
        let later = LakeSpec { snapshot: Some(8), ..spec(&keys, "c") };
        let after = LakeSpec { after: Some(6), ..spec(&keys, "c") };
        let mapped = LakeSpec { mapping: Some(NameMapping::new(Vec::new())), ..spec(&keys, "c") };
        for other in [spec(&keys[1..], "c"), spec(&keys, "d"), filtered, later, after, mapped] {
            assert_ne!(other.identity().unwrap(), found);
        }
    }
}
