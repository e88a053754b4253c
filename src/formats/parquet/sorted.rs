//! By which columns Parquet files are sorted, as far as their statistics say.

use std::cmp::Ordering;

use arrow::datatypes::SchemaRef;
use datafusion::scalar::ScalarValue;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use serde::{Deserialize, Serialize};

use super::bounds::Leaf;
use crate::formats::files::TableFiles;
use crate::formats::format::Format;
use crate::formats::{Split, SplitUnit, UnitKind};

/// Fewer row groups in order prove little: four random ones are sorted once in twelve times.
const FEWEST_GROUPS: usize = 8;

/// A column by which the row groups are sorted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SortedColumn {
    /// Its name in the table.
    pub name: String,
    /// Whether from the largest value to the smallest.
    pub descending: bool,
}

/// The columns of `columns` by which the row groups of `splits` (of one scan, in plan order) are
/// sorted: from one row group to the next, minimum and maximum overlap at their border at most.
///
/// Hive columns count too: all rows of a file have their value. A column that is the same
/// everywhere, fewer than eight row groups, and row groups without statistics prove nothing. Only
/// footers that were read before are looked at: no file is opened, and the answer for a format
/// without footers is that nothing is known.
pub fn sorted_columns(
    table: &TableFiles,
    splits: &[Split],
    columns: &[String],
) -> Vec<SortedColumn> {
    if !matches!(table.format, Format::Parquet) {
        return Vec::new();
    }
    let mut candidates: Vec<Candidate> =
        columns.iter().map(|name| Candidate::new(table, name)).collect();
    let mut seen = 0;
    for of_file in splits.chunk_by(|a, b| a.file == b.file) {
        let Some(file) = table.files.get(of_file[0].file as usize) else { return Vec::new() };
        let Some(footer) = table.footers.get(&file.meta.location) else { return Vec::new() };
        let Ok(physical) = table.footers.schema(&footer) else { return Vec::new() };
        let groups = groups_of(&footer, of_file);
        seen += groups.len();
        candidates.retain_mut(|candidate| match candidate.hive {
            Some(column) => match file.partition_values.get(column) {
                Some(value) if !value.is_null() => {
                    groups.iter().all(|_| candidate.goes_on(value.clone(), value.clone()))
                }
                _ => false,
            },
            None => candidate.goes_on_over(&footer, &physical, &groups),
        });
        if candidates.is_empty() {
            return Vec::new();
        }
    }
    if seen < FEWEST_GROUPS {
        return Vec::new();
    }
    candidates.into_iter().filter_map(Candidate::verdict).collect()
}

/// The row groups that splits of one file read.
fn groups_of<'a>(footer: &'a ParquetMetaData, splits: &[Split]) -> Vec<&'a RowGroupMetaData> {
    let all = footer.row_groups();
    let read = splits.iter().flat_map(|split| match split.unit {
        SplitUnit::Units { kind: UnitKind::RowGroups, first, count, .. } => {
            first as usize..(first + count) as usize
        }
        _ => 0..0,
    });
    read.filter_map(|group| all.get(group)).collect()
}

/// A column that is sorted as far as was looked.
struct Candidate {
    name: String,
    /// Position among the table's hive columns.
    hive: Option<usize>,
    ascending: bool,
    descending: bool,
    /// Whether two values were seen.
    varies: bool,
    /// Minimum and maximum of the row group before.
    before: Option<(ScalarValue, ScalarValue)>,
}

impl Candidate {
    fn new(table: &TableFiles, name: &str) -> Self {
        let hive = table.schema.table_partition_cols().iter().position(|f| f.name() == name);
        let name = name.to_owned();
        Self { name, hive, ascending: true, descending: true, varies: false, before: None }
    }

    /// Returns true if it stays sorted over the next row groups, which lie in one file.
    fn goes_on_over(
        &mut self,
        footer: &ParquetMetaData,
        physical: &SchemaRef,
        groups: &[&RowGroupMetaData],
    ) -> bool {
        let Ok(column) = physical.index_of(&self.name) else { return false };
        let Some(leaf) = Leaf::of(footer, physical, column) else { return false };
        let bounds = leaf.of_groups(groups);
        let (minima, maxima) = bounds.extremes();
        // Of floats NaN is in no bound: numbers in order, of eight row groups or more, are proof
        // enough.
        (0..groups.len()).all(|group| {
            let value = |values| ScalarValue::try_from_array(values, group);
            match (value(minima), value(maxima)) {
                (Ok(least), Ok(greatest)) if !least.is_null() && !greatest.is_null() => {
                    self.goes_on(least, greatest)
                }
                _ => false,
            }
        })
    }

    /// Returns true if it stays sorted over one more row group.
    fn goes_on(&mut self, least: ScalarValue, greatest: ScalarValue) -> bool {
        self.varies |= least != greatest;
        if let Some((lower, upper)) = &self.before {
            self.varies |= *lower != least;
            self.ascending &= upper.partial_cmp(&least).is_some_and(Ordering::is_le);
            self.descending &= lower.partial_cmp(&greatest).is_some_and(Ordering::is_ge);
        }
        self.before = Some((least, greatest));
        self.ascending || self.descending
    }

    fn verdict(self) -> Option<SortedColumn> {
        self.varies.then_some(SortedColumn { name: self.name, descending: !self.ascending })
    }
}
