//! Where the rows of pieces come from.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use tokio::runtime::Handle;

use super::queue::RowQueue;
use super::reads::Reads;
use super::rows::Rows;
use super::series::WindowReader;
use super::shuffle;
use crate::formats::BatchEnds;
use crate::materialize::rows_of;
use crate::matrix::{MatrixColumns, MatrixSchema};
use crate::row_store::Stage;
use crate::session::EpochPlan;
use crate::sharding::{Order, RowSlice, Source, Window};
use crate::{Error, Result};

/// A batch under the schema of its plan: the inputs of a UNION ALL differ in their nullability.
fn alike(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    if batch.schema_ref() == schema {
        return Ok(batch);
    }
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| match column.data_type() == field.data_type() {
        true => Ok(Arc::clone(column)),
        // Nulls of what lies inside.
        false => arrow::compute::cast(column, field.data_type()),
    });
    rows_of(schema, columns.collect::<Result<_, _>>()?, batch.num_rows())
}

/// Rows of a batch of positions.
const POSITION_ROWS: u64 = 8192;

/// Stored bytes that all splits in flight may hold, and the part of the session's memory limit that
/// is for them.
const FETCHED_BYTES: u64 = 256 << 20;
const FETCHED_PART: u64 = 4;

/// A stream of batches.
pub type Batches = BoxStream<'static, Result<RecordBatch>>;

/// The rows behind the numbers of splits.
#[derive(Clone, Debug)]
pub enum RowSource {
    /// The splits of a plan.
    Plan(EpochPlan),
    /// Runs of `rows` positions each of a stage in another order.
    Permuted {
        /// All rows.
        stage: Arc<Stage>,
        /// Which row has which position.
        order: Order,
        /// Positions of one split.
        rows: u64,
    },
    /// Windows over the rows of a plan's splits, each in the split of its first row.
    Windows {
        /// The rows.
        plan: EpochPlan,
        /// Makes windows of them.
        reader: Arc<WindowReader>,
    },
    /// Splits of so many rows, whose rows are their own positions: the deliveries of a shard,
    /// without reading it.
    Positions(Arc<[u64]>),
}

impl RowSource {
    /// The schema of [`RowSource::Positions`]: split, and output row of the split.
    pub fn positions_schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("split", DataType::UInt32, false),
            Field::new("row", DataType::UInt64, false),
        ]))
    }

    /// Stored bytes of a fetched split in the mean, and the bytes that may be held while they are
    /// fetched; None where nothing is fetched over a network.
    pub(super) fn fetched(&self) -> Option<(u64, u64)> {
        let (Self::Plan(plan) | Self::Windows { plan, .. }) = self else { return None };
        let limit = plan.memory_limit().map_or(FETCHED_BYTES, |limit| limit as u64 / FETCHED_PART);
        (plan.split_bytes() > 0).then(|| (plan.split_bytes(), limit.min(FETCHED_BYTES)))
    }

    /// Decodes rows in longer batches, so that a delivered batch seldom has rows of two of them.
    #[must_use]
    pub fn in_long_batches(self) -> Self {
        match self {
            Self::Plan(plan) => Self::Plan(plan.in_long_batches()),
            Self::Windows { plan, reader } => {
                Self::Windows { plan: plan.in_long_batches(), reader }
            }
            other => other,
        }
    }

    /// Appends those of `matrices` that save something after all other columns; None if none does.
    ///
    /// # Errors
    /// Where DataFusion cannot project so.
    pub fn with_matrices(
        &self,
        matrices: Vec<MatrixColumns>,
    ) -> Result<Option<(Self, MatrixSchema)>> {
        let Self::Plan(plan) = self else { return Ok(None) };
        Ok(plan.with_matrices(matrices)?.map(|(plan, schema)| (Self::Plan(plan), schema)))
    }

    /// How many of the columns are matrices that are made of others: the last ones.
    pub(super) fn matrices(&self) -> usize {
        match self {
            Self::Plan(plan) => plan.matrices(),
            Self::Windows { reader, .. } => reader.lists(),
            Self::Permuted { .. } | Self::Positions(_) => 0,
        }
    }

    /// The rows of `piece` after its first `skip`; `reads` hears of the file, and of rows read to
    /// fill windows again. The first of these rows lies `cuts.at` rows after one of the borders
    /// between finished batches.
    pub fn read(
        &self,
        piece: &RowSlice,
        skip: u64,
        cuts: Option<BatchEnds>,
        reads: &Arc<Reads>,
    ) -> Batches {
        let piece = piece.clone().skip(skip);
        match &piece.source {
            Source::Window(window) => {
                self.refill(Arc::clone(window), piece.start, piece.end, Arc::clone(reads))
            }
            Source::Split(id) => {
                let (source, id) = (self.clone(), *id);
                if let Some(file) = self.file_of(id) {
                    reads.opened(file);
                }
                let reads = Arc::clone(reads);
                let open = async move {
                    // To the end where it must be seen that no row follows.
                    let end = piece.end.filter(|_| !piece.to_end).unwrap_or(u64::MAX);
                    let wanted = piece.start..end;
                    let (rows, skipped) = source.execute_rows(id, wanted, cuts, &reads).await?;
                    Ok::<_, Error>(trim(rows, &piece, id, skipped))
                };
                stream::once(open).try_flatten().boxed()
            }
        }
    }

    /// The file of a split, where it has one.
    fn file_of(&self, id: u32) -> Option<(u32, u32)> {
        match self {
            Self::Plan(plan) => plan.file_of(id),
            Self::Windows { .. } | Self::Permuted { .. } | Self::Positions(_) => None,
        }
    }

    /// The rows of a split; rows that are not `wanted` may be left out. Also returns how many are,
    /// before the first.
    async fn execute_rows(
        &self,
        id: u32,
        wanted: Range<u64>,
        cuts: Option<BatchEnds>,
        reads: &Arc<Reads>,
    ) -> Result<(Batches, u64)> {
        match self {
            Self::Windows { plan, reader } => {
                let skipped = wanted.start;
                Ok((reader.read(plan, id, wanted, cuts, reads), skipped))
            }
            Self::Plan(plan) => {
                let (rows, skipped) = plan.execute_rows(id, wanted, cuts).await?;
                let schema = plan.schema();
                let rows = rows.map(move |batch| alike(batch?, &schema));
                Ok((rows.boxed(), skipped))
            }
            Self::Permuted { stage, order, rows } => {
                let first = u64::from(id) * rows;
                let end = order.len().min(first + wanted.end.min(*rows));
                let range = end.min(first + wanted.start)..end;
                let skipped = range.start - first.min(end);
                let read = stage.read(order.clone(), range, POSITION_ROWS as usize, 1)?;
                Ok((read.boxed(), skipped))
            }
            Self::Positions(counts) => {
                let rows = counts.get(id as usize).copied().unwrap_or(0).min(wanted.end);
                let batch = move |start: u64| positions(id, start, rows.min(start + POSITION_ROWS));
                let starts = (0..rows).step_by(POSITION_ROWS as usize);
                Ok((stream::iter(starts.map(batch)).boxed(), 0))
            }
        }
    }

    /// The rows `start..end` of a window, filled and permuted as it was before.
    fn refill(
        &self,
        window: Arc<Window>,
        start: u64,
        end: Option<u64>,
        reads: Arc<Reads>,
    ) -> Batches {
        let source = self.clone();
        let fill = async move {
            let end = end.unwrap_or(window.rows);
            let pieces = Arc::from(window.pieces.as_slice());
            // One at a time: other windows are refilled at the same time.
            let state = window.from.clone();
            let mut rows = Rows::new(source, pieces, state, 1, Handle::current(), reads);
            let mut queue = RowQueue::new(shuffle::TINY_ROWS);
            while (queue.rows() as u64) < window.rows {
                let Some((_, batch)) = rows.next(window.rows - queue.rows() as u64).await? else {
                    return Err(fewer(queue.rows() as u64, window.rows, "a shuffle window"));
                };
                queue.push(batch)?;
            }
            let mut filled = shuffle::Window::permuted(0, window.key, queue.take(usize::MAX)?)?;
            filled.skip_rows(usize::try_from(start).unwrap_or(usize::MAX));
            let mut left = usize::try_from(end - start).unwrap_or(usize::MAX);
            let drain = std::iter::from_fn(move || {
                let batch = filled.next_batch(left).transpose()?;
                left -= batch.as_ref().map_or(0, RecordBatch::num_rows);
                Some(batch)
            });
            Ok(stream::iter(drain))
        };
        stream::once(fill).try_flatten().boxed()
    }
}

fn positions(split: u32, start: u64, end: u64) -> Result<RecordBatch> {
    let rows = UInt64Array::from_iter_values(start..end);
    let splits = UInt32Array::from_value(split, rows.values().len());
    let schema = RowSource::positions_schema();
    Ok(RecordBatch::try_new(schema, vec![Arc::new(splits), Arc::new(rows)])?)
}

/// The rows of a split that remain to be trimmed.
struct Trim {
    rows: Batches,
    skip: u64,
    /// Rows still wanted; None is all.
    left: Option<u64>,
    to_end: bool,
    split: u32,
    seen: u64,
}

/// The rows of one split that a piece takes; the first `skipped` are not among `rows`. A split with
/// another number of rows than was counted is an error: rows would be lost, or read twice.
fn trim(rows: Batches, piece: &RowSlice, split: u32, skipped: u64) -> Batches {
    let (skip, to_end) = (piece.start - skipped, piece.to_end);
    let state = Trim { rows, skip, left: piece.rows(), to_end, split, seen: skipped };
    stream::try_unfold(state, |mut state| async move {
        loop {
            if state.left == Some(0) && !state.to_end {
                return Ok(None);
            }
            let Some(batch) = state.rows.try_next().await? else {
                return match state.left {
                    Some(left) if left > 0 => {
                        Err(fewer(state.seen, state.seen + state.skip + left, &state.place()))
                    }
                    _ if state.skip > 0 => {
                        Err(fewer(state.seen, state.seen + state.skip, &state.place()))
                    }
                    _ => Ok(None),
                };
            };
            let rows = batch.num_rows() as u64;
            let first = state.skip.min(rows);
            let here = state.left.unwrap_or(u64::MAX).min(rows - first);
            state.seen += rows;
            state.skip -= first;
            if state.left == Some(0) && rows > first {
                return Err(Error::data(format!(
                    "{} has more than the {} rows that were counted; the data changed under the job, or please \
                     report it",
                    state.place(),
                    state.seen - rows
                )));
            }
            if let Some(left) = &mut state.left {
                *left -= here;
            }
            if here > 0 {
                let batch = batch.slice(first as usize, here as usize);
                let rest = rows - first - here;
                if rest > 0 && state.to_end {
                    return Err(Error::data(format!(
                        "{} has more rows than were counted; the data changed under the job, or please report it",
                        state.place()
                    )));
                }
                return Ok(Some((batch, state)));
            }
        }
    })
    .boxed()
}

impl Trim {
    fn place(&self) -> String {
        format!("split {}", self.split)
    }
}

fn fewer(found: u64, wanted: u64, place: &str) -> Error {
    Error::data(format!(
        "{place} has {found} rows, where {wanted} were counted, or are named by exclude=; its ranges are of another \
         query, the data changed under the job, or please report it with the query"
    ))
}
