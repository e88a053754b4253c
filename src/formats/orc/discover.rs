//! Splits of ORC files: consecutive stripes, pruned by statistics, weighed by the bytes of the
//! projected columns.

use std::sync::Arc;

use object_store::ObjectStoreExt;
use orc_rust::projection::ProjectionMask;

use super::footer::{OrcFooter, read_orc_footer};
use super::statistics::kept_stripes;
use super::streams::StripeFooter;
use crate::formats::UnitKind;
use crate::formats::discover::{FileSplits, ScanRequest, SplitTarget};
use crate::formats::files::TableFiles;
use crate::formats::parquet::discover::adapt;
use crate::formats::units::Splitter;
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
            kept_stripes(&footer, &predicate).map_err(located)?
        }
        None => vec![true; stripes.len()],
    };
    let (read, of) = match share(table, index, &footer, &request.columns).await {
        // It is a weight, and what is damaged is that stripe alone.
        Err(error) if request.tolerant && error.may_be_of_content() => (1, 1),
        share => share.map_err(located)?,
    };
    let weight = |number: usize| {
        (u128::from(stripes[number].bytes) * u128::from(read) / u128::from(of)) as u64
    };
    let splitter = Splitter {
        file: index as u32,
        size: file.meta.size,
        kind: UnitKind::Stripes,
        units: stripes,
        target,
    };
    let splits = splitter.split(&keep, weight);
    let pruned = keep.iter().filter(|keep| !**keep).count();
    Ok(FileSplits { splits, units: stripes.len(), pruned, ..FileSplits::default() })
}

/// The fraction of a stripe's bytes that the projected columns take. It comes from the first
/// stripe's footer: reading all footers would cost a request each.
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
