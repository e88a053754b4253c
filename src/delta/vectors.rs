//! Deletion vectors: where they are, and the rows that they delete.
//! Format: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vector-format>.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use roaring::RoaringTreemap;
use tokio::sync::OnceCell;

use super::actions::VectorPlace;
use super::place::TablePlace;
use crate::bounds::DELETION_VECTOR;
use crate::formats::Positions;
use crate::iceberg::{deletion_vector, positions_in, vector_body};
use crate::{Error, Result};

/// The digits of base 85, as ZeroMQ's Z85 has them.
const DIGITS: &[u8; 85] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

/// Characters of a UUID in base 85.
const UUID_CHARS: usize = 20;

/// Bytes of a vector's length before it, and of its checksum behind it.
const FRAME_BYTES: u64 = 8;

/// The deletion vectors that were asked for so far, by data file.
#[derive(Debug, Default)]
pub struct VectorCache {
    read: Mutex<HashMap<usize, Arc<OnceCell<Positions>>>>,
}

impl VectorCache {
    /// The rows that a vector deletes of data file `index`, which has `records` rows.
    ///
    /// # Errors
    /// `Data` where the vector is damaged or too large; storage errors as they are.
    pub async fn positions(
        &self,
        store: &Arc<dyn ObjectStore>,
        place: &TablePlace,
        index: usize,
        vector: &VectorPlace,
        records: u64,
    ) -> Result<Positions> {
        let cell = {
            let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(read.entry(index).or_default())
        };
        let found = cell.get_or_try_init(|| async {
            let found = read_vector(store, place, vector).await?;
            match found.max() {
                Some(row) if row >= records => Err(Error::data(format!(
                    "a deletion vector names row {row} of a data file that has {records} rows"
                ))),
                _ => Ok(Arc::new(found)),
            }
        });
        Ok(Arc::clone(found.await?))
    }
}

/// The rows that a vector deletes.
///
/// # Errors
/// `Data` where it is damaged; storage errors as they are.
pub async fn read_vector(
    store: &Arc<dyn ObjectStore>,
    place: &TablePlace,
    vector: &VectorPlace,
) -> Result<RoaringTreemap> {
    if vector.storage_type == "i" {
        let mut bytes = decode(&vector.path_or_inline_dv)?;
        // Base 85 has whole words.
        bytes.truncate(usize::try_from(vector.size_in_bytes).unwrap_or(usize::MAX));
        return positions_in(&bytes, vector.cardinality);
    }
    let path = path_of(place, vector)?;
    let start = vector.offset.unwrap_or(0);
    let located = |error: Error| error.with_context("deletion vector", place.describe(&path));
    let end =
        vector.size_in_bytes.checked_add(FRAME_BYTES).and_then(|size| start.checked_add(size));
    let end = end.ok_or_else(|| located(Error::data("its place is beyond any file")))?;
    let size = vector.size_in_bytes;
    DELETION_VECTOR.check(size, "the deletion vector has").map_err(located)?;
    let bytes = store.get_range(&path, start..end).await.map_err(|error| located(error.into()))?;
    deletion_vector(&bytes, vector.cardinality).map_err(located)
}

/// The file that a vector is in.
fn path_of(place: &TablePlace, vector: &VectorPlace) -> Result<Path> {
    let text = &vector.path_or_inline_dv;
    match vector.storage_type.as_str() {
        "p" => place.key_of(text),
        "u" => {
            let malformed = || Error::data(format!("a deletion vector's name {text:?} is no UUID"));
            let cut = text.len().checked_sub(UUID_CHARS).ok_or_else(malformed)?;
            let (prefix, id) = text.split_at_checked(cut).ok_or_else(malformed)?;
            let id: [u8; 16] = decode(id)?.try_into().map_err(|_| malformed())?;
            let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            let id = format!(
                "{}-{}-{}-{}-{}",
                &hex[..8],
                &hex[8..12],
                &hex[12..16],
                &hex[16..20],
                &hex[20..]
            );
            let name = format!("deletion_vector_{id}.bin");
            let directory = place.directory.clone();
            Ok(match prefix {
                "" => directory.join(name),
                prefix => directory.join(prefix).join(name),
            })
        }
        other => Err(Error::data(format!(
            "a deletion vector is stored in a way that is not known here: {other:?}; known are u, p and i"
        ))),
    }
}

/// A vector that holds its rows itself.
///
/// # Errors
/// As [`vector_body`].
pub fn inline(rows: &RoaringTreemap) -> Result<VectorPlace> {
    let body = vector_body(rows)?;
    Ok(VectorPlace {
        storage_type: "i".to_owned(),
        path_or_inline_dv: encode(&body),
        offset: None,
        size_in_bytes: body.len() as u64,
        cardinality: rows.len(),
    })
}

/// Bytes in base 85, filled up to whole words.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(4) * 5);
    for part in bytes.chunks(4) {
        let mut four = [0; 4];
        four[..part.len()].copy_from_slice(part);
        let word = u32::from_be_bytes(four) as usize;
        let digit = |power: u32| char::from(DIGITS[word / 85_usize.pow(power) % 85]);
        text.extend([4, 3, 2, 1, 0].map(digit));
    }
    text
}

/// The bytes of a text in base 85: five digits for each four bytes.
fn decode(text: &str) -> Result<Vec<u8>> {
    let malformed = || Error::data(format!("{text:?} is no text in base 85"));
    if !text.len().is_multiple_of(5) {
        return Err(malformed());
    }
    let mut bytes = Vec::with_capacity(text.len() / 5 * 4);
    for digits in text.as_bytes().chunks_exact(5) {
        let mut word: u64 = 0;
        for digit in digits {
            let value = DIGITS.iter().position(|known| known == digit).ok_or_else(malformed)?;
            word = word * 85 + value as u64;
        }
        bytes.extend_from_slice(&u32::try_from(word).map_err(|_| malformed())?.to_be_bytes());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_found_by_their_uuids() {
        let place = TablePlace { store: "s3://b".to_owned(), directory: Path::from("t") };
        let vector = |kind: &str, text: &str| VectorPlace {
            storage_type: kind.to_owned(),
            path_or_inline_dv: text.to_owned(),
            offset: Some(4),
            size_in_bytes: 40,
            cardinality: 6,
        };
        // The example of the protocol.
        let found = path_of(&place, &vector("u", "ab^-aqEH.-t@S}K{vb[*k^")).unwrap();
        assert_eq!(
            found.to_string(),
            "t/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
        );
        assert!(path_of(&place, &vector("u", "short")).is_err());
        assert!(path_of(&place, &vector("x", "")).is_err());
        assert_eq!(path_of(&place, &vector("p", "s3://b/u/v.bin")).unwrap().to_string(), "u/v.bin");
    }

    #[test]
    fn a_vector_holds_its_rows_itself() {
        let place = TablePlace { store: "memory://".to_owned(), directory: Path::from("t") };
        let store: Arc<dyn ObjectStore> = Arc::new(object_store::memory::InMemory::new());
        for rows in [vec![0, 1, 5], vec![7, 1 << 33], (3..90_000).collect()] {
            let rows: RoaringTreemap = rows.into_iter().collect();
            let vector = inline(&rows).unwrap();
            let read = futures::executor::block_on(read_vector(&store, &place, &vector));
            assert_eq!(read.unwrap(), rows);
        }
    }

    #[test]
    fn base_85_is_decoded_or_refused() {
        assert_eq!(decode("HelloWorld").unwrap(), [0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B]);
        assert_eq!(encode(&decode("HelloWorld").unwrap()), "HelloWorld");
        for odd in ["Hello ", "Hell\"", "#####", "Hé0l"] {
            assert!(decode(odd).is_err(), "{odd}");
        }
    }
}
