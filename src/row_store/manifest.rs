//! The manifest of a stage's directory.

use std::fs;
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::materialize::{UNSEALED, is_sealed, seal};
use crate::storage::read_own;
use crate::{Error, Result};

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const SCHEMA: &str = "schema.arrow";
const VERSION: u32 = 2;

/// A complete stage. It is written last: without it, there is no stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    version: u32,
    /// A checksum of this text.
    check: String,
    /// The plan's.
    pub(super) fingerprint: String,
    /// Splits that were executed.
    pub(super) splits: usize,
    /// SHA-256 of `schema.arrow`.
    schema_digest: String,
    /// `rows-0.arrow` and so on.
    pub(super) files: Vec<FileEntry>,
    /// In the order of the rows.
    pub(super) batches: Vec<BatchEntry>,
}

/// A file as its writer left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileEntry {
    pub(super) bytes: u64,
    /// Time of the last write, in nanoseconds since 1970.
    pub(super) modified_ns: u64,
    /// A checksum for each 4 MiB.
    pub(super) sums: Vec<u32>,
}

/// A record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchEntry {
    /// Index into the files.
    pub(super) file: u32,
    /// Index into the file's record batches.
    pub(super) block: u32,
    /// At least 1.
    pub(super) rows: u32,
}

/// The name of file `index`.
pub(super) fn file_name(index: usize) -> String {
    format!("rows-{index}.arrow")
}

impl FileEntry {
    /// A file with the size and time that the file system says.
    pub(super) fn of(metadata: &fs::Metadata, sums: Vec<u32>) -> io::Result<Self> {
        let since = metadata.modified()?.duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
        Ok(Self {
            bytes: metadata.len(),
            modified_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
            sums,
        })
    }
}

impl Manifest {
    /// Writes the schema, then the manifest, into a directory with all its files.
    pub(super) fn write(
        dir: &Path,
        schema: &Schema,
        fingerprint: &str,
        splits: usize,
        files: Vec<FileEntry>,
        batches: Vec<BatchEntry>,
    ) -> Result<()> {
        let encoded = StreamWriter::try_new(Vec::new(), schema)?.into_inner()?;
        let manifest = Self {
            version: VERSION,
            check: UNSEALED.to_owned(),
            fingerprint: fingerprint.to_owned(),
            splits,
            schema_digest: digest(&encoded),
            files,
            batches,
        };
        let text = serde_json::to_vec(&manifest)
            .map_err(|error| Error::storage("cannot write the manifest").with_source(error))?;
        save(&dir.join(SCHEMA), &encoded)?;
        save(&dir.join(MANIFEST), &seal(text))
    }

    /// Reads the manifest and the schema of the stage in `dir`.
    pub(super) fn read(dir: &Path) -> Result<(Self, SchemaRef), Unusable> {
        let text = read_own(&dir.join(MANIFEST)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Unusable::Lost(Error::storage(format!(
                "there is no stage in {}: it was removed, or not written yet. Make the loader anew, which writes it; where \
                 something cleans that folder up, set TENSORQUERY_STAGES to another one",
                dir.display()
            ))),
            _ => unreadable(dir, MANIFEST, &error),
        })?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|error| damaged(dir, format!("{MANIFEST} cannot be parsed: {error}")))?;
        if manifest.version != VERSION {
            return Err(damaged(
                dir,
                format!("its version is {}, and this program reads {VERSION}", manifest.version),
            ));
        }
        if !is_sealed(&text) {
            return Err(damaged(dir, format!("{MANIFEST} is not as it was written")));
        }
        for (number, batch) in manifest.batches.iter().enumerate() {
            if batch.rows == 0 || batch.file as usize >= manifest.files.len() {
                return Err(damaged(dir, format!("batch {number} of {MANIFEST} is impossible")));
            }
        }
        let encoded =
            read_own(&dir.join(SCHEMA)).map_err(|error| unreadable(dir, SCHEMA, &error))?;
        if digest(&encoded) != manifest.schema_digest {
            return Err(damaged(dir, format!("{SCHEMA} is not the one that was written")));
        }
        let schema = StreamReader::try_new(encoded.as_slice(), None).map_err(Error::from)?.schema();
        Ok((manifest, schema))
    }
}

/// Why a stage cannot be opened.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It is missing, or damaged: whoever has the plan may write it anew.
    Lost(Error),
    /// It may be whole.
    Unread(Error),
}

impl From<Error> for Unusable {
    fn from(error: Error) -> Self {
        Self::Unread(error)
    }
}

impl From<Unusable> for Error {
    fn from(why: Unusable) -> Self {
        match why {
            Unusable::Lost(error) | Unusable::Unread(error) => error,
        }
    }
}

/// A damaged stage, the reason, and a remedy.
pub(super) fn damaged(dir: &Path, why: impl std::fmt::Display) -> Unusable {
    Unusable::Lost(Error::storage(format!(
        "the stage in {} is damaged: {why}; delete the directory, and it is made again",
        dir.display()
    )))
}

/// An error of the file system, at a file of a stage.
pub(super) fn unreadable(dir: &Path, name: &str, error: &io::Error) -> Unusable {
    match error.kind() {
        io::ErrorKind::NotFound => damaged(dir, format!("{name} is missing")),
        _ => Unusable::Unread(Error::storage(format!(
            "cannot read {} of a stage: {error}",
            dir.join(name).display()
        ))),
    }
}

fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = fs::File::create(path)?;
        io::Write::write_all(&mut file, bytes)?;
        file.sync_all()
    };
    write().map_err(|error| Error::storage(format!("cannot write {}: {error}", path.display())))
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
