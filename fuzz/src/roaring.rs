//! Deletion vectors: bitmaps whose counts, keys and lengths may lie.
//! Format: <https://github.com/RoaringBitmap/RoaringFormatSpec>.

use crate::choices::Choices;

const MAGIC: [u8; 4] = [0xD1, 0xD3, 0x39, 0x64];

/// The cookie without run containers, and the one with them.
const COOKIES: (u32, u32) = (12_346, 12_347);

/// From so many containers on, a bitmap with runs has offsets too.
const WITH_OFFSETS: usize = 4;

/// Magic and bitmap, and how many positions it has.
pub fn vector(choices: &mut Choices<'_>) -> (Vec<u8>, u64) {
    let mut body = choices.bytes(MAGIC.to_vec());
    let bitmaps = 1 + choices.below(3);
    body.extend_from_slice(&choices.length(bitmaps).to_le_bytes());
    let mut positions = 0;
    for key in 0..bitmaps {
        body.extend_from_slice(&(choices.length(key) as u32).to_le_bytes());
        positions += bitmap(&mut body, choices);
    }
    let body = choices.bytes(body);
    (body, choices.number(positions))
}

/// Length, magic and bitmap, and the checksum of both.
pub fn framed(body: &[u8], choices: &mut Choices<'_>) -> Vec<u8> {
    let mut blob = (choices.length(body.len()) as u32).to_be_bytes().to_vec();
    blob.extend_from_slice(body);
    blob.extend_from_slice(&(choices.number(crc32fast::hash(body).into()) as u32).to_be_bytes());
    blob
}

/// How a container keeps its positions, and how many.
#[derive(Clone, Copy)]
enum Container {
    Array(u64),
    Bits(u64),
    Runs(u64),
}

/// Few positions in the first container, since the data file has few rows.
const KINDS: &[Container] = &[
    Container::Array(3),
    Container::Runs(1),
    Container::Array(1),
    Container::Runs(9),
    Container::Array(4096),
    Container::Bits(5000),
    Container::Bits(65_536),
    Container::Runs(2000),
];

/// Writes a bitmap of 32 bits, and says its positions.
fn bitmap(out: &mut Vec<u8>, choices: &mut Choices<'_>) -> u64 {
    let count = 1 + choices.below(6);
    let kinds: Vec<Container> = (0..count).map(|_| *choices.one_of(KINDS)).collect();
    let is_run = |kind: &Container| matches!(kind, Container::Runs(_));
    let has_runs = kinds.iter().any(is_run);
    let mut put = |number: u64, bytes: usize, choices: &mut Choices<'_>| {
        out.extend_from_slice(&choices.number(number).to_le_bytes()[..bytes]);
    };
    if has_runs {
        put(u64::from(COOKIES.1) | (count as u64 - 1) << 16, 4, choices);
        for kinds in kinds.chunks(8) {
            let bits = kinds.iter().enumerate().map(|(at, kind)| u64::from(is_run(kind)) << at);
            put(bits.sum(), 1, choices);
        }
    } else {
        put(COOKIES.0.into(), 4, choices);
        put(count as u64, 4, choices);
    }
    let mut positions = 0;
    for (key, kind) in kinds.iter().enumerate() {
        let (Container::Array(held) | Container::Bits(held)) = kind else {
            let Container::Runs(runs) = kind else { continue };
            positions += 2 * runs;
            put(key as u64, 2, choices);
            put(2 * runs - 1, 2, choices);
            continue;
        };
        positions += held;
        put(key as u64, 2, choices);
        put(held - 1, 2, choices);
    }
    if !has_runs || count >= WITH_OFFSETS {
        for _ in 0..count {
            put(0, 4, choices);
        }
    }
    for kind in kinds {
        match kind {
            Container::Array(held) => (0..held).for_each(|at| put(at, 2, choices)),
            Container::Bits(held) => (0..1024).for_each(|word: u64| {
                let bits = held.saturating_sub(word * 64).min(64);
                put(u64::MAX.checked_shr(64 - bits as u32).unwrap_or(0), 8, choices);
            }),
            Container::Runs(runs) => {
                put(runs, 2, choices);
                for run in 0..runs {
                    put(run * 4, 2, choices);
                    put(1, 2, choices);
                }
            }
        }
    }
    positions
}
