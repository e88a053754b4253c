//! The actions of a table's log that a reader needs, as JSON has them.
//! Format: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#actions>.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use super::texts::{PartitionTexts, Text};
use crate::bounds::{DELTA_COMMIT, check_json};
use crate::{Error, Result};

/// One line of a commit or of a checkpoint: one of these, or an action that no reader needs. Nearly
/// all lines of a long log are files that came, so the others take no place in them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    /// A file that came.
    pub add: Option<Add>,
    /// A file that went.
    pub remove: Option<Box<Remove>>,
    /// A file of changed rows.
    pub cdc: Option<Box<Add>>,
    /// Schema and properties.
    pub meta_data: Option<Box<Metadata>>,
    /// What a reader has to know.
    pub protocol: Option<Box<Protocol>>,
    /// Who committed, when and why.
    pub commit_info: Option<Box<CommitInfo>>,
    /// A part of a checkpoint that lies in a file of its own.
    pub sidecar: Option<Box<Sidecar>>,
}

/// A data file that came.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Add {
    /// A URI, relative to the table or absolute.
    pub path: Text,
    /// The text of each partition column, by physical name.
    #[serde(default)]
    pub partition_values: PartitionTexts,
    /// Bytes.
    pub size: u64,
    /// Whether its rows are new to the table, and not only rearranged.
    #[serde(default = "yes")]
    pub data_change: bool,
    /// Statistics, a JSON text.
    pub stats: Option<Text>,
    /// Rows of it that are deleted.
    pub deletion_vector: Option<Box<VectorPlace>>,
    /// Its rows, by a checkpoint that keeps statistics as columns.
    #[serde(skip)]
    pub records: Option<u64>,
}

/// A data file that went.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remove {
    /// As in [`Add::path`].
    pub path: String,
    /// Whether its rows went, too.
    #[serde(default = "yes")]
    pub data_change: bool,
    /// The deletion vector that it had.
    pub deletion_vector: Option<VectorPlace>,
}

fn yes() -> bool {
    true
}

/// Where a deletion vector is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VectorPlace {
    /// `u`: in a file of the table's, named by a UUID; `p`: in a file at a URI; `i`: here.
    pub storage_type: String,
    /// The UUID or the vector in base 85, or the URI.
    pub path_or_inline_dv: String,
    /// Where the vector starts in its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Its bytes.
    pub size_in_bytes: u64,
    /// How many rows it deletes.
    pub cardinality: u64,
}

impl VectorPlace {
    /// A name that tells it from every other vector of a table.
    pub fn unique_id(&self) -> String {
        let place = format!("{}{}", self.storage_type, self.path_or_inline_dv);
        match self.offset {
            Some(offset) => format!("{place}@{offset}"),
            None => place,
        }
    }
}

/// A table's schema and properties.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The id that the table keeps for life.
    pub id: String,
    /// The schema, a JSON text.
    pub schema_string: String,
    /// The columns that are the same in all rows of a file, by their names in the schema.
    #[serde(default)]
    pub partition_columns: Vec<String>,
    /// Properties.
    #[serde(default)]
    pub configuration: BTreeMap<String, Option<String>>,
}

impl Metadata {
    /// A property.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.configuration.get(name)?.as_deref()
    }
}

/// The versions and features of the format that a table uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Protocol {
    /// The version that a reader has to know.
    pub min_reader_version: i32,
    /// The features that a reader has to know, from version 3 on.
    pub reader_features: Option<Vec<String>>,
}

/// What a commit says of itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitInfo {
    /// The commit's time where the table keeps times in its commits.
    pub in_commit_timestamp: Option<i64>,
    /// `WRITE`, `DELETE`, `OPTIMIZE` and the like.
    pub operation: Option<String>,
    /// Its arguments.
    pub operation_parameters: Option<serde_json::Value>,
    /// Its counters.
    pub operation_metrics: Option<serde_json::Value>,
    /// The program that wrote.
    pub engine_info: Option<String>,
}

/// A file with a part of a checkpoint.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sidecar {
    /// Its name in `_sidecars`, or a URI.
    pub path: String,
    /// Bytes.
    pub size_in_bytes: u64,
}

/// Reads a commit, or a checkpoint that is JSON: an action per line.
///
/// # Errors
/// `Data` naming the line, or the bound that it exceeds; storage errors as they are.
pub async fn read_json(store: &Arc<dyn ObjectStore>, path: &Path) -> Result<Vec<Action>> {
    let found = store.get(path).await?;
    DELTA_COMMIT.check(found.meta.size, "this file of a Delta log has")?;
    parse_actions(&found.bytes().await?)
}

fn parse_actions(bytes: &[u8]) -> Result<Vec<Action>> {
    let mut actions = Vec::new();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let located = |what: &dyn Display| {
            Error::data(format!("line {} is no action of a Delta log: {what}", number + 1))
        };
        check_json(line).map_err(|error| located(&error.message()))?;
        let action = serde_json::from_slice(line).map_err(|error| located(&error))?;
        actions.push(action);
    }
    Ok(actions)
}
