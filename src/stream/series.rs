//! Windows over series: each row is decoded once for all windows of a slice, and copied into those
//! that have it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeListArray};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Deserialize;

use super::reads::Reads;
use super::source::{Batches, RowSource};
use crate::formats::{BatchEnds, TURN_BYTES};
use crate::materialize::rows_of;
use crate::matrix::{Matrix, matrix_type, native_bytes};
use crate::session::EpochPlan;
use crate::sharding::{SeriesLayout, WindowShape};
use crate::{Error, Result};

/// Bytes of the windows that are made at a time; at least one delivered batch, if it is no larger
/// than [`MOST_BYTES`].
const BYTES: u64 = 1 << 20;
const MOST_BYTES: u64 = 16 << 20;

/// Which windows are made of rows, and of which columns.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSpec {
    /// Rows of the inputs.
    pub size: u64,
    /// Rows of the targets.
    pub horizon: u64,
    /// Rows from one window to the next.
    pub stride: u64,
    /// Columns whose value in the window's first row is part of the sample.
    pub first: Vec<String>,
    /// Columns of the inputs.
    pub inputs: Vec<String>,
    /// Columns of the targets, and the names of these.
    pub targets: Vec<(String, String)>,
}

/// Makes windows of a plan's rows.
#[derive(Debug)]
pub struct WindowReader {
    layout: SeriesLayout,
    schema: SchemaRef,
    columns: Vec<WindowColumn>,
    /// Columns that are lists of rows; they come last.
    lists: usize,
    /// Bytes of a window, about.
    window_bytes: u64,
}

/// One column of a sample.
#[derive(Debug)]
struct WindowColumn {
    /// Its place in the plan.
    source: usize,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    First,
    Inputs,
    Targets,
}

impl WindowReader {
    /// Windows of rows of `schema`, which lie as `counts` and `series` say; see
    /// [`SeriesLayout::try_new`].
    ///
    /// # Errors
    /// `Config` for an unknown column, or two outputs of one name.
    pub fn try_new(
        schema: &Schema,
        spec: &WindowSpec,
        counts: &[u64],
        series: &[u64],
    ) -> Result<Self> {
        let shape = WindowShape { size: spec.size, horizon: spec.horizon, stride: spec.stride };
        let layout = SeriesLayout::try_new(shape, counts, series)?;
        let first = spec.first.iter().map(|name| (name, name, Part::First));
        let inputs = spec.inputs.iter().map(|name| (name, name, Part::Inputs));
        let targets = spec.targets.iter().map(|(name, output)| (name, output, Part::Targets));
        let (mut columns, mut fields): (Vec<_>, Vec<FieldRef>) = (Vec::new(), Vec::new());
        let mut window_bytes = 0;
        for (name, output, part) in first.chain(inputs).chain(targets) {
            let source = schema.index_of(name).map_err(|error| {
                Error::config(format!("windows: no column {name:?}")).with_source(error)
            })?;
            if fields.iter().any(|field| field.name() == output) {
                return Err(Error::config(format!(
                    "windows: two outputs would be named {output:?}; rename a column in SQL (AS)"
                )));
            }
            let field = schema.field(source);
            let rows = match part {
                Part::First => 1,
                Part::Inputs => shape.size,
                Part::Targets => shape.horizon,
            };
            let width = field.data_type().primitive_width().unwrap_or(16) as u64;
            window_bytes += width.saturating_mul(rows);
            fields.push(Arc::new(match part {
                Part::First => field.clone(),
                _ => Field::new(output, list_type(field, rows)?, false),
            }));
            columns.push(WindowColumn { source, part });
        }
        let lists = columns.iter().filter(|column| column.part != Part::First).count();
        let schema = Arc::new(Schema::new(fields));
        Ok(Self { layout, schema, columns, lists, window_bytes: window_bytes.max(1) })
    }

    /// The windows by split and place.
    pub fn layout(&self) -> &SeriesLayout {
        &self.layout
    }

    /// The columns of a sample.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// How many columns are lists of rows: the last ones.
    pub fn lists(&self) -> usize {
        self.lists
    }

    /// Bytes of a window, about.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// The windows `wanted` of split `id`. Batches end at `cuts`, where these are not far apart.
    pub fn read(
        self: &Arc<Self>,
        plan: &EpochPlan,
        id: u32,
        wanted: Range<u64>,
        cuts: Option<BatchEnds>,
        reads: &Arc<Reads>,
    ) -> Batches {
        let windows = self.layout.windows_of(id, wanted);
        let (source, reads) = (RowSource::Plan(plan.clone()), Arc::clone(reads));
        let all = self.layout.rows_of(windows.clone());
        // One split after the other: the rows behind a split's own are few.
        let rows = stream::iter(self.layout.slices(all.clone()))
            .map(move |slice| source.read(&slice, 0, None, &reads))
            .flatten();
        let lengths = Lengths::new(self.window_bytes, cuts);
        let making = Making {
            reader: Arc::clone(self),
            rows: rows.boxed(),
            windows,
            lengths,
            held: Held::new(all.start),
        };
        stream::try_unfold(making, |mut making| async move {
            Ok(making.next().await?.map(|batch| (batch, making)))
        })
        .boxed()
    }

    /// The windows with these numbers, of rows that are held.
    fn made(&self, held: &Held, windows: Range<u64>) -> Result<RecordBatch> {
        let count = (windows.end - windows.start) as usize;
        let starts: Vec<u64> = windows.map(|window| self.layout.first_row(window)).collect();
        let shape = self.layout.shape();
        let cells =
            |offset: u64, rows: u64| held.pieces(starts.iter().map(|row| row + offset), rows);
        let firsts = cells(0, 1)?;
        let inputs = cells(0, shape.size)?;
        let targets =
            if shape.horizon > 0 { cells(shape.size, shape.horizon)? } else { Vec::new() };
        let columns = self.columns.iter().zip(self.schema.fields()).map(|(column, field)| {
            let arrays: Vec<&ArrayRef> =
                held.batches.iter().map(|(_, batch)| batch.column(column.source)).collect();
            match column.part {
                Part::First => gathered(&arrays, &firsts),
                Part::Inputs => listed(&arrays, &inputs, count, shape.size, field),
                Part::Targets => listed(&arrays, &targets, count, shape.horizon, field),
            }
        });
        rows_of(&self.schema, columns.collect::<Result<_>>()?, count)
    }
}

/// The type of so many rows of a column.
fn list_type(field: &Field, rows: u64) -> Result<DataType> {
    let width = i32::try_from(rows)
        .map_err(|_| Error::config(format!("windows: {rows} rows must be at most {}", i32::MAX)))?;
    Ok(match field.data_type() {
        item if item.primitive_width().is_some() => matrix_type(item, width),
        item => {
            let item =
                Field::new_list_field(item.clone(), true).with_metadata(field.metadata().clone());
            DataType::FixedSizeList(Arc::new(item), width)
        }
    })
}

/// Rows that lie side by side in one of several batches.
#[derive(Clone, Copy, Debug)]
struct Piece {
    batch: usize,
    start: usize,
    rows: usize,
}

/// The rows of pieces, one after the other.
fn gathered(arrays: &[&ArrayRef], pieces: &[Piece]) -> Result<ArrayRef> {
    let arrays: Vec<&dyn Array> = arrays.iter().map(|array| array.as_ref()).collect();
    let rows = pieces
        .iter()
        .flat_map(|piece| (piece.start..piece.start + piece.rows).map(|row| (piece.batch, row)));
    Ok(interleave(&arrays, &rows.collect::<Vec<_>>())?)
}

/// The rows of pieces as `count` lists of `width` rows.
fn listed(
    arrays: &[&ArrayRef],
    pieces: &[Piece],
    count: usize,
    width: u64,
    field: &Field,
) -> Result<ArrayRef> {
    if let Some(lists) = copied(arrays, pieces, count, width as usize) {
        return Ok(Arc::new(lists));
    }
    let DataType::FixedSizeList(item, width) = field.data_type() else {
        return Err(Error::data(format!("the windows of {:?} are no lists", field.name())));
    };
    let values = gathered(arrays, pieces)?;
    Ok(Arc::new(FixedSizeListArray::try_new_with_length(
        Arc::clone(item),
        *width,
        values,
        None,
        count,
    )?))
}

/// The same for numbers none of which is null: copied into memory that is used again, and that a
/// batch may lend.
fn copied(
    arrays: &[&ArrayRef],
    pieces: &[Piece],
    count: usize,
    width: usize,
) -> Option<FixedSizeListArray> {
    let item = arrays.first()?.data_type();
    let size = item.primitive_width()?;
    if arrays.iter().any(|array| array.null_count() > 0) {
        return None;
    }
    let values: Vec<&[u8]> = arrays.iter().map(|array| native_bytes(array.as_ref())).collect();
    let mut matrix = Matrix::new(count, width, size)?;
    matrix.fill(pieces.iter().map(|piece| {
        let start = piece.start * size;
        &values[piece.batch][start..start + piece.rows * size]
    }));
    matrix.finish(item)
}

/// Decoded rows that windows still need.
struct Held {
    /// Batches, each with the number of its first row.
    batches: VecDeque<(u64, RecordBatch)>,
    /// One past the last row.
    end: u64,
}

impl Held {
    fn new(start: u64) -> Self {
        Self { batches: VecDeque::new(), end: start }
    }

    fn push(&mut self, batch: RecordBatch) {
        let rows = batch.num_rows() as u64;
        self.batches.push_back((self.end, batch));
        self.end += rows;
    }

    /// Forgets batches that lie before a row.
    fn forget(&mut self, row: u64) {
        while let Some((start, batch)) = self.batches.front()
            && start + batch.num_rows() as u64 <= row
        {
            self.batches.pop_front();
        }
    }

    /// Where `rows` rows from each of these ascending starts on lie.
    fn pieces(&self, starts: impl Iterator<Item = u64>, rows: u64) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut first = 0;
        for start in starts {
            let end_of = |batch: usize| {
                self.batches.get(batch).map(|(at, batch)| at + batch.num_rows() as u64)
            };
            while end_of(first).is_some_and(|end| end <= start) {
                first += 1;
            }
            let (mut batch, mut row, end) = (first, start, start + rows);
            while row < end {
                let (Some(until), Some((at, _))) = (end_of(batch), self.batches.get(batch)) else {
                    return Err(Error::data(
                        "a window needs rows that were not read; please report it with the query",
                    ));
                };
                let here = until.min(end) - row;
                if here > 0 {
                    let start = (row - at) as usize;
                    pieces.push(Piece { batch, start, rows: here as usize });
                }
                row += here;
                batch += 1;
            }
        }
        Ok(pieces)
    }
}

/// Windows that are being made.
struct Making {
    reader: Arc<WindowReader>,
    rows: Batches,
    /// Those to come.
    windows: Range<u64>,
    lengths: Lengths,
    held: Held,
}

impl Making {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if self.windows.is_empty() {
            // Whether a split has more rows than were counted shows at its end.
            while let Some(batch) = self.rows.try_next().await? {
                drop(batch);
            }
            return Ok(None);
        }
        let left = self.windows.end - self.windows.start;
        let taken = self.windows.start..self.windows.start + self.lengths.next(left);
        let needed = self.reader.layout.rows_of(taken.clone());
        self.held.forget(needed.start);
        while self.held.end < needed.end {
            let Some(batch) = self.rows.try_next().await? else {
                return Err(Error::data(
                    "the rows of a window end before it does; please report it with the query",
                ));
            };
            self.held.push(batch);
            self.held.forget(needed.start);
        }
        let batch = self.reader.made(&self.held, taken.clone())?;
        self.windows.start = taken.end;
        Ok(Some(batch))
    }
}

/// The windows of successive batches: as many whole delivered batches as fit.
#[derive(Debug)]
struct Lengths {
    most: u64,
    every: u64,
    /// Windows after the last cut.
    at: u64,
}

impl Lengths {
    fn new(window_bytes: u64, cuts: Option<BatchEnds>) -> Self {
        let fitting = |bytes: u64| (bytes / window_bytes.max(1)).max(1);
        let takes_turns = cuts.is_some_and(|cuts| cuts.turns);
        let most = fitting(if takes_turns { TURN_BYTES as u64 } else { BYTES });
        let cuts = cuts.filter(|cuts| (1..=fitting(MOST_BYTES)).contains(&cuts.every));
        match cuts {
            Some(cuts) => {
                Self { most: most.max(cuts.every), every: cuts.every, at: cuts.at % cuts.every }
            }
            None => Self { most, every: most, at: 0 },
        }
    }

    /// The windows of the next batch, of `left`.
    fn next(&mut self, left: u64) -> u64 {
        let rows = (self.most / self.every * self.every - self.at).min(left);
        self.at = (self.at + rows) % self.every;
        rows
    }
}
