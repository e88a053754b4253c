//! Stripes: which bytes of one are read, and how they become batches.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use orc_rust::array_decoder::NaiveStripeDecoder;
use orc_rust::projection::ProjectionMask;
use orc_rust::schema::{DataType as OrcType, RootDataType};
use orc_rust::stripe::Stripe;

use super::declared::Streams;
use super::footer::{OrcFooter, decoding};
use super::streams::{Chunks, StripeFooter};
use super::timestamps::{
    daylight_saving, epoch_in, framed, refuse_far_times, refuse_unknown_offsets, times_of,
    without_negative_nanoseconds, zone_of,
};
use crate::bounds::ORC_STRIPE;
use crate::formats::guard::guarded;
use crate::{Error, Result};

/// Stripes up to this size are read in one request, where most of their columns are wanted or not.
const SMALL_STRIPE: u64 = 256 << 10;

/// Kinds of the two streams of a timestamp.
const SECONDS: u64 = 1;
const NANOSECONDS: u64 = 5;

/// The stripes and columns that [`open`] reads from a file, and the way it reads them.
#[derive(Clone, Debug)]
pub struct OrcRead {
    /// The stripes.
    pub stripes: Range<usize>,
    /// The root columns, by their places in the file; the batches have them in this order.
    pub columns: Vec<usize>,
    /// The type of every root column of the file: [`OrcFooter::schema`], perhaps with other units
    /// of timestamps ([`with_units`](super::with_units), [`with_units_of`](super::with_units_of)).
    pub schema: SchemaRef,
    /// Rows of a batch, at most.
    pub batch_rows: usize,
}

/// Opens consecutive stripes: batches in row order, from the first row of the first stripe on, with
/// the file's own names and the types of `read.schema`. No batch crosses a stripe. Each stripe is
/// read when the one before is done: its footer (kept for the next time), and the streams of the
/// wanted columns, near ones in one request. Without columns nothing is read, and the batches only
/// count rows.
///
/// # Errors
/// `Config` for stripes or columns that the file does not have. From the stream: `Data` where the
/// file is damaged (the caller names it); storage errors as they are.
pub fn open(
    store: Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    footer: Arc<OrcFooter>,
    read: OrcRead,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let (stripes, columns) = (footer.stripes().len(), footer.root().children().len());
    if read.stripes.end > stripes {
        return Err(Error::config(format!("stripes {:?} are not in 0..{stripes}", read.stripes)));
    }
    if let Some(column) = read.columns.iter().find(|column| **column >= columns) {
        return Err(Error::config(format!("column {column} is not in 0..{columns}")));
    }
    let projection = Projection::new(&footer, &read)?;
    let file = Arc::new(File { store, location: meta.location.clone(), footer, projection });
    let batch_rows = read.batch_rows.max(1);
    let batches = stream::iter(read.stripes)
        .then(move |number| {
            let file = Arc::clone(&file);
            async move { file.read(number, batch_rows).await }
        })
        .map_ok(stream::iter)
        .try_flatten();
    Ok(batches.boxed())
}

/// The wanted columns as the decoder takes them: each once, in file order.
struct Projection {
    root: RootDataType,
    /// The schema of the decoded columns.
    schema: SchemaRef,
    /// The schema of the wanted columns.
    output: SchemaRef,
    /// By wanted column: its place among the decoded ones.
    places: Vec<usize>,
}

impl Projection {
    fn new(footer: &OrcFooter, read: &OrcRead) -> Result<Self> {
        let mut decoded = read.columns.clone();
        decoded.sort_unstable();
        decoded.dedup();
        let places = read.columns.iter().filter_map(|column| decoded.binary_search(column).ok());
        let children = footer.root().children();
        let indices = decoded.iter().map(|column| children[*column].data_type().column_index());
        let root = footer.root().project(&ProjectionMask::roots(footer.root(), indices));
        Ok(Self {
            places: places.collect(),
            root,
            schema: Arc::new(read.schema.project(&decoded)?),
            output: Arc::new(read.schema.project(&read.columns)?),
        })
    }
}

struct File {
    store: Arc<dyn ObjectStore>,
    location: Path,
    footer: Arc<OrcFooter>,
    projection: Projection,
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

impl File {
    async fn read(self: &Arc<Self>, number: usize, batch_rows: usize) -> Result<Batches> {
        let named = |error: Error| error.with_context("stripe", number);
        let rows = self.footer.stripes()[number].rows as usize;
        if self.projection.places.is_empty() {
            let file = Arc::clone(self);
            let starts = (0..rows).step_by(batch_rows);
            return Ok(Box::new(
                starts.map(move |at| file.output(Vec::new(), batch_rows.min(rows - at))),
            ));
        }
        let mut chunks = self.chunks(number).await.map_err(named)?;
        let decoder = guarded("ORC", || {
            let info = &self.footer.metadata().stripe_metadatas()[number];
            let root = &self.projection.root;
            let stripe = Stripe::new(&mut chunks, self.footer.metadata(), root, info)
                .map_err(|error| decoding(&error))?;
            NaiveStripeDecoder::new(stripe, Arc::clone(&self.projection.schema), batch_rows)
                .map_err(|error| decoding(&error))
        })
        .map_err(named)?;
        Ok(Box::new(Decoding {
            file: Arc::clone(self),
            number,
            left: rows,
            decoder: Some(decoder),
        }))
    }

    /// The bytes of a stripe that its wanted columns need.
    async fn chunks(&self, number: usize) -> Result<Chunks> {
        let stripe = self.footer.stripes()[number];
        let info = &self.footer.metadata().stripe_metadatas()[number];
        let at = info.footer_offset();
        let footer_range = at..at + info.footer_length();
        let kept = self.footer.stripe_footer(number);
        let mut whole = None;
        let footer_bytes = match kept.and_then(|kept| kept.get()) {
            Some(bytes) => bytes.clone(),
            None => {
                let range = match stripe.bytes <= SMALL_STRIPE {
                    true => stripe.offset..stripe.offset + stripe.bytes,
                    false => footer_range.clone(),
                };
                let read = self.store.get_range(&self.location, range.clone()).await?;
                let from = (footer_range.start - range.start) as usize;
                // A copy of its own, or a small stripe's data would be kept with it.
                let bytes = Bytes::copy_from_slice(read.get(from..).unwrap_or_default());
                whole = (range.start == stripe.offset).then_some(read);
                match kept {
                    Some(kept) => kept.get_or_init(|| bytes).clone(),
                    None => bytes,
                }
            }
        };
        let footer = StripeFooter::read(&self.footer, footer_bytes.clone())?;
        footer.check(&self.footer)?;
        let (mut wanted, mut chunks) = (Vec::new(), Chunks::default());
        let mut start = stripe.offset;
        for stream in &footer.streams {
            let end = start
                .checked_add(stream.length)
                .filter(|end| *end <= footer_range.start)
                .ok_or_else(|| {
                    Error::data("the ORC file is damaged: a column lies outside of its stripe")
                })?;
            if self.projection.root.contains_column_index(stream.column as usize) {
                match stream.length == 0 || stream.is_index() {
                    true => chunks.insert(start..end, Bytes::new()),
                    false => wanted.push(start..end),
                }
            }
            start = end;
        }
        let read = match &whole {
            Some(whole) => {
                let from = |at: u64| (at - stripe.offset) as usize;
                wanted.iter().map(|range| whole.slice(from(range.start)..from(range.end))).collect()
            }
            None if wanted.is_empty() => Vec::new(),
            None => self.store.get_ranges(&self.location, &wanted).await?,
        };
        for (range, bytes) in wanted.into_iter().zip(read) {
            chunks.insert(range, bytes);
        }
        let streams = Streams { file: &self.footer, footer: &footer, offset: stripe.offset };
        streams.check(&self.projection.root, stripe.rows, &chunks)?;
        self.repair_timestamps(&footer, stripe.offset, &mut chunks)?;
        chunks.insert(footer_range, footer_bytes);
        Ok(chunks)
    }

    /// Replaces the streams of timestamps that have negative nanoseconds, and refuses times whose
    /// zone offset is unknown.
    fn repair_timestamps(
        &self,
        footer: &StripeFooter,
        offset: u64,
        chunks: &mut Chunks,
    ) -> Result<()> {
        let compressed = self.footer.metadata().compression().is_some();
        let zone = footer.time_zone.as_deref();
        let unsure = daylight_saving(zone)?;
        let negative = self.footer.may_have_negative_nanoseconds();
        if zone.is_none() && !negative {
            return Ok(());
        }
        for Timestamp { column, instant, unit } in timestamps_of(&self.projection) {
            let (Some(seconds), Some(nanoseconds)) = (
                footer.range_of(offset, column, SECONDS),
                footer.range_of(offset, column, NANOSECONDS),
            ) else {
                continue;
            };
            let second = footer.is_second(column);
            let zone = zone.filter(|_| !instant);
            let epoch = epoch_in(zone)?;
            if let Some(zone) = zone {
                let seconds = self.footer.decompress(chunks.get(&seconds), &ORC_STRIPE)?;
                let times = times_of(&seconds, second, epoch)?;
                refuse_far_times(&times, zone_of(zone)?, unit)?;
                if let Some(zone) = unsure {
                    refuse_unknown_offsets(&times, zone)?;
                }
            }
            if !negative {
                continue;
            }
            let repaired = without_negative_nanoseconds(
                || self.footer.decompress(chunks.get(&seconds), &ORC_STRIPE),
                &self.footer.decompress(chunks.get(&nanoseconds), &ORC_STRIPE)?,
                second,
                epoch,
            )?;
            if let Some((new_seconds, new_nanoseconds)) = repaired {
                chunks.insert(seconds, framed(new_seconds, compressed));
                chunks.insert(nanoseconds, framed(new_nanoseconds, compressed));
            }
        }
        Ok(())
    }

    /// A batch of decoded columns as one of the wanted ones.
    fn output(
        &self,
        decoded: Vec<Arc<dyn arrow::array::Array>>,
        rows: usize,
    ) -> Result<RecordBatch> {
        let columns =
            self.projection.places.iter().map(|place| Arc::clone(&decoded[*place])).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let schema = Arc::clone(&self.projection.output);
        RecordBatch::try_new_with_options(schema, columns, &options)
            .map_err(|error| Error::data(format!("the ORC data cannot be decoded: {error}")))
    }
}

/// The batches of one stripe.
struct Decoding {
    file: Arc<File>,
    number: usize,
    /// Rows that are not yet put out.
    left: usize,
    /// None after an error.
    decoder: Option<NaiveStripeDecoder>,
}

impl Iterator for Decoding {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let decoder = self.decoder.as_mut()?;
        let decoded =
            guarded("ORC", || decoder.next().transpose().map_err(|error| decoding(&error)))
                .transpose();
        let batch = match decoded {
            None if self.left == 0 => return None,
            None => Err(Error::data(format!(
                "the ORC file is damaged: {} rows of the stripe are missing",
                self.left
            ))),
            Some(batch) => batch.and_then(|batch| {
                let rows = batch.num_rows();
                self.left = self.left.saturating_sub(rows);
                match batch.num_columns() == self.projection().schema.fields().len() {
                    true => self.file.output(batch.columns().to_vec(), rows),
                    false => Err(Error::data("the ORC file is damaged: a column has no rows")),
                }
            }),
        };
        if batch.is_err() {
            self.decoder = None;
        }
        Some(batch.map_err(|error| error.with_context("stripe", self.number)))
    }
}

impl Decoding {
    fn projection(&self) -> &Projection {
        &self.file.projection
    }
}

/// A column of timestamps, which may be nested.
struct Timestamp {
    /// The number of its type.
    column: usize,
    instant: bool,
    unit: TimeUnit,
}

/// The timestamps among the columns that are decoded.
fn timestamps_of(projection: &Projection) -> Vec<Timestamp> {
    fn visit(orc: &OrcType, arrow: &DataType, found: &mut Vec<Timestamp>) {
        let mut push = |column: usize, instant: bool| {
            if let DataType::Timestamp(unit, _) = arrow {
                found.push(Timestamp { column, instant, unit: *unit });
            }
        };
        match (orc, arrow) {
            (OrcType::Timestamp { column_index }, _) => push(*column_index, false),
            (OrcType::TimestampWithLocalTimezone { column_index }, _) => push(*column_index, true),
            (OrcType::Struct { children, .. }, DataType::Struct(fields)) => {
                let children = children.iter().zip(fields);
                children
                    .for_each(|(child, field)| visit(child.data_type(), field.data_type(), found));
            }
            (OrcType::List { child, .. }, DataType::List(item)) => {
                visit(child, item.data_type(), found);
            }
            (OrcType::Map { key, value, .. }, DataType::Map(entries, _)) => {
                if let DataType::Struct(fields) = entries.data_type() {
                    let pair = [key, value].into_iter().zip(fields);
                    pair.for_each(|(orc, field)| visit(orc, field.data_type(), found));
                }
            }
            (OrcType::Union { variants, .. }, DataType::Union(fields, _)) => {
                let variants = variants.iter().zip(fields.iter());
                variants.for_each(|(orc, (_, field))| visit(orc, field.data_type(), found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    for (child, field) in projection.root.children().iter().zip(projection.schema.fields()) {
        visit(child.data_type(), field.data_type(), &mut found);
    }
    found
}
