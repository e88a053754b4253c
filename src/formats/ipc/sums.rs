//! Checksums in stages' files, so that a stage is not read as it was not written.
//!
//! A file has one CRC-32 for the metadata of each record batch, and one for the buffers of each of
//! its columns: a reader checks the columns that it decodes, and no others. They lie before the
//! footer, where readers that do not know them see nothing, and the footer stays what it was:
//!
//! ```text
//! record batches | end of the stream | sums, padded to 8 bytes
//!                | magic, number of sums, sum of the footer, sum of the sums | footer
//! ```

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use arrow::datatypes::Schema;
use arrow::ipc::reader::read_footer_length;

use super::head::{IpcHead, MessageIndex, TRAILER, message_length, parse_footer, whole_range};
use super::message::{Message, damaged};
use crate::storage::open_own;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"TQSUMS01";

/// Bytes between the sums and the footer.
pub(super) const SUMS_TRAILER: u64 = 24;

/// Bytes of a sum.
const SUM: usize = 4;

/// The sums of a file that is being written.
#[derive(Debug, Default)]
pub struct SumsWriter {
    sums: Vec<u32>,
}

impl SumsWriter {
    /// Adds a record batch, encoded as one message.
    ///
    /// # Errors
    /// Where these bytes are no record batch of this schema.
    pub fn add(&mut self, message: &[u8], schema: &Schema) -> Result<()> {
        let length = message_length(message).map(|(prefix, length)| (prefix + length) as usize);
        let parts = length.and_then(|length| message.split_at_checked(length));
        let (metadata, body) = parts.ok_or_else(|| damaged("a message has no length"))?;
        self.sums.push(crc32fast::hash(metadata));
        for buffers in Message::parse(message)?.buffers_by_column(schema)? {
            self.sums.push(sum_of(body, &buffers)?);
        }
        Ok(())
    }

    /// Puts the sums into the encoded end of a file, from the mark that ends its messages on.
    ///
    /// # Errors
    /// Where these bytes are no end of a file.
    pub fn insert(&self, end: &mut Vec<u8>) -> Result<()> {
        let footer = footer_range(end)?;
        let mut stored: Vec<u8> = self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        stored.resize(padded(self.sums.len()), 0);
        let of_sums = crc32fast::hash(&stored);
        stored.extend_from_slice(MAGIC);
        stored.extend_from_slice(&(self.sums.len() as u64).to_le_bytes());
        stored.extend_from_slice(&crc32fast::hash(&end[footer.clone()]).to_le_bytes());
        stored.extend_from_slice(&of_sums.to_le_bytes());
        end.splice(footer.start..footer.start, stored);
        Ok(())
    }
}

fn padded(sums: usize) -> usize {
    (sums * SUM).next_multiple_of(8)
}

/// Where the footer of a file lies in its last bytes.
fn footer_range(end: &[u8]) -> Result<Range<usize>> {
    let short = || damaged("it is too short");
    let (body, trailer) = end.split_last_chunk::<{ TRAILER as usize }>().ok_or_else(short)?;
    let length = read_footer_length(*trailer).map_err(|_| damaged("its end is missing"))?;
    let start = body.len().checked_sub(length).ok_or_else(short)?;
    Ok(start..body.len())
}

/// The bytes before a footer that say how many sums there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SumsTrailer {
    sums: u64,
    of_footer: u32,
    of_sums: u32,
}

impl SumsTrailer {
    /// Reads the bytes before a footer; None where they are something else, as in the files of
    /// others.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.last_chunk::<{ SUMS_TRAILER as usize }>()?.strip_prefix(MAGIC)?;
        let (sums, rest) = rest.split_first_chunk::<8>()?;
        let (of_footer, rest) = rest.split_first_chunk::<4>()?;
        let of_sums = rest.first_chunk::<4>()?;
        Some(Self {
            sums: u64::from_le_bytes(*sums),
            of_footer: u32::from_le_bytes(*of_footer),
            of_sums: u32::from_le_bytes(*of_sums),
        })
    }

    /// Where the sums lie in a file whose footer begins at `footer`.
    ///
    /// # Errors
    /// `Data` where they do not lie in it.
    pub(super) fn range(self, footer: u64) -> Result<Range<u64>> {
        let end = footer.checked_sub(SUMS_TRAILER);
        let bytes =
            self.sums.checked_mul(SUM as u64).and_then(|sums| sums.checked_next_multiple_of(8));
        end.zip(bytes)
            .and_then(|(end, bytes)| Some(end.checked_sub(bytes)?..end))
            .ok_or_else(|| not_written("the number of its checksums"))
    }

    /// The sums, of which `stored` is all, in a file with this footer.
    ///
    /// # Errors
    /// `Data` where sums or footer are not those that were written.
    pub(super) fn open(self, stored: &[u8], footer: &[u8], head: &IpcHead) -> Result<Sums> {
        if crc32fast::hash(footer) != self.of_footer {
            return Err(not_written("its footer"));
        }
        let columns = head.schema().fields().len();
        let batches = match head.layout() {
            MessageIndex::File { batches, dictionaries, .. } if dictionaries.is_empty() => {
                batches.len()
            }
            _ => return Err(not_written("its footer")),
        };
        let count = batches * (columns + 1);
        if self.sums != count as u64
            || stored.len() != padded(count)
            || crc32fast::hash(stored) != self.of_sums
        {
            return Err(not_written("the list of its checksums"));
        }
        let (sums, _) = stored.as_chunks::<SUM>();
        let sums = sums.iter().take(count).map(|sum| u32::from_le_bytes(*sum)).collect();
        Ok(Sums { sums, columns })
    }
}

/// The sums of a file.
#[derive(Debug)]
pub struct Sums {
    /// For each record batch its metadata's, then its columns'.
    sums: Vec<u32>,
    columns: usize,
}

impl Sums {
    /// Checks the metadata of a record batch.
    ///
    /// # Errors
    /// `Data` where they are not those that were written.
    pub(super) fn check_metadata(&self, batch: usize, metadata: &[u8]) -> Result<()> {
        match self.sums.get(batch * (self.columns + 1)) == Some(&crc32fast::hash(metadata)) {
            true => Ok(()),
            false => Err(not_written("a record batch's description")),
        }
    }

    /// Checks the buffers of a column in the body of a record batch.
    ///
    /// # Errors
    /// `Data` where they are not those that were written.
    pub(super) fn check_column(
        &self,
        batch: usize,
        column: usize,
        body: &[u8],
        buffers: &[Range<u64>],
    ) -> Result<()> {
        let wanted = self.sums.get(batch * (self.columns + 1) + 1 + column);
        match wanted == Some(&sum_of(body, buffers)?) {
            true => Ok(()),
            false => Err(not_written(&format!("column {column} of a record batch"))),
        }
    }

    /// Bytes that they hold.
    pub(super) fn memory_size(&self) -> usize {
        self.sums.len() * size_of::<u32>()
    }
}

fn sum_of(body: &[u8], buffers: &[Range<u64>]) -> Result<u32> {
    let mut hash = crc32fast::Hasher::new();
    for range in buffers {
        let bytes = body.get(range.start as usize..range.end as usize);
        hash.update(bytes.ok_or_else(|| damaged("a buffer does not lie inside its record batch"))?);
    }
    Ok(hash.finalize())
}

/// A stage that is not as it was written. It is no bad file of the user's that may be skipped.
fn not_written(what: &str) -> Error {
    Error::data(format!(
        "the stage is damaged: {what} is not as it was written. Make the loader anew, which builds the stage again in \
         a folder; below a URL, remove it first (tensorquery.clear_stages)"
    ))
    .of_other_file()
}

/// Returns true if all of a stage's file is as it was written; a file without sums is not.
///
/// # Errors
/// Errors of the file system.
pub fn is_intact(path: &Path) -> io::Result<bool> {
    let file = open_own(path)?;
    let size = file.metadata()?.len();
    let Some(head) = head_of(&file, size)? else { return Ok(false) };
    let (Some(sums), MessageIndex::File { batches, .. }) = (head.sums(), head.layout()) else {
        return Ok(false);
    };
    let mut bytes = Vec::new();
    for (number, block) in batches.iter().enumerate() {
        let range = whole_range(block);
        bytes.resize((range.end - range.start) as usize, 0);
        file.read_exact_at(&mut bytes, range.start)?;
        let (metadata, body) = bytes.split_at(block.metaDataLength() as usize);
        let check = || {
            sums.check_metadata(number, metadata)?;
            let columns = Message::parse(metadata)?.buffers_by_column(head.schema())?;
            let mut columns = columns.iter().enumerate();
            columns
                .try_for_each(|(column, buffers)| sums.check_column(number, column, body, buffers))
        };
        if check().is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The head of a file; None where its footer is damaged.
fn head_of(file: &File, size: u64) -> io::Result<Option<IpcHead>> {
    let Some(trailer_at) = size.checked_sub(TRAILER) else { return Ok(None) };
    let mut trailer = [0; TRAILER as usize];
    file.read_exact_at(&mut trailer, trailer_at)?;
    let length = read_footer_length(trailer).map_or(u64::MAX, |length| length as u64);
    let Some(start) = trailer_at.checked_sub(length) else { return Ok(None) };
    let mut footer = vec![0; length as usize];
    file.read_exact_at(&mut footer, start)?;
    let mut trailer = [0; SUMS_TRAILER as usize];
    let trailer = match start.checked_sub(SUMS_TRAILER) {
        Some(at) => {
            file.read_exact_at(&mut trailer, at)?;
            SumsTrailer::parse(&trailer)
        }
        None => None,
    };
    let Ok(head) = parse_footer(&footer, start) else { return Ok(None) };
    let Some((trailer, range)) =
        trailer.and_then(|trailer| Some((trailer, trailer.range(start).ok()?)))
    else {
        return Ok(Some(head));
    };
    let mut stored = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut stored, range.start)?;
    Ok(trailer.open(&stored, &footer, &head).ok().map(|sums| head.with_sums(sums)))
}
