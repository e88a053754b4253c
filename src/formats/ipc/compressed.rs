//! Compressed buffers say how long they become. That number is checked before memory is taken for
//! it.

use crate::{Error, Result};

/// The length of a buffer that is stored uncompressed.
const NOT_COMPRESSED: i64 = -1;

/// The highest ratio of LZ4: a byte of a match length stands for 255 bytes.
const LZ4_RATIO: u64 = 255;

/// The highest ratio of zstd: a block of four bytes stands for 128 KiB.
const ZSTD_RATIO: u64 = 32 << 10;

/// The first bytes of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

/// The kind of compression of a record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Lz4,
    Zstd,
}

/// The length that a compressed buffer says it has.
///
/// # Errors
/// `Data` where these bytes cannot become that many.
pub(super) fn check(codec: Codec, buffer: &[u8]) -> Result<u64> {
    if buffer.is_empty() {
        return Ok(0);
    }
    let Some((prefix, frame)) = buffer.split_first_chunk::<8>() else {
        return Err(Error::data(format!(
            "a compressed buffer has {} bytes, fewer than its length takes",
            buffer.len()
        )));
    };
    let said = i64::from_le_bytes(*prefix);
    let stored = frame.len() as u64;
    if said == NOT_COMPRESSED {
        return Ok(stored);
    }
    let most = match codec {
        Codec::Lz4 => stored.saturating_mul(LZ4_RATIO),
        Codec::Zstd => match zstd_length(frame) {
            Some(length) => length.min(stored.saturating_mul(ZSTD_RATIO)),
            None => stored.saturating_mul(ZSTD_RATIO),
        },
    };
    let said_bytes = u64::try_from(said).ok().filter(|said| *said <= most);
    said_bytes.ok_or_else(|| {
        Error::data(format!(
            "a compressed buffer of {} bytes says that it becomes {said} bytes, which it cannot",
            buffer.len()
        ))
    })
}

/// The length of the content that a zstd frame says in its header, where it does.
fn zstd_length(frame: &[u8]) -> Option<u64> {
    let rest = frame.strip_prefix(&ZSTD_MAGIC)?;
    let (descriptor, rest) = rest.split_first()?;
    let single_segment = descriptor & 0x20 != 0;
    let window = usize::from(!single_segment);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let rest = rest.get(window + dictionary..)?;
    let number = |bytes: usize| {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(rest.get(..bytes)?);
        Some(u64::from_le_bytes(value))
    };
    match descriptor >> 6 {
        0 if single_segment => number(1),
        0 => None,
        1 => number(2).map(|length| length + 256),
        2 => number(4),
        _ => number(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_beyond_what_the_codec_gains_are_refused() {
        let buffer = |said: i64, frame: &[u8]| [&said.to_le_bytes(), frame].concat();
        assert!(check(Codec::Lz4, &[]).is_ok());
        assert!(check(Codec::Lz4, &buffer(-1, b"as it is")).is_ok());
        assert!(check(Codec::Lz4, &buffer(2550, &[0; 10])).is_ok());
        for said in [2551, i64::MAX, -2, i64::MIN] {
            assert!(check(Codec::Lz4, &buffer(said, &[0; 10])).is_err(), "{said}");
        }
        assert!(check(Codec::Lz4, &[1, 2, 3]).is_err());
        // A frame of one segment whose header says 40 bytes.
        let frame = [&ZSTD_MAGIC[..], &[0x20, 40, 0, 0, 0, 0]].concat();
        assert!(check(Codec::Zstd, &buffer(40, &frame)).is_ok());
        assert!(check(Codec::Zstd, &buffer(41, &frame)).is_err());
        assert_eq!(zstd_length(&ZSTD_MAGIC), None);
    }
}
