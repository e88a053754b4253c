//! Timestamps that the decoder would read wrong: those before 1970 of the C++ writer, pyarrow's for
//! one, which have negative nanoseconds; those in the daylight saving time of years that the time
//! zone database does not reach; and those that it makes NULL, as their time in the writer's zone
//! is beyond its calendar or the column's unit.
//!
//! A timestamp is a pair of seconds and nanoseconds, and the nanoseconds are never negative, says
//! the specification. Arrow divides towards zero, so that half a second before a second becomes
//! that second and minus half a billion nanoseconds; its reader takes them back as it wrote them.
//! `orc-rust` takes them for a huge unsigned number: a wrong time or an overflow. So such a pair is
//! written anew before it is decoded, as a pair of the same time.

use std::ops::Range;

use arrow::array::timezone::Tz;
use arrow::datatypes::TimeUnit;
use bytes::Bytes;
use chrono::{Datelike, Offset, TimeZone};

use super::rle::{Encoding, decode, encode};
use crate::{Error, Result};

/// 2015-01-01 in UTC, from which seconds are counted.
const EPOCH: i64 = 1_420_070_400;

const SECOND: i128 = 1_000_000_000;

/// Largest number of bytes of a chunk of a compressed stream that is not compressed.
const CHUNK: usize = 256 << 10;

/// Seconds from 1970 in UTC to 2015 in the writer's time zone: the origin of the seconds of a
/// timestamp without a zone. `zone` was checked before.
///
/// # Errors
/// `Data` for a zone that is not known.
pub fn epoch_in(zone: Option<&str>) -> Result<i64> {
    let Some(name) = zone else { return Ok(EPOCH) };
    let start = zone_of(name)?.with_ymd_and_hms(2015, 1, 1, 0, 0, 0).earliest();
    Ok(start.ok_or_else(|| unknown(name))?.timestamp())
}

/// The time zone of this name.
///
/// # Errors
/// `Data` for one that is not known.
pub fn zone_of(name: &str) -> Result<Tz> {
    name.parse().map_err(|_| unknown(name))
}

fn unknown(zone: &str) -> Error {
    Error::data(format!("the ORC file's time zone {zone:?} is not known"))
}

/// Normalises times whose nanoseconds are negative; returns None if there are none.
///
/// # Arguments
/// `seconds`, `nanoseconds`: the streams, decompressed. `second`: whether they are encoded by
/// version 2. `epoch`: the origin of the seconds.
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
        // Readers take a second off a time before 1970 that has a fraction of a millisecond or
        // more.
        let back = if whole < 0 { SECOND } else { 0 };
        let fraction = time.rem_euclid(SECOND) + back;
        let damaged = || Error::data("the ORC data are damaged: a timestamp is out of range");
        *second = i64::try_from(whole - i128::from(epoch)).map_err(|_| damaged())?;
        *stored = i64::try_from(fraction << 3).map_err(|_| damaged())?;
    }
    Ok(Some((encode(&seconds, signed), encode(&stored, unsigned))))
}

/// The first second that the time zone database does not know: 2100-01-01, and a day before for
/// zones east of UTC.
const UNKNOWN: i64 = 4_102_444_800 - 86_400;

const DAY: i64 = 86_400;

/// Seconds that 64 bits of nanoseconds hold, the last ones in part.
const NANOSECONDS: Range<i64> = -9_223_372_037..9_223_372_037;

/// Seconds of the years that the decoder's calendar has, but for the first and the last one.
const CALENDAR: Range<i64> = -8_334_569_692_800..8_210_235_340_800;

/// Years whose calendar days stand for those of later years. They cover every pair of first weekday
/// and leap year.
const KNOWN_YEARS: std::ops::RangeInclusive<i32> = 2072..=2099;

/// The zone in which a stripe was written, where it has daylight saving time that is not known
/// after 2099.
///
/// # Errors
/// `Data` for a zone that is not known.
pub fn daylight_saving(zone: Option<&str>) -> Result<Option<(&str, Tz)>> {
    let Some(name) = zone else { return Ok(None) };
    let zone = zone_of(name)?;
    let mut offsets = (1..=12).filter_map(|month| {
        let noon = zone.with_ymd_and_hms(*KNOWN_YEARS.end(), month, 1, 12, 0, 0).earliest()?;
        Some(noon.offset().fix())
    });
    let january = offsets.next();
    Ok(offsets.any(|offset| Some(offset) != january).then_some((name, zone)))
}

/// Refuses times after 2099 for which the decoder's offset from UTC may be wrong by an hour.
///
/// # Arguments
/// `times`: seconds since 1970. `zone`: one with daylight saving time, and its name.
///
/// # Errors
/// `Data` naming the zone.
pub fn refuse_unknown_offsets(times: &[i64], (name, zone): (&str, Tz)) -> Result<()> {
    let mut last = None;
    for time in times.iter().copied() {
        // A day that means "for ever" comes again and again.
        if time < UNKNOWN || last == Some(time) {
            continue;
        }
        last = Some(time);
        let known = zone.timestamp_opt(time, 0).single().is_some_and(|at| {
            let offset = at.offset().fix();
            let local = at.naive_local();
            KNOWN_YEARS.filter_map(|year| local.with_year(year)).all(|same_day| {
                let there = zone.from_local_datetime(&same_day).earliest();
                there.is_some_and(|there| there.offset().fix() == offset)
            })
        });
        if !known {
            return Err(Error::data(format!(
                "the ORC file holds times after 2099 in the time zone {name:?}, whose daylight saving time is not known \
                 so far ahead; write them in UTC"
            )));
        }
    }
    Ok(())
}

/// Seconds since 1970.
///
/// # Arguments
/// `seconds`: the stream, decompressed. `second`: whether it is encoded by version 2. `epoch`: the
/// origin of the seconds.
///
/// # Errors
/// `Data` where the stream is cut off.
pub fn times_of(seconds: &[u8], second: bool, epoch: i64) -> Result<Vec<i64>> {
    let seconds = decode(seconds, Encoding { second, signed: true })?;
    Ok(seconds.into_iter().map(|second| second.saturating_add(epoch)).collect())
}

/// Refuses times that the decoder would make NULL, or panic at, as it cannot say them in the
/// writer's `zone`.
///
/// # Errors
/// `Data` with the range of the column's `unit`.
pub fn refuse_far_times(times: &[i64], zone: Tz, unit: TimeUnit) -> Result<()> {
    let known = match unit {
        TimeUnit::Nanosecond => NANOSECONDS,
        _ => CALENDAR,
    };
    let near_end = |time: &i64| *time < known.start + DAY || *time >= known.end - DAY;
    for time in times.iter().copied().filter(near_end) {
        let offset = zone.timestamp_opt(time, 0).single().map(|at| at.offset().fix());
        let moved = offset.and_then(|offset| time.checked_add(offset.local_minus_utc().into()));
        if !moved.is_some_and(|moved| known.contains(&moved)) {
            let advice = match unit {
                TimeUnit::Nanosecond => {
                    "nanoseconds (1677 to 2262); declare the column's type (schema=): timestamp[us]"
                }
                _ => "the years -262142 to 262141, which are read of files with a time zone",
            };
            return Err(Error::data(format!(
                "the ORC file holds a timestamp ({time} s since 1970) beyond {advice}"
            )));
        }
    }
    Ok(())
}

/// A stream as the file's streams are: in chunks that say that they are not compressed, where the
/// file is compressed.
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
