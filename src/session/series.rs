//! Series of a plan's rows: one pass over the columns that tell series apart and order them, which
//! counts the rows of each and proves that each lies in one piece and in order.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt64Array};
use arrow::compute::kernels::cmp::{eq, lt};
use arrow::compute::{partition, take};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow::row::{RowConverter, SortField};
use arrow::util::display::array_value_to_string;
use futures::TryStreamExt;
use tokio::task::JoinSet;

use super::epoch_plan::EpochPlan;
use super::plan::{Plan, executable};
use super::replay::Numbering;
use crate::exec::rewrite;
use crate::runtime::Runtimes;
use crate::{Error, ErrorKind, Result};

/// Splits executed on one copy of the plan, as for counting.
const SPLITS_PER_COPY: usize = 1024;

/// The columns that make series of rows.
#[derive(Clone, Debug)]
pub struct SeriesColumns {
    /// Rows of equal values are one series; without columns all rows are.
    pub by: Vec<String>,
    /// Ascends in each series.
    pub order: String,
}

/// The rows of splits, and of the series that they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// Rows by split.
    pub counts: Vec<u64>,
    /// Rows by series, in their order.
    pub lengths: Vec<u64>,
}

/// What the pass over a plan's rows found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundSeries {
    /// Each series lies in one piece, and in order.
    Sorted(Series),
    /// The first row that is not in its place, in words.
    Unsorted(String),
}

impl Plan {
    /// Reads the columns of `series` of all rows, once. `threads` splits decode at the same time,
    /// and twice as many are open.
    ///
    /// # Errors
    /// `Config` for a column that does not exist or has no order; `Data` for a NULL in one of them,
    /// and where two rows of a series have the same value of the order; errors of reading.
    pub async fn series(
        self: &Arc<Self>,
        series: &SeriesColumns,
        threads: usize,
    ) -> Result<FoundSeries> {
        let splits = self.whole()?.len();
        let epoch = || self.series_plan(series);
        let runtimes = Runtimes::current()?;
        let mut found: Vec<Option<SplitRuns>> = Vec::new();
        found.resize_with(splits, || None);
        let (mut plan, mut tasks, mut next) = (epoch().await?, JoinSet::new(), 0);
        loop {
            while tasks.len() < threads.max(1) * 2 && next < splits {
                if next > 0 && next.is_multiple_of(SPLITS_PER_COPY) {
                    plan = epoch().await?;
                }
                let (plan, id, columns) = (plan.clone(), next, series.clone());
                let task =
                    async move { read(&plan, id as u32, &columns).await.map(|runs| (id, runs)) };
                tasks.spawn_on(task, runtimes.cpu());
                next += 1;
            }
            let Some(joined) = tasks.join_next().await else { break };
            let (id, runs) = joined.map_err(|error| {
                Error::data(format!("a counting task ended abnormally ({error}); please report it"))
            })??;
            found[id] = Some(runs);
        }
        let (joined, problem) = join(found.into_iter().flatten().collect())?;
        match problem {
            None => Ok(FoundSeries::Sorted(joined)),
            Some((split, problem)) => self.say(series, split, problem).await,
        }
    }

    /// The plan of the columns alone over this plan's splits, or this plan.
    async fn series_plan(&self, series: &SeriesColumns) -> Result<EpochPlan> {
        let names: Vec<&str> =
            series.by.iter().chain([&series.order]).map(String::as_str).collect();
        let narrow = match rewrite(self.query().physical_plan_of_columns(&names).await?) {
            Ok(rows) if self.rewritten.drives_like(&rows) => {
                Some(executable(&rows, self.shared_splits())?)
            }
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::NotShardable => None,
            Err(error) => return Err(error),
        };
        let (physical, partitions) = match narrow {
            Some(narrow) => narrow,
            None => executable(&self.rewritten, self.shared_splits())?,
        };
        let context = self.query().session().context().task_ctx();
        EpochPlan::new(&physical, &partitions, context)
    }

    /// Says what is wrong with a row.
    async fn say(
        &self,
        columns: &SeriesColumns,
        split: usize,
        problem: Problem,
    ) -> Result<FoundSeries> {
        let at = self.row_in_words(split as u32, problem.row).await;
        let order = &columns.order;
        let of = match problem.series.is_empty() {
            true => String::new(),
            false => format!(" of series {}", problem.series),
        };
        match problem.kind {
            Wrong::Null(column) => Err(Error::data(format!(
                "windows: column {column:?} is NULL in {at}, which then is in no series, or has no place in it; leave such rows \
                 out: filters='\"{column}\" IS NOT NULL'"
            ))),
            Wrong::Twice(value) => Err(Error::data(format!(
                "windows: {at}{of} has {order} = {value}, as the row before it, so that their order is not known; make one row of \
                 them in SQL (GROUP BY, or SELECT DISTINCT), or order by a column that tells them apart"
            ))),
            Wrong::Descends(value, before) => {
                Ok(FoundSeries::Unsorted(format!("{at}{of} has {order} = {value}, after {before}")))
            }
            Wrong::Again => Ok(FoundSeries::Unsorted(format!(
                "{at} goes on with series {}, which other series have interrupted",
                problem.series
            ))),
        }
    }

    /// Where an output row of a split lies, as a user counts.
    async fn row_in_words(&self, split: u32, row: u64) -> String {
        let find = async {
            let path = self.describe(self.split(split)?).path;
            let rows = self.replay()?.rows(split).await?;
            let row = rows.get(row as usize).copied();
            let row = row.ok_or_else(|| Error::data("the split has fewer rows"))?;
            Ok::<_, Error>(match self.numbering(split)? {
                Numbering::File => format!("row {row} of {path}"),
                Numbering::Table => format!("row {row} of the table in {path}"),
                Numbering::Split => format!("row {row} of split {split} of {path}"),
            })
        };
        find.await.unwrap_or_else(|_| format!("output row {row} of split {split}"))
    }
}

/// What is wrong with a row.
#[derive(Debug)]
enum Wrong {
    /// This column is NULL.
    Null(String),
    /// The order's value, which the row before has, too.
    Twice(String),
    /// The order's value, and that of the row before.
    Descends(String, String),
    /// Its series has ended before.
    Again,
}

/// The first row of a split that is not in its place.
#[derive(Debug)]
struct Problem {
    /// Counted from the start of the split.
    row: u64,
    kind: Wrong,
    /// The row's series in words.
    series: String,
}

/// Neighbouring rows of one series.
#[derive(Debug)]
struct Run {
    key: Box<[u8]>,
    series: String,
    /// Its first row, counted from the start of the split.
    first: u64,
    rows: u64,
}

/// The series of one split, up to its first problem.
#[derive(Debug, Default)]
struct SplitRuns {
    rows: u64,
    runs: Vec<Run>,
    /// The order's value of the first and of the last row.
    ends: Option<(ArrayRef, ArrayRef)>,
    problem: Option<Problem>,
}

/// The series of all splits, and the first problem with its split.
fn join(splits: Vec<SplitRuns>) -> Result<(Series, Option<(usize, Problem)>)> {
    let mut series = Series::default();
    let mut seen: HashSet<Box<[u8]>> = HashSet::new();
    let mut last: Option<(Box<[u8]>, ArrayRef)> = None;
    for (number, split) in splits.into_iter().enumerate() {
        series.counts.push(split.rows);
        let mut key = None;
        for run in split.runs {
            let goes_on = match (run.first, &last, &split.ends) {
                (0, Some((before, end)), Some((first, _))) if *before == run.key => {
                    if let Some(kind) = out_of_order(end, first)? {
                        return Ok((
                            series,
                            Some((number, Problem { row: 0, kind, series: run.series })),
                        ));
                    }
                    true
                }
                _ => false,
            };
            if goes_on {
                if let Some(rows) = series.lengths.last_mut() {
                    *rows += run.rows;
                }
            } else {
                if !seen.insert(run.key.clone()) {
                    let (row, kind) = (run.first, Wrong::Again);
                    return Ok((series, Some((number, Problem { row, kind, series: run.series }))));
                }
                series.lengths.push(run.rows);
            }
            key = Some(run.key);
        }
        if let Some(problem) = split.problem {
            return Ok((series, Some((number, problem))));
        }
        if let (Some(key), Some((_, end))) = (key, split.ends) {
            last = Some((key, end));
        }
    }
    Ok((series, None))
}

/// What is wrong where a row has the order's value `next` after one with `before`, both in an array
/// of one row.
fn out_of_order(before: &ArrayRef, next: &ArrayRef) -> Result<Option<Wrong>> {
    if lt(before, next)?.value(0) {
        return Ok(None);
    }
    let value = array_value_to_string(next, 0)?;
    Ok(Some(match eq(before, next)?.value(0) {
        true => Wrong::Twice(value),
        false => Wrong::Descends(value, array_value_to_string(before, 0)?),
    }))
}

async fn read(plan: &EpochPlan, id: u32, columns: &SeriesColumns) -> Result<SplitRuns> {
    let schema = plan.schema();
    let mut reader = Reader::try_new(&schema, columns)?;
    let mut rows = plan.execute(id)?;
    while let Some(batch) = rows.try_next().await? {
        if batch.num_rows() > 0 && !reader.push(&batch)? {
            break;
        }
    }
    Ok(reader.found)
}

/// Finds the runs of one split's rows.
struct Reader {
    by: Vec<usize>,
    order: usize,
    converter: Option<RowConverter>,
    /// Keys of the split's series.
    seen: HashSet<Box<[u8]>>,
    found: SplitRuns,
}

impl Reader {
    fn try_new(schema: &SchemaRef, columns: &SeriesColumns) -> Result<Self> {
        let place = |name: &String| {
            let found = schema.index_of(name);
            found.map_err(|error| {
                Error::config(format!("windows: no column {name:?}")).with_source(error)
            })
        };
        let by: Vec<usize> = columns.by.iter().map(place).collect::<Result<_>>()?;
        let order = place(&columns.order)?;
        let fields = by.iter().map(|at| SortField::new(schema.field(*at).data_type().clone()));
        let fields: Vec<SortField> = fields.collect();
        for at in by.iter().chain([&order]) {
            let field = schema.field(*at);
            if field.data_type().is_nested() {
                return Err(Error::config(format!(
                    "windows: column {:?} is {}; series are told apart and ordered by numbers, texts, dates and times",
                    field.name(),
                    field.data_type()
                )));
            }
        }
        let converter = if fields.is_empty() { None } else { Some(RowConverter::new(fields)?) };
        Ok(Self { by, order, converter, seen: HashSet::new(), found: SplitRuns::default() })
    }

    /// Looks at more rows; false after the first problem.
    fn push(&mut self, batch: &RecordBatch) -> Result<bool> {
        let (good, null) = match self.null(batch) {
            Some((row, column)) => (batch.slice(0, row), Some((row, column))),
            None => (batch.clone(), None),
        };
        if good.num_rows() > 0 && !self.push_valid(&good)? {
            return Ok(false);
        }
        let Some((_, column)) = null else { return Ok(true) };
        self.found.problem = Some(Problem {
            row: self.found.rows,
            kind: Wrong::Null(column),
            series: String::new(),
        });
        Ok(false)
    }

    /// The first row with a NULL, and its column.
    fn null(&self, batch: &RecordBatch) -> Option<(usize, String)> {
        let columns = self.by.iter().chain([&self.order]);
        let nulls = columns.filter_map(|at| {
            let nulls = batch.column(*at).logical_nulls().filter(|nulls| nulls.null_count() > 0)?;
            let row = (0..nulls.len()).find(|row| nulls.is_null(*row))?;
            Some((row, batch.schema_ref().field(*at).name().clone()))
        });
        nulls.min_by_key(|(row, _)| *row)
    }

    fn push_valid(&mut self, batch: &RecordBatch) -> Result<bool> {
        let by: Vec<ArrayRef> = self.by.iter().map(|at| Arc::clone(batch.column(*at))).collect();
        let order = batch.column(self.order);
        let rows = batch.num_rows();
        let ranges = match by.is_empty() {
            true => std::iter::once(0..rows).collect(),
            false => partition(&by)?.ranges(),
        };
        let starts = UInt64Array::from_iter_values(ranges.iter().map(|range| range.start as u64));
        let keys = self.keys(&by, &starts)?;
        let ascends = match rows {
            1 => None,
            _ => Some(lt(&order.slice(0, rows - 1), &order.slice(1, rows - 1))?),
        };
        let falls = ascends.filter(|ascends| ascends.true_count() < rows - 1);
        let (first, last) = (alone(order, 0)?, alone(order, rows - 1)?);
        let before = self.found.ends.as_ref().map(|(_, last)| Arc::clone(last));
        let ends = self.found.ends.get_or_insert_with(|| (Arc::clone(&first), Arc::clone(&last)));
        ends.1 = last;
        for (range, key) in ranges.into_iter().zip(keys) {
            let series = || in_words(batch.schema_ref(), &self.by, &by, range.start);
            let row = self.found.rows;
            match (self.found.runs.last_mut(), &before) {
                (Some(run), Some(before)) if range.start == 0 && run.key == key => {
                    if let Some(kind) = out_of_order(before, &first)? {
                        self.found.problem = Some(Problem { row, kind, series: series()? });
                        return Ok(false);
                    }
                    run.rows += range.len() as u64;
                }
                _ if self.seen.insert(key.clone()) => {
                    let (series, rows) = (series()?, range.len() as u64);
                    self.found.runs.push(Run { key, series, first: row, rows });
                }
                _ => {
                    self.found.problem =
                        Some(Problem { row, kind: Wrong::Again, series: series()? });
                    return Ok(false);
                }
            }
            let fall = falls
                .as_ref()
                .and_then(|ascends| (range.start..range.end - 1).find(|row| !ascends.value(*row)));
            if let Some(fall) = fall
                && let Some(kind) = out_of_order(&order.slice(fall, 1), &order.slice(fall + 1, 1))?
            {
                let row = row + (fall + 1 - range.start) as u64;
                self.found.problem = Some(Problem { row, kind, series: series()? });
                return Ok(false);
            }
            self.found.rows += range.len() as u64;
        }
        Ok(true)
    }

    /// The keys of these rows; of rows without columns, empty ones.
    fn keys(&self, by: &[ArrayRef], rows: &UInt64Array) -> Result<Vec<Box<[u8]>>> {
        let Some(converter) = &self.converter else { return Ok(vec![Box::default(); rows.len()]) };
        let firsts: Vec<ArrayRef> =
            by.iter().map(|column| take(column, rows, None)).collect::<Result<_, _>>()?;
        let keys = converter.convert_columns(&firsts)?;
        Ok(keys.iter().map(|key| Box::from(key.data())).collect())
    }
}

/// One row of an array, which then holds no other.
fn alone(array: &ArrayRef, row: usize) -> Result<ArrayRef> {
    Ok(take(array, &UInt64Array::from_value(row as u64, 1), None)?)
}

/// The series of a row: `sensor = a, site = 3`.
fn in_words(schema: &SchemaRef, places: &[usize], by: &[ArrayRef], row: usize) -> Result<String> {
    let values = places.iter().zip(by).map(|(at, column)| {
        Ok(format!("{} = {}", schema.field(*at).name(), array_value_to_string(column, row)?))
    });
    Ok(values.collect::<Result<Vec<_>>>()?.join(", "))
}
