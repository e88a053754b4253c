//! Footers whose row groups the `parquet` crate refuses to number: more of them than its 16 bits
//! count, or with numbers in some of them only, as parquet-go writes them. Nobody here reads these
//! numbers, so they are left out, and the footer is decoded in parts.

use std::ops::Range;

use parquet::errors::Result;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::shapes::{FOOTER, ROW_GROUP};
use super::thrift::{STRUCT, Walk};

/// Row groups that the crate numbers.
const MOST_GROUPS: usize = 1 << 15;

/// The field of a row group with its number.
const ORDINAL: i16 = 7;

/// Where the row groups of a footer lie in its bytes.
struct Groups {
    /// The list of them, with its header.
    list: Range<usize>,
    groups: Vec<Group>,
}

struct Group {
    bytes: Range<usize>,
    /// The start of its number; later bytes are unknown to the crate.
    ordinal: Option<usize>,
}

/// The footer in `bytes`, if its row groups cannot be numbered as they are.
pub(super) fn renumbered(bytes: &[u8]) -> Option<Result<ParquetMetaData>> {
    let found = groups_of(bytes)?;
    let numbered = found.groups.iter().filter(|group| group.ordinal.is_some()).count();
    let is_mixed = numbered > 0 && numbered < found.groups.len();
    (is_mixed || found.groups.len() > MOST_GROUPS).then(|| found.decode(bytes))
}

/// None where a row group has a known field behind its number, or the footer is no whole one.
fn groups_of(bytes: &[u8]) -> Option<Groups> {
    let mut walk = Walk::new(bytes);
    let at = |walk: &Walk| bytes.len() - walk.left();
    let mut field = 0;
    let mut found = None;
    while let Some(kind) = walk.field(&mut field)? {
        if field != 4 || !Walk::is_list(kind) {
            walk.known(kind, field, FOOTER, 0)?;
            continue;
        }
        let start = at(&walk);
        let mut groups = Vec::new();
        walk.structures(|walk| {
            let start = at(walk);
            let (mut field, mut ordinal) = (0, None);
            loop {
                let header = at(walk);
                let Some(kind) = walk.field(&mut field)? else { break };
                match field {
                    ORDINAL => ordinal = Some(header),
                    1..ORDINAL if ordinal.is_some() => return None,
                    _ => (),
                }
                walk.known(kind, field, ROW_GROUP, 1)?;
            }
            groups.push(Group { bytes: start..at(walk), ordinal });
            Some(())
        })?;
        found = Some(Groups { list: start..at(&walk), groups });
    }
    found
}

impl Groups {
    /// In parts of as many row groups as the crate numbers, put together again.
    fn decode(&self, bytes: &[u8]) -> Result<ParquetMetaData> {
        let mut parts = self.groups.chunks(MOST_GROUPS);
        let first = parts.next().unwrap_or_default();
        let footer = ParquetMetaDataReader::decode_metadata(&self.with(bytes, first))?;
        let mut footer = footer.into_builder();
        for part in parts {
            let part = ParquetMetaDataReader::decode_metadata(&self.with(bytes, part))?;
            for group in part.into_builder().take_row_groups() {
                footer = footer.add_row_group(group);
            }
        }
        Ok(footer.build())
    }

    /// Encodes the footer with only these row groups, without their numbers.
    fn with(&self, bytes: &[u8], groups: &[Group]) -> Vec<u8> {
        let mut found = bytes[..self.list.start].to_vec();
        match u8::try_from(groups.len()) {
            Ok(few) if few < 15 => found.push(few << 4 | STRUCT),
            _ => {
                found.push(15 << 4 | STRUCT);
                let mut count = groups.len();
                while count > 0x7f {
                    found.push((count & 0x7f) as u8 | 0x80);
                    count >>= 7;
                }
                found.push(count as u8);
            }
        }
        for group in groups {
            match group.ordinal {
                Some(ordinal) => {
                    found.extend_from_slice(&bytes[group.bytes.start..ordinal]);
                    // The end of a structure.
                    found.push(0);
                }
                None => found.extend_from_slice(&bytes[group.bytes.clone()]),
            }
        }
        found.extend_from_slice(&bytes[self.list.end..]);
        found
    }
}
