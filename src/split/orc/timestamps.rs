//! Timestamps as the C++ writer stores those before 1970, pyarrow's for one: with negative nanoseconds.
//!
//! A timestamp is a pair of seconds and nanoseconds, and the nanoseconds are never negative, says the specification.
//! Arrow divides towards zero, so that half a second before a second becomes that second and minus half a billion
//! nanoseconds; its reader takes them back as it wrote them. `orc-rust` takes them for a huge unsigned number: a wrong
//! time or an overflow. So such a pair is written anew before it is decoded, as a pair of the same time.

use arrow::array::timezone::Tz;
use bytes::Bytes;
use chrono::TimeZone;

use super::rle::{Encoding, decode, encode};
use crate::{Error, Result};

/// 2015-01-01 in UTC, from which seconds are counted.
const EPOCH: i64 = 1_420_070_400;

const SECOND: i128 = 1_000_000_000;

/// Largest number of bytes of a chunk of a compressed stream that is not compressed.
const CHUNK: usize = 256 << 10;

/// Seconds from 1970 in UTC to 2015 in the writer's time zone: what the seconds of a timestamp without zone are counted
/// from. `zone` is one that was checked.
///
/// # Errors
/// `Data` for a zone that is not known.
pub fn epoch_in(zone: Option<&str>) -> Result<i64> {
    let Some(zone) = zone else { return Ok(EPOCH) };
    let unknown = || Error::data(format!("the ORC file's time zone {zone:?} is not known"));
    let zone: Tz = zone.parse().map_err(|_| unknown())?;
    let start = zone.with_ymd_and_hms(2015, 1, 1, 0, 0, 0).earliest().ok_or_else(unknown)?;
    Ok(start.timestamp())
}

/// The same times with nanoseconds that are not negative; None where they are so already.
///
/// # Arguments
/// `seconds`, `nanoseconds`: the streams, decompressed.
/// `second`: whether they are encoded by version 2.
/// `epoch`: what the seconds are counted from.
///
/// # Errors
/// `Data` where a stream is cut off.
pub fn without_negative_nanoseconds(
    seconds: impl FnOnce() -> Result<Vec<u8>>,
    nanoseconds: &[u8],
    second: bool,
    epoch: i64,
) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    let unsigned = Encoding { second, signed: false };
    let signed = Encoding { second, signed: true };
    let mut stored = decode(nanoseconds, unsigned)?;
    if stored.iter().all(|stored| *stored >= 0) {
        return Ok(None);
    }
    let mut seconds = decode(&seconds()?, signed)?;
    if seconds.len() != stored.len() {
        return Err(Error::data("the ORC data are damaged: seconds without nanoseconds"));
    }
    for (second, stored) in seconds.iter_mut().zip(&mut stored).filter(|(_, stored)| **stored < 0) {
        // The last three bits say how many zeros were left out, but for one.
        let zeros = (*stored & 7) as u32;
        let scale = if zeros == 0 { 1 } else { 10_i128.pow(zeros + 1) };
        let nanoseconds = i128::from(*stored >> 3) * scale;
        let time = (i128::from(*second) + i128::from(epoch)) * SECOND + nanoseconds;
        let whole = time.div_euclid(SECOND);
        // Readers take a second off a time before 1970 that has a fraction of a millisecond or more.
        let back = if whole < 0 { SECOND } else { 0 };
        let fraction = time.rem_euclid(SECOND) + back;
        let damaged = || Error::data("the ORC data are damaged: a timestamp is out of range");
        *second = i64::try_from(whole - i128::from(epoch)).map_err(|_| damaged())?;
        *stored = i64::try_from(fraction << 3).map_err(|_| damaged())?;
    }
    Ok(Some((encode(&seconds, signed), encode(&stored, unsigned))))
}

/// A stream as the file's streams are: in chunks that say that they are not compressed, where the file is compressed.
pub fn framed(stream: Vec<u8>, compressed: bool) -> Bytes {
    if !compressed {
        return stream.into();
    }
    let mut bytes = Vec::with_capacity(stream.len() + stream.len() / CHUNK * 3 + 3);
    for chunk in stream.chunks(CHUNK) {
        let header = (chunk.len() as u32) << 1 | 1;
        bytes.extend_from_slice(&header.to_le_bytes()[..3]);
        bytes.extend_from_slice(chunk);
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that a reader makes of a pair, in nanoseconds since 1970.
    fn read(second: i64, stored: i64) -> i128 {
        let zeros = (stored & 7) as u32;
        let scale = if zeros == 0 { 1 } else { 10_i128.pow(zeros + 1) };
        let (second, fraction) = (i128::from(second + EPOCH), i128::from(stored >> 3) * scale);
        (second - i128::from(second < 0 && fraction > 999_999)) * SECOND + fraction
    }

    #[test]
    fn negative_nanoseconds_become_the_same_time() {
        for second in [true, false] {
            // Nanoseconds: minus one, minus half a billion, minus 999,000,500; then one that stays.
            let stored = [-8, (-5 << 3) | 7, -999_000_500 << 3, 5 << 3 | 7];
            for at in [-10, -1, 0] {
                let seconds = [at - EPOCH; 4];
                let wanted = [-1, -500_000_000, -999_000_500].map(|n| i128::from(at) * SECOND + n);
                let encoding = Encoding { second, signed: false };
                let (seconds, found) = without_negative_nanoseconds(
                    || Ok(encode(&seconds, Encoding { signed: true, ..encoding })),
                    &encode(&stored, encoding),
                    second,
                    EPOCH,
                )
                .unwrap()
                .unwrap();
                let seconds = decode(&seconds, Encoding { signed: true, ..encoding }).unwrap();
                let found = decode(&found, encoding).unwrap();
                for place in 0..3 {
                    assert_eq!(read(seconds[place], found[place]), wanted[place]);
                }
                assert_eq!((seconds[3], found[3]), (at - EPOCH, 5 << 3 | 7));
            }
        }
    }

    #[test]
    fn zones_have_their_own_epoch() {
        assert_eq!(epoch_in(None).unwrap(), EPOCH);
        assert_eq!(epoch_in(Some("America/Los_Angeles")).unwrap(), EPOCH + 8 * 3600);
        assert!(epoch_in(Some("nowhere")).is_err());
    }
}
