//! A complete stage: its rows, at random.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::gather::{Lists, gather};
use super::manifest::{BatchEntry, Manifest, Unusable, damaged};
use super::map::MappedFile;
use super::sums::{is_verified, verify};
use super::write::panicked;
use crate::materialize::{Lock, StoredSchema};
use crate::runtime::Runtimes;
use crate::sharding::Order;
use crate::tensor::Pieces;
use crate::{Error, Result};

/// Bytes of the rows that [`Stage::read`] gathers at a time, by the mean of all rows.
const GATHERED_BYTES: u64 = 16 << 20;

/// The rows of a query on disk, numbered from 0 in the order of its splits.
///
/// Its files are mapped: their memory is the page cache's, shared by all processes that open the
/// stage, and the process itself keeps some hundred bytes per record batch and column. Reading
/// needs no runtime, so an open stage works in a forked process.
#[derive(Debug)]
pub struct Stage {
    dir: PathBuf,
    fingerprint: String,
    splits: usize,
    layout: StoredSchema,
    files: Vec<MappedFile>,
    batches: Vec<Slot>,
    /// Where each batch begins, and the number of rows at the end.
    starts: Vec<u64>,
    bytes: u64,
    /// Keeps it from being forgotten; None in a worker, whose trainer holds it, and where this user may
    /// not write.
    _in_use: Option<Lock>,
}

/// Where rows lie.
struct Places<'a> {
    /// The batches of which a row is wanted.
    touched: Vec<&'a RecordBatch>,
    /// Of each row the batch among them, and its place in it.
    of_rows: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct Slot {
    entry: BatchEntry,
    /// Its arrays, once a row of it was wanted.
    decoded: OnceLock<RecordBatch>,
}

impl Stage {
    /// Opens the stage in `dir`, written for a plan with the fingerprint `wanted`.
    ///
    /// # Errors
    /// `Storage` where there is none, where it is of another plan, or where a file was cut short,
    /// changed or damaged. Files that were touched since they were verified are read in whole.
    pub fn open(dir: &Path, wanted: &str) -> Result<Self> {
        Ok(Self::look(dir, wanted)?)
    }

    /// Opens a stage if it is the `wanted` one; the error says whether it may be written anew.
    pub(super) fn look(dir: &Path, wanted: &str) -> Result<Self, Unusable> {
        let (manifest, schema) = Manifest::read(dir)?;
        if manifest.fingerprint != wanted {
            return Err(Error::storage(format!(
                "the stage in {} is of another query or of changed files: its fingerprint is {}, and {wanted} \
                 is wanted",
                dir.display(),
                manifest.fingerprint
            ))
            .into());
        }
        let layout = StoredSchema::try_new(schema)?;
        let bytes = manifest.files.iter().map(|file| file.bytes).sum();
        let random = bytes > memory_bytes();
        let files: Vec<MappedFile> = manifest
            .files
            .iter()
            .enumerate()
            .map(|(index, file)| MappedFile::open(dir, index, file, random))
            .collect::<Result<_, Unusable>>()?;
        if !is_verified(dir, &manifest, None) {
            verify(dir, &manifest)?;
        }
        let mut starts = vec![0];
        let mut end = 0;
        for entry in &manifest.batches {
            if entry.block as usize >= files[entry.file as usize].len() {
                return Err(damaged(dir, "the manifest lists more batches than the files have"));
            }
            end += u64::from(entry.rows);
            starts.push(end);
        }
        let slot = |entry| Slot { entry, decoded: OnceLock::new() };
        Ok(Self {
            dir: dir.to_owned(),
            fingerprint: manifest.fingerprint,
            splits: manifest.splits,
            layout,
            files,
            batches: manifest.batches.into_iter().map(slot).collect(),
            starts,
            bytes,
            _in_use: None,
        })
    }

    /// The stage, kept from being forgotten as long as it lives.
    pub(super) fn used_by(self, in_use: Option<Lock>) -> Self {
        Self { _in_use: in_use, ..self }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The fingerprint of the plan it was written for.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Splits that were written.
    pub fn num_splits(&self) -> usize {
        self.splits
    }

    /// The query's schema.
    pub fn schema(&self) -> &SchemaRef {
        self.layout.query()
    }

    /// Number of rows.
    pub fn num_rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Bytes of all its files of rows.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of record batches.
    pub(super) fn num_batches(&self) -> usize {
        self.batches.len()
    }

    /// A column of a record batch, as stored; it lies in the map.
    pub(super) fn stored(&self, batch: usize, column: usize) -> Result<ArrayRef> {
        Ok(Arc::clone(self.batch(batch)?.column(column)))
    }

    /// The given rows, in the order given; a row may be named several times.
    ///
    /// # Errors
    /// `Config` for a row that does not exist; `Data` where the rows exceed a 32-bit offset or a
    /// dictionary's key type, which fewer rows may not.
    pub fn gather(&self, rows: &[u64]) -> Result<RecordBatch> {
        if rows.is_empty() {
            return Ok(RecordBatch::new_empty(Arc::clone(self.schema())));
        }
        let Places { touched, of_rows } = self.places(rows)?;
        let columns: Vec<_> = (0..self.layout.stored().fields().len())
            .map(|column| {
                let arrays: Vec<_> =
                    touched.iter().map(|batch| batch.column(column).as_ref()).collect();
                gather(&arrays, &of_rows)
            })
            .collect::<Result<_>>()?;
        self.layout.restore(&columns, rows.len())
    }

    /// Copies parts of lists side by side: of row `rows[n]` from the number `from[n]` on to the n-th
    /// of the `pieces` of `target`, and the number `fill`, as bytes, to where no piece is. Returns
    /// false, and does nothing, where the column has other values than lists of numbers of so many
    /// bytes, or NULLs.
    ///
    /// # Errors
    /// `Config` for a row, a column or a part of a list that does not exist, and for pieces that do
    /// not lie in `target`.
    pub fn gather_pieces(
        &self,
        column: &str,
        rows: &[u64],
        from: &[i64],
        pieces: &Pieces,
        target: &mut [u8],
        fill: &[u8],
    ) -> Result<bool> {
        let Places { touched, of_rows } = self.places(rows)?;
        let column = self.schema().index_of(column)?;
        let lists = touched.iter().map(|batch| Lists::of(batch.column(column), fill.len()));
        let Some(lists) = lists.collect::<Option<Vec<_>>>() else { return Ok(false) };
        let absent = || Error::config("a list has fewer numbers than are asked for");
        pieces.gather(target, fill, |number, length| {
            let ((list, row), from) =
                of_rows.get(number).zip(from.get(number)).ok_or_else(absent)?;
            let from = usize::try_from(*from).map_err(|_| absent())?;
            lists[*list].part(*row, from, length).ok_or_else(absent)
        })?;
        Ok(true)
    }

    fn places(&self, rows: &[u64]) -> Result<Places<'_>> {
        const UNSEEN: u32 = u32::MAX;
        let mut slots = vec![UNSEEN; self.batches.len()];
        let mut touched: Vec<&RecordBatch> = Vec::new();
        let mut of_rows = Vec::with_capacity(rows.len());
        for &row in rows {
            if row >= self.num_rows() {
                return Err(Error::config(format!(
                    "row {row} of the stage must be in 0..{}",
                    self.num_rows()
                )));
            }
            let index = self.starts.partition_point(|&start| start <= row) - 1;
            if slots[index] == UNSEEN {
                slots[index] = touched.len() as u32;
                touched.push(self.batch(index)?);
            }
            of_rows.push((slots[index] as usize, (row - self.starts[index]) as usize));
        }
        Ok(Places { touched, of_rows })
    }

    /// The rows at positions `range` of an order, in batches of `batch_rows` rows, fewer where rows
    /// are wide. `in_flight` batches are gathered at once, on threads that may wait for the disk.
    ///
    /// The sequence of rows depends on the order and the range alone; how it is cut into batches
    /// does not matter to whoever wants exact batches and cuts again.
    ///
    /// # Errors
    /// `Config` where the order is not over this stage's rows, or the range does not lie in it.
    pub fn read(
        self: &Arc<Self>,
        order: Order,
        range: Range<u64>,
        batch_rows: usize,
        in_flight: usize,
    ) -> Result<impl Stream<Item = Result<RecordBatch>> + Send + use<>> {
        if let Some(rows) = order.num_rows().filter(|rows| *rows != self.num_rows()) {
            return Err(Error::config(format!(
                "an order of {rows} rows does not fit a stage of {}",
                self.num_rows()
            )));
        }
        if range.start > range.end || range.end > order.len() {
            return Err(Error::config(format!(
                "positions {}..{} must lie in 0..{}",
                range.start,
                range.end,
                order.len()
            )));
        }
        if batch_rows == 0 || in_flight == 0 {
            return Err(Error::config(format!(
                "batch_rows {batch_rows} and in_flight {in_flight} must be at least 1"
            )));
        }
        let row_bytes = (self.bytes / self.num_rows().max(1)).max(1);
        let step = (batch_rows as u64).min((GATHERED_BYTES / row_bytes).max(1));
        let runtime = Runtimes::current()?.cpu().clone();
        let stage = Arc::clone(self);
        let order = Arc::new(order);
        let mut next = range.start;
        let starts = std::iter::from_fn(move || {
            let start = next;
            next = start.saturating_add(step).min(range.end);
            (start < range.end).then_some(start..next)
        });
        let batches = stream::iter(starts)
            .map(move |positions| {
                let (stage, order) = (Arc::clone(&stage), Arc::clone(&order));
                runtime.spawn_blocking(move || {
                    let rows: Vec<u64> = positions.map(|at| order.at(at)).collect();
                    Ok::<_, Error>(stream::iter(stage.take(&rows)?.into_iter().map(Ok)))
                })
            })
            .buffered(in_flight)
            .map(|joined| joined.map_err(panicked)?);
        Ok(batches.try_flatten())
    }

    /// The given rows as [`gather`](Self::gather) has them, in several batches where one cannot hold
    /// them all.
    ///
    /// # Errors
    /// `Config` for a row that does not exist.
    pub fn take(&self, rows: &[u64]) -> Result<Vec<RecordBatch>> {
        let mut batches = Vec::with_capacity(1);
        self.gather_in_parts(rows, &mut batches)?;
        Ok(batches)
    }

    /// Gathers rows in halves, where all of them together exceed a 32-bit offset or a dictionary's
    /// key type.
    fn gather_in_parts(&self, rows: &[u64], batches: &mut Vec<RecordBatch>) -> Result<()> {
        match self.gather(rows) {
            Ok(batch) => batches.push(batch),
            Err(_) if rows.len() > 1 => {
                let (first, second) = rows.split_at(rows.len() / 2);
                self.gather_in_parts(first, batches)?;
                self.gather_in_parts(second, batches)?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn batch(&self, index: usize) -> Result<&RecordBatch> {
        let Slot { entry, decoded } = &self.batches[index];
        if let Some(batch) = decoded.get() {
            return Ok(batch);
        }
        let file = &self.files[entry.file as usize];
        let batch = file.batch(entry.block as usize, self.layout.stored())?;
        match batch.filter(|batch| batch.num_rows() == entry.rows as usize) {
            Some(batch) => Ok(decoded.get_or_init(|| batch)),
            None => Err(damaged(&self.dir, format!("batch {index} is not the one written")).into()),
        }
    }
}

/// Bytes of memory this machine has.
fn memory_bytes() -> u64 {
    // SAFETY: `sysconf` only answers.
    let (pages, page) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    match (u64::try_from(pages), u64::try_from(page)) {
        (Ok(pages), Ok(page)) => pages.saturating_mul(page),
        // Unknown: let the kernel read ahead.
        _ => u64::MAX,
    }
}
