//! Splits of ORC files: consecutive stripes, pruned by statistics, weighed by the bytes of the projected columns.

use std::ops::Range;
use std::sync::Arc;

use object_store::ObjectStoreExt;
use orc_rust::projection::ProjectionMask;

use super::footer::{OrcFooter, StripeRange, read_orc_footer};
use super::statistics::kept_stripes;
use super::stripe::StripeFooter;
use crate::split::discover::{FileSplits, ScanRequest, SplitTarget};
use crate::split::files::TableFiles;
use crate::split::parquet::adapt;
use crate::split::{Split, SplitUnit};
use crate::{Error, Result};

/// The splits of file `index`.
///
/// # Errors
/// `Data` where the file is damaged.
pub async fn discover(
    table: &TableFiles,
    index: usize,
    request: &ScanRequest,
    target: SplitTarget,
) -> Result<FileSplits> {
    let located = |error: Error| error.with_context("file", table.display_path(index));
    let file = &table.files[index];
    let footer =
        read_orc_footer(&table.store, &file.meta, &table.footers).await.map_err(located)?;
    let stripes = footer.stripes();
    let keep = match &request.predicate {
        Some(predicate) => {
            let physical = Arc::new(footer.plain_schema());
            let predicate = adapt(table, index, predicate, &physical)?;
            kept_stripes(&footer, predicate).map_err(located)?
        }
        None => vec![true; stripes.len()],
    };
    let (read, of) = share(table, index, &footer, &request.columns).await.map_err(located)?;
    let weight = |number: usize| {
        (u128::from(stripes[number].bytes) * u128::from(read) / u128::from(of)) as u64
    };
    let splitter = Splitter { file: index as u32, size: file.meta.size, stripes, target };
    let splits = splitter.split(&keep, weight);
    let pruned = keep.iter().filter(|keep| !**keep).count();
    Ok(FileSplits { splits, units: stripes.len(), pruned })
}

/// Merges consecutive stripes into splits towards the target.
struct Splitter<'a> {
    file: u32,
    /// Of the file, in bytes.
    size: u64,
    stripes: &'a [StripeRange],
    target: SplitTarget,
}

impl Splitter<'_> {
    fn split(&self, keep: &[bool], weight: impl Fn(usize) -> u64) -> Vec<Split> {
        // A byte range addresses stripes only where they lie in the order of their rows.
        if self.stripes.windows(2).any(|pair| pair[0].offset >= pair[1].offset) {
            let all = 0..self.stripes.len();
            let bytes = all.clone().map(&weight).fold(0, u64::saturating_add);
            let wanted = keep.contains(&true);
            return wanted.then(|| self.of(all, bytes)).into_iter().collect();
        }
        let mut splits = Vec::new();
        let mut open: Option<(Range<usize>, u64)> = None;
        for (number, stripe) in self.stripes.iter().enumerate() {
            if stripe.rows == 0 || !keep[number] {
                splits.extend(open.take().map(|(stripes, bytes)| self.of(stripes, bytes)));
                continue;
            }
            let bytes = weight(number);
            if let Some((stripes, before)) = &mut open {
                let rows = self.rows(stripes.start..number + 1);
                if self.target.allows(rows, before.saturating_add(bytes)) {
                    stripes.end = number + 1;
                    *before = before.saturating_add(bytes);
                    continue;
                }
            }
            splits.extend(open.take().map(|(stripes, bytes)| self.of(stripes, bytes)));
            open = Some((number..number + 1, bytes));
        }
        splits.extend(open.take().map(|(stripes, bytes)| self.of(stripes, bytes)));
        splits
    }

    fn rows(&self, stripes: Range<usize>) -> u64 {
        self.stripes[stripes].iter().map(|stripe| stripe.rows).sum()
    }

    fn of(&self, stripes: Range<usize>, bytes: u64) -> Split {
        let whole = stripes.len() == self.stripes.len();
        let unit = SplitUnit::Stripes {
            first: stripes.start as u32,
            count: stripes.len() as u32,
            byte_start: if whole { 0 } else { self.stripes[stripes.start].offset },
            byte_end: match self.stripes.get(stripes.end) {
                Some(next) if !whole => next.offset,
                _ => self.size,
            },
        };
        Split {
            scan: 0,
            file: self.file,
            unit,
            rows: Some(self.rows(stripes.clone())),
            deleted: 0,
            first_row: self.stripes[stripes.start].first_row,
            bytes,
        }
    }
}

/// What part of a stripe's bytes the projected columns are, as a fraction: by the footer of the first stripe, since
/// those of all would cost a request each.
async fn share(
    table: &TableFiles,
    index: usize,
    footer: &OrcFooter,
    columns: &[String],
) -> Result<(u64, u64)> {
    let projected: Vec<usize> = footer
        .root()
        .children()
        .iter()
        .filter(|column| columns.iter().any(|name| name == column.name()))
        .map(|column| column.data_type().column_index())
        .collect();
    let Some(first) = footer.metadata().stripe_metadatas().first() else { return Ok((1, 1)) };
    if projected.len() == footer.root().children().len() {
        return Ok((1, 1));
    }
    let (at, length) = (first.footer_offset(), first.footer_length());
    let bytes = match footer.stripe_footer(0).and_then(|kept| kept.get()) {
        Some(bytes) => bytes.clone(),
        None => {
            let location = &table.files[index].meta.location;
            let read = table.store.get_range(location, at..at + length).await?;
            match footer.stripe_footer(0) {
                Some(kept) => kept.get_or_init(|| read).clone(),
                None => read,
            }
        }
    };
    let root = footer.root().project(&ProjectionMask::roots(footer.root(), projected));
    let (all, read) = StripeFooter::read(footer, bytes)?.bytes_of(&root);
    Ok((read, all.max(1)))
}
