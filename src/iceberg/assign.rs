//! Which deletes apply to which data files: <https://iceberg.apache.org/spec/#scan-planning>.

use std::collections::HashMap;

use iceberg::spec::{
    DataContentType, DataFileFormat, Literal, PrimitiveLiteral, Struct, TableMetadata,
};

use super::manifests::Entry;
use super::spec::{DeleteFile, DeleteKind, EqualityGroup, Storage};
use crate::{Error, Result};

/// The field id of the column `file_path` of position delete files.
const FILE_PATH_ID: i32 = 2_147_483_546;

/// Deletes by the data that they apply to.
#[derive(Debug, Default)]
pub struct Deletes {
    /// All delete files.
    pub files: Vec<DeleteFile>,
    /// All groups of equality deletes; columns by field id.
    pub groups: Vec<(Vec<i32>, EqualityGroup)>,
    vectors: HashMap<String, u32>,
    /// Position deletes that say the one data file they are of.
    by_path: HashMap<String, Vec<u32>>,
    by_partition: HashMap<Partition, Vec<u32>>,
    equality: HashMap<Partition, Vec<u32>>,
    /// Equality deletes of an unpartitioned spec, which apply to files of every partition.
    global: Vec<u32>,
}

/// A partition: the spec and the values of its fields.
type Partition = (i32, Struct);

impl Deletes {
    /// Sorts the delete files among `entries`.
    ///
    /// # Errors
    /// `Data` where an entry is malformed, and for formats of delete files that cannot be read.
    pub fn of(metadata: &TableMetadata, entries: &[Entry]) -> Result<Self> {
        let mut found = Self::default();
        let mut groups: HashMap<(Vec<i32>, Option<Partition>), u32> = HashMap::new();
        for entry in entries.iter().filter(|entry| !entry.is_data()) {
            let file = entry.entry.data_file();
            let id = u32::try_from(found.files.len()).unwrap_or(u32::MAX);
            let partition = partition_of(entry);
            let mut target = None;
            let kind = match (file.content_type(), file.file_format()) {
                (_, DataFileFormat::Puffin) => {
                    let path = file.referenced_data_file().ok_or_else(|| incomplete(entry))?;
                    if found.vectors.insert(path.clone(), id).is_some() {
                        return Err(Error::data(format!(
                            "data file {path} has two deletion vectors, one of them in {}",
                            file.file_path()
                        )));
                    }
                    let number = |value: Option<i64>| value.and_then(|v| u64::try_from(v).ok());
                    DeleteKind::Vector {
                        offset: number(file.content_offset()).ok_or_else(|| incomplete(entry))?,
                        length: number(file.content_size_in_bytes())
                            .ok_or_else(|| incomplete(entry))?,
                    }
                }
                (DataContentType::EqualityDeletes, _) => {
                    let mut ids = file.equality_ids().unwrap_or_default();
                    ids.sort_unstable();
                    if ids.is_empty() {
                        return Err(incomplete(entry));
                    }
                    let spec = metadata.partition_spec_by_id(entry.spec);
                    let is_global = spec.is_some_and(|spec| spec.is_unpartitioned());
                    let scope = (!is_global).then(|| partition.clone());
                    let group = *groups.entry((ids.clone(), scope.clone())).or_insert_with(|| {
                        found.groups.push((ids, EqualityGroup { columns: vec![], files: vec![] }));
                        let group = u32::try_from(found.groups.len() - 1).unwrap_or(u32::MAX);
                        match scope {
                            Some(partition) => {
                                found.equality.entry(partition).or_default().push(group);
                            }
                            None => found.global.push(group),
                        }
                        group
                    });
                    found.groups[group as usize].1.files.push(id);
                    DeleteKind::Equality
                }
                _ => {
                    target = only_target(file);
                    match target.clone() {
                        Some(path) => found.by_path.entry(path).or_default().push(id),
                        None => found.by_partition.entry(partition).or_default().push(id),
                    }
                    DeleteKind::Positions
                }
            };
            found.files.push(DeleteFile {
                uri: file.file_path().to_owned(),
                size: file.file_size_in_bytes(),
                records: file.record_count(),
                format: match kind {
                    DeleteKind::Vector { .. } => Storage::Parquet,
                    _ => storage_of(file.file_format(), file.file_path(), "delete file")?,
                },
                sequence: entry.sequence,
                kind,
                target,
            });
        }
        Ok(found)
    }

    /// The deletion vector or the position delete files that apply to a data file.
    pub fn positions(&self, data: &Entry) -> Vec<u32> {
        let path = data.entry.file_path();
        let applies = |id: &u32| self.files[*id as usize].sequence >= data.sequence;
        if let Some(vector) = self.vectors.get(path).filter(|id| applies(id)) {
            // A vector holds all earlier position deletes of its file.
            return vec![*vector];
        }
        let partition = partition_of(data);
        let in_partition = self.by_partition.get(&partition);
        let all = self.by_path.get(path).into_iter().chain(in_partition).flatten();
        all.copied().filter(applies).collect()
    }

    /// The groups of equality deletes that may apply to a data file, at least one delete of each.
    pub fn equality(&self, data: &Entry) -> Vec<u32> {
        let partition = partition_of(data);
        let newer = |group: &u32| {
            let files = &self.groups[*group as usize].1.files;
            files.iter().any(|id| self.files[*id as usize].sequence > data.sequence)
        };
        let own = self.equality.get(&partition).into_iter().flatten();
        own.chain(&self.global).copied().filter(newer).collect()
    }
}

/// The partition of a file. Each manifest is decoded by the schema it was written under, so values
/// of a column that was widened since come in two types.
fn partition_of(entry: &Entry) -> Partition {
    let widened = |value: Option<&Literal>| match value {
        Some(Literal::Primitive(PrimitiveLiteral::Int(value))) => {
            Some(Literal::long(i64::from(*value)))
        }
        Some(Literal::Primitive(PrimitiveLiteral::Float(value))) => {
            Some(Literal::double(f64::from(value.0)))
        }
        other => other.cloned(),
    };
    (entry.spec, entry.entry.data_file().partition().iter().map(widened).collect())
}

/// The data file that a position delete file is about, where its metadata says that it is only one.
fn only_target(file: &iceberg::spec::DataFile) -> Option<String> {
    if let Some(path) = file.referenced_data_file() {
        return Some(path);
    }
    let bound = |bounds: &HashMap<i32, iceberg::spec::Datum>| match bounds
        .get(&FILE_PATH_ID)
        .map(iceberg::spec::Datum::literal)
    {
        Some(PrimitiveLiteral::String(path)) => Some(path.clone()),
        _ => None,
    };
    let (least, greatest) = (bound(file.lower_bounds())?, bound(file.upper_bounds())?);
    // Equal bounds are whole paths: a shortened upper bound would be greater than the lower one.
    (least == greatest).then_some(least)
}

/// The format of a file that Iceberg's metadata names.
///
/// # Errors
/// `Data` for formats that cannot be read here.
pub fn storage_of(format: DataFileFormat, path: &str, what: &str) -> Result<Storage> {
    match format {
        DataFileFormat::Avro if what == "delete file" => Ok(Storage::Avro),
        DataFileFormat::Parquet => Ok(Storage::Parquet),
        DataFileFormat::Orc => Ok(Storage::Orc),
        other => Err(Error::data(format!(
            "the {what} {path} is in the format {other}, which is not supported; rewrite it as Parquet \
             (write.format.default=parquet, then rewrite_data_files)"
        ))),
    }
}

fn incomplete(entry: &Entry) -> Error {
    Error::data(format!(
        "the manifest entry of the delete file {} is incomplete: it lacks the columns, the data file or the place \
         of its content",
        entry.entry.file_path()
    ))
}

/// The value of a partition field, by its position in the spec.
pub fn partition_value(partition: &Struct, position: usize) -> Option<&PrimitiveLiteral> {
    match partition.iter().nth(position)? {
        Some(Literal::Primitive(value)) => Some(value),
        _ => None,
    }
}
