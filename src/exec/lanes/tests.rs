use std::time::Duration;

use arrow::array::{
    ArrayRef, AsArray, Int64Array, ListArray, RecordBatch, RunArray, StringArray, StructArray,
    UnionArray, new_null_array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema, SchemaRef, UnionFields};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::runtime::Builder;

use super::deal::Lanes;
use super::*;
use crate::{Error, ErrorKind};

const BATCHES: i64 = 40;
const ROWS: i64 = 5000;

/// Rows from a number on: `k` has it modulo 1,000, with NULL for some, `n` has it.
fn batch(first: i64) -> RecordBatch {
    let key = |n: i64| (n % 7 != 0).then_some(n % 1000);
    let keys: Int64Array = (first..first + ROWS).map(key).collect();
    let numbers: Int64Array = (first..first + ROWS).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("k", Arc::new(keys) as ArrayRef, true),
        ("n", Arc::new(numbers) as ArrayRef, false),
    ])
    .unwrap()
}

fn schema() -> SchemaRef {
    batch(0).schema()
}

/// All batches, then whatever `end` does.
fn rows(
    end: impl FnOnce() -> Option<DfResult<RecordBatch>> + Send + 'static,
) -> SendableRecordBatchStream {
    let batches = stream::iter((0..BATCHES).map(|number| Ok(batch(number * ROWS))));
    let last = stream::once(async move { end() }).filter_map(std::future::ready);
    Box::pin(RecordBatchStreamAdapter::new(schema(), batches.chain(last)))
}

fn by_key() -> Dealing {
    Dealing::Keys(vec![Arc::new(Column::new("k", 0))])
}

/// What each lane gets, if lane for lane is read after some milliseconds.
fn dealt(
    rows: SendableRecordBatchStream,
    by: Dealing,
    slow: fn(usize) -> u64,
) -> Vec<DfResult<Vec<RecordBatch>>> {
    let runtime = Builder::new_multi_thread().worker_threads(3).enable_time().build().unwrap();
    runtime.block_on(async {
        let mut lanes = Lanes::start(rows, by);
        let read = (0..LANES).map(|lane| {
            let rows = lanes.open(lane).unwrap();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(slow(lane))).await;
                rows.try_collect::<Vec<_>>().await
            })
        });
        let read: Vec<_> = read.collect();
        let mut found = Vec::new();
        for lane in read {
            found.push(lane.await.unwrap());
        }
        found
    })
}

fn whole(lanes: Vec<DfResult<Vec<RecordBatch>>>) -> Vec<RecordBatch> {
    let lanes = lanes.into_iter().map(Result::unwrap);
    lanes.map(|lane| arrow::compute::concat_batches(&schema(), &lane).unwrap()).collect()
}

fn numbers(lane: &RecordBatch) -> Vec<i64> {
    lane.column(1).as_primitive::<Int64Type>().values().to_vec()
}

#[test]
fn each_row_comes_into_one_lane_with_all_others_of_its_key() {
    let lanes = whole(dealt(rows(|| None), by_key(), |_| 0));
    let mut lane_of = std::collections::BTreeMap::new();
    let mut all = Vec::new();
    for (number, lane) in lanes.iter().enumerate() {
        for key in lane.column(0).as_primitive::<Int64Type>() {
            assert_eq!(*lane_of.entry(key).or_insert(number), number, "{key:?}");
        }
        let own = numbers(lane);
        assert!(own.is_sorted(), "rows of a lane keep their order");
        all.extend(own);
    }
    // Half and twice of an equal share: keys are few, and one of them, NULL, has a seventh of the rows.
    let fair = (BATCHES * ROWS) as usize * 6 / 7 / LANES;
    for lane in &lanes {
        assert!(lane.num_rows() > fair / 2, "{} of about {fair}", lane.num_rows());
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..BATCHES * ROWS));
}

#[test]
fn lanes_do_not_depend_on_who_is_slow() {
    for by in [by_key(), Dealing::Turns] {
        let quick = whole(dealt(rows(|| None), by.clone(), |_| 0));
        let first = whole(dealt(rows(|| None), by.clone(), |lane| 5 * (lane == 0) as u64));
        let last = whole(dealt(rows(|| None), by, |lane| lane as u64 % 5));
        assert_eq!(quick, first);
        assert_eq!(quick, last);
    }
}

#[test]
fn an_error_or_a_panic_of_the_input_ends_every_lane_with_it() {
    for by in [by_key(), Dealing::Turns] {
        let failed = Error::data("the file x is damaged");
        let failed = move || Some(Err(DataFusionError::from(failed)));
        for lane in dealt(rows(failed), by.clone(), |_| 0) {
            let error = Error::from(lane.unwrap_err());
            assert_eq!(error.kind(), ErrorKind::Data);
            assert!(error.message().contains("the file x is damaged"), "{error}");
        }
        for lane in dealt(rows(|| panic!("seven of nine")), by, |_| 0) {
            let error = Error::from(lane.unwrap_err());
            assert!(error.message().contains("seven of nine"), "{error}");
        }
    }
}

#[test]
fn lanes_without_their_end_are_an_error() {
    let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let error = runtime.block_on(async {
        let mut lanes = Lanes::start(rows(|| None), by_key());
        lanes.dealer = Arc::new(SpawnedTask::spawn(async {}));
        let rows = lanes.open(3).unwrap();
        rows.try_collect::<Vec<_>>().await.unwrap_err()
    });
    assert!(error.to_string().contains("the rows of a lane broke off"), "{error}");
}

#[test]
fn a_lane_that_nobody_reads_holds_nobody_up() {
    let runtime = Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let rest = runtime.block_on(async {
        let mut lanes = Lanes::start(rows(|| None), by_key());
        drop(lanes.open(0).unwrap());
        let read = (1..LANES).map(|lane| {
            let rows = lanes.open(lane).unwrap();
            tokio::spawn(rows.try_fold(0, |sum, batch| async move { Ok(sum + batch.num_rows()) }))
        });
        futures::future::join_all(read.collect::<Vec<_>>()).await
    });
    let rest: usize = rest.into_iter().map(|rows| rows.unwrap().unwrap()).sum();
    assert!(rest > 0 && rest < (BATCHES * ROWS) as usize);
}

#[test]
fn columns_of_any_type_are_dealt() {
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
        Some(vec![Some(2)]),
    ]);
    let runs = RunArray::<Int32Type>::from_iter([Some("a"), Some("a"), None, Some("b")]);
    let field = |name: &str, of| Arc::new(Field::new(name, of, true));
    let fields: UnionFields =
        [(0, field("i", DataType::Int64)), (1, field("s", DataType::Utf8))].into_iter().collect();
    let union = UnionArray::try_new(
        fields,
        vec![0, 1, 0, 1].into(),
        None,
        vec![
            Arc::new(Int64Array::from(vec![Some(1), None, None, None])),
            Arc::new(StringArray::from(vec![None, Some("x"), None, Some("y")])),
        ],
    );
    let words = StringArray::from(vec![Some("a"), None, Some("b"), Some("")]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![1, 2, 3, 4])),
        cast(&lists, &DataType::ListView(field("item", DataType::Int64))).unwrap(),
        Arc::new(lists),
        Arc::new(runs),
        Arc::new(union.unwrap()),
        cast(&words, &DataType::Utf8View).unwrap(),
        cast(&words, &DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into())).unwrap(),
        new_null_array(&DataType::Null, 4),
        Arc::new(StructArray::from(vec![(
            field("s", DataType::Utf8),
            Arc::new(words) as ArrayRef,
        )])),
    ];
    let fields: Vec<Field> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let name = if at == 0 { "k".to_owned() } else { format!("c{at}") };
            Field::new(name, column.data_type().clone(), true)
        })
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let whole = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    // In two batches, whose columns do not begin with their buffers.
    let pieces = [whole.slice(0, 1), whole.slice(1, 3)].map(Ok);
    let rows = Box::pin(RecordBatchStreamAdapter::new(schema, stream::iter(pieces)));
    let text = |batch: &RecordBatch| {
        let columns = batch.columns().iter();
        let shown =
            columns.map(|column| ArrayFormatter::try_new(column, &FormatOptions::default()));
        let shown: Vec<_> = shown.map(Result::unwrap).collect();
        let row =
            |row| shown.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>();
        (0..batch.num_rows()).map(row).collect::<Vec<_>>()
    };
    let lanes = dealt(rows, by_key(), |_| 0).into_iter().flat_map(Result::unwrap);
    let mut found: Vec<_> = lanes.flat_map(|batch| text(&batch)).collect();
    found.sort();
    assert_eq!(found, text(&whole));
}
