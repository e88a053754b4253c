//! Cutting a text file into byte ranges that begin and end with whole records.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use memchr::memchr;
use object_store::ObjectStore;

use super::pin::FilePin;
use super::text_scan::Scanner;
use crate::{Error, Result};

/// Bytes of one read of a scan.
const CHUNK: u64 = 4 * 1024 * 1024;
/// Reads of a scan under way at the same time.
const READ_AHEAD: usize = 4;
/// Bytes of the first read that looks for the end of a line; it doubles as the line goes on.
const PROBE: u64 = 16 * 1024;
/// Lines looked for at the same time.
const PROBES: usize = 16;
/// Bytes of a piece of whole records, about.
const PIECE: u64 = 4 * 1024;

/// The separators of a text file's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextDialect {
    /// Encloses fields that may hold terminators; doubled, it stands for itself. None: every
    /// terminator ends a record.
    pub quote: Option<u8>,
    /// Inside quotes, takes the byte after it as it stands.
    pub escape: Option<u8>,
    /// Separates fields.
    pub delimiter: u8,
    /// Ends records; None: a line feed, a carriage return, or both.
    pub terminator: Option<u8>,
    /// As the first byte of a record, makes the line a comment.
    pub comment: Option<u8>,
    /// Whether the first record holds the column names.
    pub header: bool,
}

impl TextDialect {
    /// Comma-separated values with a header, fields quoted by `"`.
    pub fn csv() -> Self {
        Self {
            quote: Some(b'"'),
            escape: None,
            delimiter: b',',
            terminator: None,
            comment: None,
            header: true,
        }
    }

    /// Newline-delimited JSON: a newline inside a string is escaped, so each one is a border.
    pub fn json_lines() -> Self {
        Self { quote: None, header: false, ..Self::csv() }
    }

    /// Returns true if a border is known by the terminator alone.
    fn is_line_based(&self) -> bool {
        self.quote.is_none() && self.comment.is_none() && !self.header
    }
}

/// Cuts an uncompressed text file into ranges of about `target_bytes`, in order and without gaps,
/// each of them whole records. A file that is not larger is one range, an empty file none. Where a
/// record is longer than `target_bytes`, so is its range.
///
/// CSV is read once from start to end; JSON lines only around the borders.
///
/// DataFusion 53.1 reads a `FileRange` from the first record that starts in it to the end of the
/// record that holds its last byte, where for it *any* line feed ends a record. A range from here
/// begins and ends right after one, so DataFusion moves neither end. Traps that the borders avoid:
/// - DataFusion looks for `\n` (or the terminator) only, so a border is never after a lone `\r`; a
///   file whose lines end in `\r` is one range.
/// - The header is skipped in the range that starts at 0 only, so the first border comes after the
///   first record, however many blank lines and comments precede it.
/// - Each range is parsed by a fresh parser, which drops a byte-order mark at its start; so no
///   border precedes such bytes, which inside a file are data.
/// - Quotes count only at the start of a field, not in the middle and not in comments; an escape
///   counts inside quotes only.
/// - Line numbers in DataFusion's messages count from the start of the range.
///
/// # Errors
///
/// `Config`, for comments together with a terminator other than a line feed: the parser then takes
/// all that follows the first comment for a part of it. Those of the store; through a
/// [`PinnedStore`](super::PinnedStore) also that the file changed.
pub async fn record_boundaries(
    store: &Arc<dyn ObjectStore>,
    pin: &FilePin,
    target_bytes: u64,
    dialect: TextDialect,
) -> Result<Vec<Range<u64>>> {
    if let (Some(comment), Some(terminator)) = (dialect.comment, dialect.terminator)
        && terminator != b'\n'
    {
        return Err(Error::config(format!(
            "comments (by {:?}) end at a line feed only, so they cannot go with the terminator {:?}; \
             leave one of them out",
            char::from(comment),
            char::from(terminator),
        )));
    }
    if pin.size == 0 {
        return Ok(Vec::new());
    }
    let pieces = pin.size.div_ceil(target_bytes.max(1));
    if pieces == 1 {
        return Ok(std::iter::once(0..pin.size).collect());
    }
    // Equal pieces: a short one at the end would be a split of its own for nothing.
    let target = pin.size.div_ceil(pieces);
    let borders = match dialect.is_line_based() {
        true => probe(store, pin, target, dialect).await?,
        false => scan(store, pin, target, dialect).await?,
    };
    let mut ranges = Vec::with_capacity(borders.len() + 1);
    let mut start = 0;
    for end in borders.into_iter().chain([pin.size]) {
        if end > start {
            ranges.push(start..end);
            start = end;
        }
    }
    Ok(ranges)
}

/// Reads the whole file and follows its quotes.
async fn scan(
    store: &Arc<dyn ObjectStore>,
    pin: &FilePin,
    target: u64,
    dialect: TextDialect,
) -> Result<Vec<u64>> {
    let mut scanner = Scanner::new(dialect, target);
    let mut chunks = stream::iter(0..pin.size.div_ceil(CHUNK))
        .map(|index| read(store, pin, index * CHUNK..pin.size.min((index + 1) * CHUNK)))
        .buffered(READ_AHEAD);
    while let Some(chunk) = chunks.try_next().await? {
        // Milliseconds of pure computing, which the threads that wait for I/O are not for.
        scanner = tokio::task::spawn_blocking(move || {
            scanner.feed(&chunk);
            scanner
        })
        .await
        .map_err(|error| Error::storage("the scan for records was stopped").with_source(error))?;
    }
    Ok(scanner.into_borders())
}

/// Reads from each wanted border to the end of the line.
async fn probe(
    store: &Arc<dyn ObjectStore>,
    pin: &FilePin,
    target: u64,
    dialect: TextDialect,
) -> Result<Vec<u64>> {
    let terminator = dialect.terminator.unwrap_or(b'\n');
    let wanted = (1..).map(|piece| piece * target).take_while(|at| *at < pin.size);
    stream::iter(wanted)
        .map(|at| async move {
            // The byte before may end a record.
            let (mut start, mut length) = (at - 1, PROBE);
            while start < pin.size {
                let end = pin.size.min(start + length);
                let bytes = read(store, pin, start..end).await?;
                if let Some(found) = memchr(terminator, &bytes) {
                    return Ok(start + found as u64 + 1);
                }
                (start, length) = (end, (length * 2).min(CHUNK));
            }
            Ok(pin.size)
        })
        .buffered(PROBES)
        .try_collect()
        .await
}

/// Text that comes in chunks, however they are cut, in pieces of whole records.
pub struct WholeRecords {
    scanner: Scanner,
    /// Bytes that were fed and not returned yet.
    open: Vec<u8>,
    /// Where that begins in the text.
    start: u64,
}

impl WholeRecords {
    /// Nothing yet of a text.
    pub fn new(dialect: TextDialect) -> Self {
        Self { scanner: Scanner::new(dialect, PIECE), open: Vec::new(), start: 0 }
    }

    /// Takes the next bytes. The records before the last border that was found, where there is a
    /// new one.
    pub fn feed(&mut self, chunk: &[u8]) -> Option<Vec<u8>> {
        self.scanner.feed(chunk);
        self.open.extend_from_slice(chunk);
        let border = self.scanner.last_border().filter(|border| *border > self.start)?;
        let rest = self.open.split_off((border - self.start) as usize);
        self.start = border;
        Some(std::mem::replace(&mut self.open, rest))
    }

    /// Bytes fed and not given yet.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// These bytes, at the end of the text.
    pub fn rest(self) -> Vec<u8> {
        self.open
    }
}

async fn read(store: &Arc<dyn ObjectStore>, pin: &FilePin, range: Range<u64>) -> Result<Bytes> {
    let read = store.get_ranges(&pin.location, std::slice::from_ref(&range)).await?;
    let length = range.end - range.start;
    match read.into_iter().next() {
        Some(bytes) if bytes.len() as u64 == length => Ok(bytes),
        _ => Err(Error::data(format!(
            "file {} ended before byte {}; register the table again",
            pin.location, range.end
        ))),
    }
}
