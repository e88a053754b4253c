//! Reads the page headers of a column chunk.

use std::collections::VecDeque;
use std::ops::Range;

use parquet::basic::Encoding;

use super::stored::Stored;

/// Where the header of a data page has the encoding of its definition levels, and of its repetition
/// levels.
pub(super) const DEFINITION_LEVELS: usize = 3;
pub(super) const REPETITION_LEVELS: usize = 4;

/// Kinds of pages, as the format numbers them.
const DATA: i64 = 0;
const INDEX: i64 = 1;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;

/// Bytes of pages that are not worth a read of each header: of such a chunk, all is read at once.
const SMALL_PAGE: usize = 1024;

/// Pages by which that is judged.
const JUDGED_PAGES: usize = 16;

/// A page that is not read yet.
#[derive(Debug)]
pub(super) struct Head {
    /// Where it lies in the chunk.
    pub(super) stored: Range<usize>,
    /// Bytes of the compressed part after decompression.
    pub(super) declared: usize,
    pub(super) checksum: Option<u32>,
    /// Its values, missing ones included.
    pub(super) rows: u32,
    pub(super) values: Values,
    pub(super) levels: Levels,
}

impl Head {
    /// The head of a page without wanted rows, which was not read.
    fn passed_over(rows: u32) -> Self {
        Self {
            stored: 0..0,
            declared: 0,
            checksum: None,
            rows,
            values: Values::Plain,
            levels: Levels::Inside,
        }
    }
}

/// How values lie in a page.
#[derive(Clone, Copy, Debug)]
pub(super) enum Values {
    Plain,
    /// Numbers of values of the dictionary.
    Indices,
}

/// Where a page has its definition levels.
#[derive(Clone, Debug)]
pub(super) enum Levels {
    /// Behind their length, at the start of the decompressed bytes.
    Inside,
    /// Before the possibly compressed bytes: repetition levels of so many bytes, then definition
    /// levels.
    Before { skipped: usize, bytes: usize, compressed: bool },
}

/// The dictionary, if there is one, and the data pages of a chunk.
pub(super) struct Heads {
    pub(super) dictionary: Option<Head>,
    pub(super) pages: VecDeque<Head>,
}

/// The pages of `chunk`, which have `rows` rows in all, with levels that the headers of data pages
/// tell the encodings of in the fields `levels`. None where any of them is not
/// one that is read here, or is damaged: the reader of the `parquet` crate then has the word.
pub(super) fn heads(chunk: &Stored, rows: usize, levels: &[usize]) -> Option<Heads> {
    let mut heads = Heads { dictionary: None, pages: VecDeque::new() };
    let (mut at, mut found) = (0_usize, 0_usize);
    let length = chunk.len();
    while at < length {
        if let Some(page) = chunk.indexed(at).filter(|page| !page.is_here) {
            // One without bytes would be passed over for ever.
            (page.end > at).then_some(())?;
            heads.pages.push_back(Head::passed_over(page.rows));
            found = found.checked_add(page.rows as usize)?;
            at = page.end;
            continue;
        }
        let header = match chunk.header(at) {
            Some(header) => header,
            // Something behind the last page. Of a file, that may be a page too many which is not
            // in memory.
            None if found == rows && chunk.is_read() => break,
            None => return None,
        };
        let first = at.checked_add(header.length)?;
        let end = first.checked_add(usize::try_from(header.stored).ok()?)?;
        (end <= length).then_some(())?;
        at = end;
        let declared = usize::try_from(header.declared).ok()?;
        let detail = |field: usize| header.details[field];
        let number = |field: usize| u32::try_from(detail(field)?).ok();
        let (encoding, levels) = match header.kind? {
            INDEX => continue,
            DICTIONARY if heads.dictionary.is_none() && heads.pages.is_empty() => {
                // The one encoding goes by two names here, of which the second is that of the
                // indices.
                is_one_of(detail(2), &[Encoding::PLAIN, PLAIN_DICTIONARY]).then_some(())?;
                heads.dictionary = Some(Head {
                    stored: first..end,
                    declared,
                    checksum: header.checksum,
                    rows: number(1)?,
                    values: Values::Plain,
                    levels: Levels::Inside,
                });
                continue;
            }
            DATA => {
                let is_hybrid = |field: &usize| is_one_of(detail(*field), &[Encoding::RLE]);
                levels.iter().all(is_hybrid).then_some(())?;
                (detail(2), Levels::Inside)
            }
            DATA_V2 => {
                let (skipped, bytes) = (number(6)? as usize, number(5)? as usize);
                let compressed = detail(7) != Some(0);
                (detail(4), Levels::Before { skipped, bytes, compressed })
            }
            _ => return None,
        };
        let values = match encoding {
            _ if is_one_of(encoding, &[Encoding::PLAIN]) => Values::Plain,
            _ if is_one_of(encoding, &[Encoding::RLE_DICTIONARY, PLAIN_DICTIONARY]) => {
                heads.dictionary.as_ref()?;
                Values::Indices
            }
            _ => return None,
        };
        let levels_bytes = match levels {
            Levels::Inside => 0,
            Levels::Before { skipped, bytes, .. } => skipped.checked_add(bytes)?,
        };
        (levels_bytes <= end - first).then_some(())?;
        let declared = declared.checked_sub(levels_bytes)?;
        let rows = number(1)?;
        found = found.checked_add(rows as usize)?;
        let (stored, checksum) = (first..end, header.checksum);
        heads.pages.push_back(Head { stored, declared, checksum, rows, values, levels });
        if !chunk.is_read()
            && heads.pages.len() >= JUDGED_PAGES
            && at / heads.pages.len() < SMALL_PAGE
        {
            return None;
        }
    }
    (found == rows).then_some(heads)
}

const PLAIN_DICTIONARY: Encoding = Encoding::PLAIN_DICTIONARY;

fn is_one_of(number: Option<i64>, encodings: &[Encoding]) -> bool {
    encodings.iter().any(|encoding| number == Some(*encoding as i64))
}
