//! One snapshot of an Iceberg table as plain data: what a worker process gets instead of a catalog.

use std::fmt;
use std::sync::Arc;

use iceberg::spec::{NameMapping, Schema as IcebergSchema};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

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
    /// Indices of the delete files that list positions in it: one deletion vector, or position delete files.
    pub positions: Vec<u32>,
    /// Indices of the groups of equality deletes that may delete rows of it.
    pub equality: Vec<u32>,
}

impl DataFile {
    /// Whether any delete may apply to it.
    pub fn has_deletes(&self) -> bool {
        !self.positions.is_empty() || !self.equality.is_empty()
    }
}

/// What a delete file holds.
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
    /// What it holds.
    pub kind: DeleteKind,
    /// For position deletes, the data file they are of, where metadata says that it is only one.
    pub target: Option<String>,
}

/// Equality deletes by the same columns and of the same partition (or of all), whatever their sequence numbers.
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
    /// The columns that a query sees, then those of equality deletes that the table has dropped.
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

    /// What identifies the rows and how they are read: the snapshot, and the schema, which changes without one.
    pub fn identity(&self) -> String {
        let after = self.after.map(|id| format!(" after {id}")).unwrap_or_default();
        let snapshot = match self.snapshot {
            Some(id) => format!("snapshot {id}{after}"),
            None => "without a snapshot".to_owned(),
        };
        // Plain data throughout, so it always has a text.
        let read_as = serde_json::to_string(&(&self.schema, &self.mapping, &self.scan_filter));
        let digest = Sha256::digest(read_as.unwrap_or_default().as_bytes());
        let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{} {snapshot} read as {digest}", self.uuid)
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
