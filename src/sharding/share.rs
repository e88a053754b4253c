//! The share of one rank: its reads in every epoch of a topology, for any number of workers.
//!
//! Ranks are dealt first, and the pieces of each rank are then dealt to its workers. Nothing of
//! this depends on the epoch, which only permutes. So a rank, and each of its worker processes,
//! needs no more than its own share, and that is small: of a million splits over 1,024 ranks it has
//! a thousand.

use serde::{Deserialize, Serialize};

use super::cursor::{Lane, Shard};
use super::deal::{Lists, group, group_by_lists, part, put_in_order};
use super::even::{Remainder, Schedule, level, share};
use super::layout::{Layout, OrderKey};
use super::lpt::{lpt, round_robin};
use super::plan::Builtin;
use super::quota::quotas_of_rank;
use super::ramp::Ramped;
use super::row_slice::{RowSlice, Source};
use crate::varint::{Reader, Writer};
use crate::{Error, Result};

/// The share of one rank in the rest of an epoch, lane by lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankShare {
    head: Head,
    /// By source, or by partition of this rank.
    lanes: Vec<Vec<RowSlice>>,
    /// Rows that it repeats.
    padding: Vec<RowSlice>,
    /// By split, ascending: its weight, and its rows where they are counted.
    weights: Vec<(u32, u64, Option<u64>)>,
}

/// The part of a share that does not grow with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    rank: u32,
    world_size: u32,
    /// Runs of the epoch before this one.
    depth: u64,
    /// Whether pieces are dealt by counted rows.
    counted: bool,
    /// By lane, its number: of the source, or of the partition.
    numbers: Vec<u32>,
    /// By source, its weight in a mixture.
    source_weights: Vec<u64>,
    /// How these change, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ramped: Option<Ramped>,
    /// Rows that all ranks deliver, and have.
    delivered: u64,
    rows: u64,
}

/// The values of a deal that all ranks share.
pub(super) struct Common<'a> {
    pub depth: u64,
    pub source_weights: &'a [u64],
    pub ramped: Option<Ramped>,
    pub delivered: u64,
    pub rows: u64,
}

impl RankShare {
    pub(super) fn new(
        layout: &Layout,
        rank: u32,
        common: &Common<'_>,
        lanes: Vec<(u32, Vec<RowSlice>)>,
        padding: Vec<RowSlice>,
        weight_of: impl Fn(u32) -> (u64, Option<u64>),
    ) -> Self {
        let (numbers, lanes): (_, Vec<_>) = lanes.into_iter().unzip();
        let head = Head {
            rank,
            world_size: layout.world_size,
            depth: common.depth,
            counted: layout.counted,
            numbers,
            source_weights: common.source_weights.to_vec(),
            ramped: common.ramped.clone(),
            delivered: common.delivered,
            rows: common.rows,
        };
        let mut own = Self { head, lanes, padding, weights: Vec::new() };
        let weigh = |id| {
            let (weight, rows) = weight_of(id);
            (id, weight, rows)
        };
        own.weights = own.split_ids().into_iter().map(weigh).collect();
        own
    }

    /// The rank.
    pub fn rank(&self) -> u32 {
        self.head.rank
    }

    /// The ids of all splits that are read for it, ascending.
    pub fn split_ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        let pieces = self.lanes.iter().flatten().chain(&self.padding);
        pieces.for_each(|piece| piece.split_ids(&mut ids));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The total weight of its pieces, by which they were dealt.
    pub fn weight(&self) -> u128 {
        self.lanes.iter().flatten().map(|piece| u128::from(self.weight_of(piece))).sum()
    }

    /// The shards of this rank's workers in the reading order of an epoch.
    ///
    /// # Errors
    /// `Config` where the layout is not the one that was dealt, but for the workers.
    pub fn shards(&self, layout: &Layout, key: OrderKey<'_>) -> Result<Vec<Shard>> {
        self.shards_of(layout, None, key)
    }

    pub(super) fn shards_of(
        &self,
        layout: &Layout,
        lists: Lists<'_>,
        key: OrderKey<'_>,
    ) -> Result<Vec<Shard>> {
        let head = &self.head;
        if (layout.world_size, layout.counted) != (head.world_size, head.counted) {
            return Err(Error::config(format!(
                "the share of rank {} of {} was dealt for another layout; please report it with the options of the \
                 loader",
                head.rank, head.world_size
            )));
        }
        let mut shards = match layout.partitions {
            Some(_) => vec![self.of_partitions(layout)?],
            None => self.of_workers(layout, lists, key.epoch)?,
        };
        put_in_order(&mut shards, head.rank, layout, key, head.depth);
        Ok(shards)
    }

    /// The batches of the rank where all ranks together deliver `delivered` rows.
    fn schedule(&self, layout: &Layout, delivered: u64) -> Result<Schedule> {
        if !layout.counted && layout.partitions.is_none() {
            return Ok(Schedule::open_ended(layout.batch_size, layout.remainder));
        }
        let (ranks, rank) = (u64::from(layout.world_size), u64::from(self.head.rank));
        Schedule::of_rank(delivered, ranks, rank, layout.batch_size, layout.remainder)
    }

    fn of_partitions(&self, layout: &Layout) -> Result<Shard> {
        let lanes = self.head.numbers.iter().zip(&self.lanes).map(|(number, pieces)| Lane {
            rests: Vec::new(),
            pieces: pieces.clone(),
            key: 0,
            mixing: layout.mixing,
            number: *number,
        });
        Ok(Shard {
            lanes: lanes.collect(),
            lane_weights: Vec::new(),
            ramp: None,
            schedule: self.schedule(layout, self.head.delivered)?,
            padding: self.padding.clone(),
        })
    }

    fn of_workers(&self, layout: &Layout, lists: Lists<'_>, epoch: u64) -> Result<Vec<Shard>> {
        let head = &self.head;
        let (workers, rank) = (layout.workers(), head.rank as usize);
        let step_rows = layout.batch_size.saturating_mul(u64::from(head.world_size));
        let delivered = match &head.ramped {
            Some(ramped) => ramped.delivered(epoch, step_rows),
            None => head.delivered,
        };
        let own = self.schedule(layout, delivered)?;
        let of_worker = |worker| match layout.counted {
            true => own.of_worker(workers as u64, worker),
            false => own.clone(),
        };
        let schedules: Vec<Schedule> = (0..workers as u64).map(of_worker).collect();
        let mut open = match layout.is_exact() {
            true => quotas_of_rank(
                share(head.rows, u64::from(head.world_size), u64::from(head.rank)),
                &schedules,
            ),
            false => vec![0; workers],
        };
        let repeated: Vec<u64> = schedules
            .iter()
            .zip(&open)
            .map(|(schedule, quota)| match schedule.rows() {
                Some(rows) => rows.saturating_sub(*quota),
                None => schedule.batch_size,
            })
            .collect();
        let mut shards: Vec<Shard> = schedules
            .into_iter()
            .zip(repeated)
            .zip(0_u64..)
            .map(|((schedule, repeated), worker)| Shard {
                lanes: Vec::new(),
                lane_weights: head.source_weights.clone(),
                ramp: head
                    .ramped
                    .as_ref()
                    .map(|ramped| ramped.of_worker(epoch, step_rows, workers as u64, worker)),
                schedule,
                padding: if repeated > 0 && layout.remainder == Remainder::Pad {
                    self.padding.clone()
                } else {
                    Vec::new()
                },
            })
            .collect();
        for (number, pieces) in head.numbers.iter().zip(&self.lanes) {
            let rows = pieces.iter().filter_map(RowSlice::rows).sum();
            let mut dealt = match lists {
                Some(lists) => group_by_lists(pieces.clone(), lists, workers, |shard| {
                    shard.checked_sub(rank * workers).filter(|worker| *worker < workers)
                }),
                None => {
                    let bins = self.bins(pieces, layout, workers);
                    group(pieces.clone(), &bins, workers)
                }
            };
            if layout.is_exact() {
                let wanted = part(&open, rows);
                open.iter_mut().zip(&wanted).for_each(|(open, wanted)| *open -= wanted);
                level(&mut dealt, &wanted, lists.is_none());
            }
            for (shard, pieces) in shards.iter_mut().zip(dealt) {
                // Rests of windows are told apart where pieces are put in order.
                let (rests, mixing, number) = (Vec::new(), layout.mixing, *number);
                shard.lanes.push(Lane { rests, pieces, key: 0, mixing, number });
            }
        }
        Ok(shards)
    }

    fn bins(&self, pieces: &[RowSlice], layout: &Layout, bins: usize) -> Vec<u32> {
        match layout.strategy.unwrap_or_default() {
            _ if bins == 1 => vec![0; pieces.len()],
            Builtin::Lpt => {
                let weights: Vec<u64> = pieces.iter().map(|piece| self.weight_of(piece)).collect();
                lpt(&weights, bins)
            }
            Builtin::RoundRobin => round_robin(pieces.len(), bins),
        }
    }

    fn weight_of(&self, piece: &RowSlice) -> u64 {
        piece.weight(self.head.counted, &|id| match self
            .weights
            .binary_search_by_key(&id, |(id, ..)| *id)
        {
            Ok(at) => (self.weights[at].1, self.weights[at].2),
            Err(_) => (0, None),
        })
    }

    /// As bytes, for another process.
    ///
    /// # Errors
    /// Never for a share that was dealt: its parts are plain data.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut writer = Writer::default();
        writer.bytes(&to_json(&self.head)?);
        writer.number(self.lanes.len() as u64);
        for pieces in self.lanes.iter().chain([&self.padding]) {
            write_pieces(&mut writer, pieces)?;
        }
        writer.number(self.weights.len() as u64);
        let (mut id_before, mut weight_before) = (0, 0);
        for (id, weight, rows) in &self.weights {
            writer.near(u64::from(*id), &mut id_before);
            writer.near(*weight, &mut weight_before);
            writer.optional(*rows);
        }
        Ok(writer.finish())
    }

    /// Decodes a share that [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// `Config` where the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let head = from_json(reader.bytes()?)?;
        let count = reader.length()?;
        let mut lanes = Vec::with_capacity(count);
        for _ in 0..count {
            lanes.push(read_pieces(&mut reader)?);
        }
        let padding = read_pieces(&mut reader)?;
        let count = reader.length()?;
        let mut weights = Vec::with_capacity(count);
        let (mut id_before, mut weight_before) = (0, 0);
        for _ in 0..count {
            let id = u32::try_from(reader.near(&mut id_before)?).unwrap_or(u32::MAX);
            weights.push((id, reader.near(&mut weight_before)?, reader.optional()?));
        }
        reader.end()?;
        Ok(Self { head, lanes, padding, weights })
    }
}

const WHOLE: u64 = 0;
const COUNTED: u64 = 1;
const PART: u64 = 2;
const WINDOW: u64 = 3;

/// Most pieces are whole splits one after the other: two or three bytes each.
fn write_pieces(writer: &mut Writer, pieces: &[RowSlice]) -> Result<()> {
    writer.number(pieces.len() as u64);
    let (mut id_before, mut rows_before) = (0, 0);
    for piece in pieces {
        match (&piece.source, piece) {
            (Source::Split(id), RowSlice { start: 0, end: None, to_end: true, .. }) => {
                writer.number(WHOLE);
                writer.near(u64::from(*id), &mut id_before);
            }
            (Source::Split(id), RowSlice { start: 0, end: Some(end), to_end: true, .. }) => {
                writer.number(COUNTED);
                writer.near(u64::from(*id), &mut id_before);
                writer.near(*end, &mut rows_before);
            }
            (Source::Split(id), _) => {
                writer.number(PART);
                writer.near(u64::from(*id), &mut id_before);
                writer.number(piece.start);
                writer.optional(piece.end);
                writer.number(u64::from(piece.to_end));
            }
            (Source::Window(_), _) => {
                writer.number(WINDOW);
                writer.bytes(&to_json(piece)?);
            }
        }
    }
    Ok(())
}

fn read_pieces(reader: &mut Reader<'_>) -> Result<Vec<RowSlice>> {
    let count = reader.length()?;
    let mut pieces = Vec::with_capacity(count);
    let (mut id_before, mut rows_before) = (0, 0);
    for _ in 0..count {
        let kind = reader.number()?;
        if kind == WINDOW {
            pieces.push(from_json(reader.bytes()?)?);
            continue;
        }
        let id = u32::try_from(reader.near(&mut id_before)?).unwrap_or(u32::MAX);
        pieces.push(match kind {
            WHOLE => RowSlice::split(id, None),
            COUNTED => RowSlice::split(id, Some(reader.near(&mut rows_before)?)),
            _ => RowSlice {
                source: Source::Split(id),
                start: reader.number()?,
                end: reader.optional()?,
                to_end: reader.number()? != 0,
            },
        });
    }
    Ok(pieces)
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    let unwritable = |error| Error::config("a share cannot be written").with_source(error);
    serde_json::to_vec(value).map_err(unwritable)
}

fn from_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let unreadable = |error| Error::config("a share cannot be read").with_source(error);
    serde_json::from_slice(bytes).map_err(unreadable)
}
