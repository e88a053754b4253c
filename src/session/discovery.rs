//! Splits of a plan, found in the files of its driving scans or taken from the plan cache.

use std::collections::BTreeMap;

use super::plan::{Plan, PlanOptions, Planned, ScanReport};
use super::plan_fingerprint::{classify, fingerprint};
use super::query::Query;
use super::serialised_plan;
use crate::exec::{DrivingScan, ScanSource};
use crate::formats::{ScanRequest, ScanSplits, Split, SplitTarget, discover, memory};
use crate::{Error, Result};

/// Splits a table in memory should have at least, so that every shard gets its share.
const WANTED_MEMORY_SPLITS: u64 = 256;

/// Where the plan cache keeps plans.
const CACHED_PLANS: &str = "plans";

impl Plan {
    /// With `tolerant`, a file that cannot be understood is a split that
    /// [`verify`](super::SplitVerifier) finds bad.
    pub(super) async fn discover(
        query: Query,
        options: &PlanOptions,
        tolerant: bool,
    ) -> Result<Self> {
        let (rewritten, shape) = classify(&query).await?;
        let fingerprint = fingerprint(&query, options, &shape)?;
        // Under names of their own: where nothing may be left out, a damaged file is an error and
        // not a split.
        let entry = match tolerant {
            true => format!("{fingerprint}-tolerant"),
            false => fingerprint.clone(),
        };
        let cache = query.session().plan_cache().cloned();
        if let Some(cache) = &cache
            && let Some(memo) = cache.get(CACHED_PLANS, &entry).await
        {
            match serialised_plan::open_plan(&memo) {
                Ok(planned)
                    if planned.part.is_none()
                        && planned.fingerprint.as_ref() == Some(&fingerprint)
                        && (tolerant || planned.damaged.is_empty()) =>
                {
                    let base = (query, rewritten, options.clone(), shape, fingerprint);
                    return Self::assemble(base, planned);
                }
                Ok(_) => {
                    let other = Error::data("it is of another plan");
                    cache.is_odd(CACHED_PLANS, &entry, &other);
                }
                Err(error) => cache.is_odd(CACHED_PLANS, &entry, &error),
            }
        }
        let target = SplitTarget { bytes: options.split_bytes, rows: options.split_rows };
        let (mut found, mut damaged, mut first) = (Vec::new(), BTreeMap::new(), 0);
        for scan in &rewritten.scans {
            let splits = discover_scan(scan, target, options.explicit, tolerant).await?;
            damaged
                .extend(splits.damaged.iter().map(|(at, why)| (first + *at as u32, why.clone())));
            first += splits.splits.len() as u32;
            found.push(splits);
        }
        let reports = rewritten.scans.iter().zip(&found).map(report).collect();
        let splits = found
            .into_iter()
            .enumerate()
            .flat_map(|(scan, found)| {
                found.splits.into_iter().map(move |split| Split { scan: scan as u32, ..split })
            })
            .collect();
        let planned = Planned { splits, reports, damaged, ..Planned::default() };
        let base = (query, rewritten, options.clone(), shape, fingerprint);
        let plan = Self::assemble(base, planned)?;
        if let Some(cache) = cache {
            cache.put(CACHED_PLANS, &entry, &serialised_plan::of_plan(&plan, None)?).await;
        }
        Ok(plan)
    }
}

/// Counts the driving scans of a query as an input of a UNION ALL; reads nothing. A scan whose
/// files are all left out counts as well.
pub(super) async fn count_scans(query: &Query) -> Result<usize> {
    if query.is_proven_empty()? {
        return Ok(0);
    }
    let (rewritten, _) = classify(query).await?;
    Ok(rewritten.scans.len())
}

pub(super) async fn discover_scan(
    scan: &DrivingScan,
    target: SplitTarget,
    explicit: bool,
    tolerant: bool,
) -> Result<ScanSplits> {
    match &scan.source {
        ScanSource::Files { table, .. } => {
            let request = ScanRequest { tolerant, ..scan.request.clone() };
            discover(table, &scan.files, &request, target, explicit).await
        }
        ScanSource::Memory { batches, bytes, .. } => {
            let wanted = if explicit { 1 } else { WANTED_MEMORY_SPLITS };
            let found = memory::discover(batches, *bytes, target, wanted);
            Ok(ScanSplits { splits: found.splits, units: 1, ..ScanSplits::default() })
        }
        ScanSource::Empty => Ok(ScanSplits::default()),
    }
}

fn report((scan, found): (&DrivingScan, &ScanSplits)) -> ScanReport {
    let files_total = match &scan.source {
        ScanSource::Files { table, .. } => table.files.len(),
        _ => 0,
    };
    ScanReport {
        files: scan.files.len(),
        files_total,
        files_pruned: files_total - scan.files.len() + found.files_pruned,
        units: found.units,
        units_pruned: found.units_pruned,
    }
}
