//! The rest of an epoch that was begun: rows of splits, and positions in the order of shuffle
//! windows.
//!
//! It is sorted and merged, so its size follows from what is left and not from how often the epoch
//! was resumed. Rows of splits are ranges: whole splits side by side are one entry, others have one
//! each. The rows left of a shuffle window lie anywhere in the splits that it was filled from, as
//! one bit of each would say; so it is named instead, by its splits, its first row and the key of
//! its permutation, with ranges of positions in it. A resumed run reads these rests first and never
//! fills a window from them: so each is of splits alone, and there are at most as many as the
//! widest run had shards.

use std::sync::Arc;

use super::deal::damaged;
use super::interleave::Interleave;
use super::layout::{MOST_WIDTH, ShardInput};
use super::row_slice::{RowSlice, Source, Window};
use crate::varint::{Reader, Writer};
use crate::{Error, Result};

/// Rows of the largest window.
const MOST_WINDOW_ROWS: u64 = u32::MAX as u64;

/// The rest of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    depth: u64,
    pieces: Vec<RowSlice>,
}

impl Left {
    /// What is left after `depth` runs: pieces in any order, of which no two share a row.
    pub fn new(depth: u64, mut pieces: Vec<RowSlice>) -> Self {
        // Who has not counted does not know that the end of a split is without rows.
        pieces.retain(|piece| !piece.is_empty() || (piece.to_end && !piece.is_rest()));
        pieces.sort_by_cached_key(RowSlice::place);
        let mut merged: Vec<RowSlice> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match merged.last_mut() {
                Some(last) if last.end == Some(piece.start) && last.source == piece.source => {
                    (last.end, last.to_end) = (piece.end, piece.to_end);
                }
                _ => merged.push(piece),
            }
        }
        Self { depth, pieces: merged }
    }

    /// How many runs of the epoch there were before.
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// Rests of windows, then rows of splits, each in the order of the plan.
    pub fn pieces(&self) -> &[RowSlice] {
        &self.pieces
    }

    /// As bytes. They do not depend on whether rows are counted.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.number(self.depth);
        let rests = self.pieces.partition_point(RowSlice::is_rest);
        let (rests, ranges) = self.pieces.split_at(rests);
        write_ranges(&mut writer, ranges);
        let windows: Vec<&[RowSlice]> = rests.chunk_by(|a, b| a.source == b.source).collect();
        writer.number(windows.len() as u64);
        for rests in windows {
            if let Source::Window(window) = &rests[0].source {
                write_window(&mut writer, window, ranges);
            }
            writer.number(rests.len() as u64);
            let mut at = 0;
            for rest in rests {
                let end = rest.end.unwrap_or(rest.start);
                writer.number(rest.start - at);
                writer.number(end - rest.start);
                at = end;
            }
        }
        writer.finish()
    }

    /// Decodes what [`encode`](Self::encode) wrote for an epoch of `input`.
    ///
    /// # Errors
    /// `Checkpoint` where the bytes say anything else.
    pub fn decode(bytes: &[u8], input: &ShardInput) -> Result<Self> {
        let unreadable = |error: Error| broken("ends too early").with_source(error);
        let mut reader = Reader::new(bytes);
        let mut read = || -> Result<Self> {
            let depth = reader.number()?;
            let ranges = read_ranges(&mut reader, input)?;
            let mut pieces = Vec::new();
            for _ in 0..reader.length()? {
                let window = Arc::new(read_window(&mut reader, input, &ranges)?);
                read_rests(&mut reader, &window, &mut pieces)?;
            }
            reader.end()?;
            pieces.extend(ranges);
            Ok(Self { depth, pieces })
        };
        let found = match read() {
            Err(error) if error.kind() != crate::ErrorKind::CheckpointMismatch => {
                return Err(unreadable(error));
            }
            other => other?,
        };
        if found.depth == 0 || found.depth > u64::from(u32::MAX) {
            return Err(broken("is after no run, or after too many"));
        }
        if !found.pieces.is_sorted_by_key(RowSlice::place) {
            return Err(broken("is not in order"));
        }
        if input.counts.is_some() {
            found.check_rows(input)?;
        }
        Ok(found)
    }

    /// Checks that all rows are among those of the plan, and none is there twice.
    fn check_rows(&self, input: &ShardInput) -> Result<()> {
        let mut found: Vec<(u32, u64, u64)> = Vec::new();
        let mut before = None;
        for piece in &self.pieces {
            match &piece.source {
                Source::Split(id) => found.push((*id, piece.start, piece.end.unwrap_or(u64::MAX))),
                Source::Window(window) if before.replace(window) != Some(window) => {
                    found.extend(filled_from(window)?);
                }
                Source::Window(_) => (),
            }
        }
        found.retain(|(_, start, end)| start < end);
        found.sort_unstable();
        if found.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1) {
            return Err(broken("names rows twice"));
        }
        let whole = Self::new(0, input.pieces()).pieces;
        let mut whole = whole.iter().peekable();
        for (id, start, end) in found {
            let holds = |piece: &RowSlice| piece.end.is_some_and(|last| start < last);
            let is_before = |piece: &&RowSlice| match piece.source {
                Source::Split(other) => other < id || other == id && !holds(piece),
                Source::Window(_) => true,
            };
            while whole.next_if(is_before).is_some() {}
            let inside = whole.peek().is_some_and(|piece| {
                piece.source == Source::Split(id) && piece.start <= start && piece.end >= Some(end)
            });
            if !inside {
                return Err(broken("names rows that the query does not have"));
            }
        }
        Ok(())
    }
}

/// The rows of splits that are in a window, of pieces that are counted.
fn filled_from(window: &Window) -> Result<Vec<(u32, u64, u64)>> {
    let pieces = &window.pieces;
    let rows_of = |piece: u32| pieces[piece as usize].rows().unwrap_or(0);
    let mut end = window.from.clone();
    if end.pass(pieces.len() as u32, window.rows, rows_of) < window.rows {
        return Err(broken("has a window with more rows than its splits"));
    }
    // All that were opened are read to their end, but those that still are open.
    let mut rows: Vec<u64> = (0..end.next()).map(rows_of).collect();
    end.open().iter().for_each(|open| rows[open.piece as usize] = open.row);
    let place = |(piece, rows): (&RowSlice, u64)| match piece.source {
        Source::Split(id) => Some((id, piece.start, piece.start + rows)),
        Source::Window(_) => None,
    };
    Ok(pieces.iter().zip(rows).filter_map(place).collect())
}

/// The first row that is left of a split behind the windows, near which these begin.
fn first_left(ranges: &[RowSlice], id: u32) -> u64 {
    let id_of = |piece: &RowSlice| match piece.source {
        Source::Split(id) => id,
        Source::Window(_) => 0,
    };
    let at = ranges.partition_point(|range| id_of(range) < id);
    ranges.get(at).filter(|range| id_of(range) == id).map_or(0, |range| range.start)
}

/// A window by its columns: numbers of one kind are alike, so that they compress well.
fn write_window(writer: &mut Writer, window: &Window, ranges: &[RowSlice]) {
    let from = &window.from;
    writer.number(window.key);
    writer.number(window.rows);
    writer.number(u64::from(window.lane));
    writer.number(u64::from(from.width()));
    // Most are small, or have no bound.
    writer.number(from.chunk().wrapping_add(1));
    let position = from.encode();
    writer.number(position[1]);
    writer.number(position[2]);
    writer.number(from.open().len() as u64);
    writer.number(window.pieces.len() as u64);
    let ids = || window.pieces.iter().map(|piece| piece.place().1);
    let mut before = 0;
    ids().for_each(|id| writer.near(u64::from(id), &mut before));
    for (id, piece) in ids().zip(&window.pieces) {
        writer.near(piece.start, &mut first_left(ranges, id));
    }
    for piece in &window.pieces {
        let rows = piece.rows().filter(|_| !piece.to_end);
        writer.number(rows.map_or(0, |rows| rows + 1));
    }
}

fn read_window(reader: &mut Reader<'_>, input: &ShardInput, ranges: &[RowSlice]) -> Result<Window> {
    let (key, rows) = (reader.number()?, reader.number()?);
    let lane = small(reader.number()?)?;
    let (width, chunk) = (small(reader.number()?)?, reader.number()?.wrapping_sub(1));
    let (turn, left, open) = (reader.number()?, reader.number()?, reader.number()?);
    let count = reader.length()?;
    if !(1..=MOST_WINDOW_ROWS).contains(&rows)
        || !(1..=MOST_WIDTH).contains(&width)
        || chunk == 0
        || open > count as u64
    {
        return Err(broken("has a window of a size that none has"));
    }
    let mut ids = Vec::with_capacity(count);
    let mut before = 0;
    for _ in 0..count {
        ids.push(small(reader.near(&mut before)?)?);
    }
    let mut starts = Vec::with_capacity(count);
    for id in &ids {
        starts.push(reader.near(&mut first_left(ranges, *id))?);
    }
    let mut pieces = Vec::with_capacity(count);
    for (id, start) in ids.into_iter().zip(starts) {
        pieces.push(range(input, id, start, reader.number()?.checked_sub(1))?);
    }
    let position = [open, turn, left].into_iter().chain((0..open).flat_map(|piece| [piece, 0]));
    let from = Interleave::decode(width, chunk, &position.collect::<Vec<u64>>())?;
    Ok(Window { pieces, from, rows, key, lane })
}

/// Ranges of positions of a window, of which each begins behind the one before.
fn read_rests(
    reader: &mut Reader<'_>,
    window: &Arc<Window>,
    pieces: &mut Vec<RowSlice>,
) -> Result<()> {
    let mut at = 0_u64;
    for number in 0..reader.length()? {
        let (gap, rows) = (reader.number()?, reader.number()?);
        let start = at.checked_add(gap);
        let end = start.and_then(|start| start.checked_add(rows));
        let (Some(start), Some(end)) = (start, end.filter(|end| *end <= window.rows)) else {
            return Err(broken("names rows that a window does not have"));
        };
        if rows == 0 || (number > 0 && gap == 0) {
            return Err(broken("is not in order"));
        }
        let source = Source::Window(Arc::clone(window));
        pieces.push(RowSlice { source, start, end: Some(end), to_end: end == window.rows });
        at = end;
    }
    Ok(())
}

/// Entries of two kinds: a number of whole splits side by side, and a range of one split.
fn write_ranges(writer: &mut Writer, ranges: &[RowSlice]) {
    let id_of = |piece: &RowSlice| match piece.source {
        Source::Split(id) => u64::from(id),
        Source::Window(_) => 0,
    };
    let is_whole = |piece: &RowSlice| piece.start == 0 && piece.to_end;
    let entries: Vec<&[RowSlice]> =
        ranges.chunk_by(|a, b| is_whole(a) && is_whole(b) && id_of(b) == id_of(a) + 1).collect();
    writer.number(entries.len() as u64);
    let (mut next, mut start_before) = (0, 0);
    for entry in entries {
        let first = &entry[0];
        // The split may be the one before once more.
        let gap = (id_of(first) + 1 - next) << 1;
        next = id_of(&entry[entry.len() - 1]) + 1;
        if is_whole(first) {
            writer.number(gap);
            writer.number(entry.len() as u64);
            continue;
        }
        writer.number(gap | 1);
        writer.near(first.start, &mut start_before);
        let rows = first.rows().filter(|_| !first.to_end);
        writer.number(rows.map_or(0, |rows| rows + 1));
    }
}

fn read_ranges(reader: &mut Reader<'_>, input: &ShardInput) -> Result<Vec<RowSlice>> {
    let mut pieces = Vec::new();
    let (mut next, mut start_before) = (0_u64, 0);
    let mut end_before: Option<u64> = None;
    for _ in 0..reader.length()? {
        let head = reader.number()?;
        let id = next.checked_add(head >> 1).and_then(|id| id.checked_sub(1));
        let Some(id) = id.filter(|id| *id < input.weights.len() as u64) else {
            return Err(broken("names splits that the query does not have"));
        };
        let again = id + 1 == next;
        if head & 1 == 0 {
            let count = reader.number()?;
            let end = id.checked_add(count).filter(|end| *end <= input.weights.len() as u64);
            let (Some(end), true, false) = (end, count > 0, again) else {
                return Err(broken("names splits that the query does not have"));
            };
            for id in id..end {
                pieces.push(range(input, small(id)?, 0, None)?);
            }
            (next, end_before) = (end, None);
            continue;
        }
        let start = reader.near(&mut start_before)?;
        let piece = range(input, small(id)?, start, reader.number()?.checked_sub(1))?;
        // Neighbours are one range.
        if again && end_before.is_none_or(|end| start <= end) {
            return Err(broken("names rows twice"));
        }
        end_before = piece.end.filter(|_| !piece.to_end);
        next = id + 1;
        pieces.push(piece);
    }
    Ok(pieces)
}

/// `rows` rows of a split from `start` on; None is all of them.
fn range(input: &ShardInput, id: u32, start: u64, rows: Option<u64>) -> Result<RowSlice> {
    let outside = || broken("names rows that the query does not have");
    if id as usize >= input.weights.len() {
        return Err(broken("names splits that the query does not have"));
    }
    let all = input.counts.as_ref().map(|counts| counts[id as usize]);
    let end = match rows {
        Some(rows) => Some(start.checked_add(rows).ok_or_else(outside)?),
        None => all,
    };
    let most = all.unwrap_or(super::cursor::MOST_ROWS);
    if start > most || end.is_some_and(|end| end < start || end > most) {
        return Err(outside());
    }
    Ok(RowSlice { source: Source::Split(id), start, end, to_end: rows.is_none() })
}

fn small(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| broken("names splits that the query does not have"))
}

fn broken(how: &str) -> Error {
    damaged(&format!("what it says is left of its epoch {how}"))
}
