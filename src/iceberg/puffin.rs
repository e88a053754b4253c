//! Deletion vectors: blobs `deletion-vector-v1` of Puffin files.
//! Format: <https://iceberg.apache.org/puffin-spec/#deletion-vector-v1-blob-type>.

use roaring::RoaringTreemap;

use crate::{Error, Result};

/// The bytes after the length.
const MAGIC: [u8; 4] = [0xD1, 0xD3, 0x39, 0x64];

/// The positions in a blob: length of magic and bitmap (big-endian), magic, bitmap (portable 64-bit
/// Roaring), CRC-32 of magic and bitmap (big-endian).
///
/// # Arguments
/// `cardinality`: how many positions the metadata says it has.
///
/// # Errors
/// `Data` where the blob is damaged.
pub fn deletion_vector(blob: &[u8], cardinality: u64) -> Result<RoaringTreemap> {
    let damaged = |what: &str| Error::data(format!("the deletion vector is damaged: {what}"));
    let (length, rest) = blob.split_first_chunk::<4>().ok_or_else(|| damaged("it is too short"))?;
    let (body, checksum) =
        rest.split_last_chunk::<4>().ok_or_else(|| damaged("it is too short"))?;
    if u32::from_be_bytes(*length) as usize != body.len() {
        return Err(damaged("its length is not the one that the metadata says"));
    }
    if crc32fast::hash(body) != u32::from_be_bytes(*checksum) {
        return Err(damaged("its checksum does not match"));
    }
    positions_in(body, cardinality)
}

/// The positions in magic and bitmap, without length and checksum: Delta tables keep small deletion
/// vectors so, inside their log.
///
/// # Errors
/// `Data` where they are damaged.
pub fn positions_in(body: &[u8], cardinality: u64) -> Result<RoaringTreemap> {
    let damaged = |what: &str| Error::data(format!("the deletion vector is damaged: {what}"));
    let bitmap = body.strip_prefix(&MAGIC).ok_or_else(|| damaged("its magic number is wrong"))?;
    let positions = RoaringTreemap::deserialize_from(bitmap)
        .map_err(|error| damaged("its bitmap cannot be decoded").with_source(error))?;
    if positions.len() != cardinality {
        return Err(damaged(&format!(
            "it has {} positions, and the metadata says {cardinality}",
            positions.len()
        )));
    }
    Ok(positions)
}

/// The bytes from which [`positions_in`] reads these positions.
///
/// # Errors
/// None of memory, which takes all that is written.
pub fn vector_body(positions: &RoaringTreemap) -> Result<Vec<u8>> {
    let mut body = MAGIC.to_vec();
    positions
        .serialize_into(&mut body)
        .map_err(|error| Error::data("a deletion vector cannot be written").with_source(error))?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(positions: &RoaringTreemap) -> Vec<u8> {
        let mut body = MAGIC.to_vec();
        positions.serialize_into(&mut body).unwrap();
        let mut blob = (body.len() as u32).to_be_bytes().to_vec();
        blob.extend_from_slice(&body);
        blob.extend_from_slice(&crc32fast::hash(&body).to_be_bytes());
        blob
    }

    #[test]
    fn a_vector_is_read_and_a_damaged_one_refused() {
        let positions: RoaringTreemap = [0, 7, 1 << 33].into_iter().collect();
        let good = blob(&positions);
        assert_eq!(deletion_vector(&good, 3).unwrap(), positions);
        assert!(deletion_vector(&good, 4).is_err());
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(deletion_vector(&bad, 3).is_err(), "byte {at}");
        }
        assert!(deletion_vector(&[], 0).is_err());
    }
}
