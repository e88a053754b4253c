//! Promises 1, 3 and 4 (docs/promises.md), between splits and tensors: batching and shuffling lose and repeat no row,
//! only the last batch is short, and an order depends on the key and the rows alone.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, DictionaryArray, Float32Array, Int64Array, ListArray,
    RecordBatch, StringArray, StringViewArray, StructArray, UInt8Array,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Fields, Int32Type, Int64Type, Schema, UInt8Type};
use proptest::prelude::*;
use tensorquery::stream::{RowQueue, ShuffleWindow, Window, tiny};

const LONG: &str = "a string that is longer than a view holds inline, number";

/// Rows `start..end` of an endless table with one column of most kinds; each value tells its row.
fn rows(start: i64, end: i64) -> RecordBatch {
    let ids = || start..end;
    let text = |id: i64| (id % 7 != 0).then(|| format!("{LONG} {id}"));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(ids()))),
        ("text", Arc::new(ids().map(text).collect::<StringArray>())),
        ("view", Arc::new(ids().map(text).collect::<StringViewArray>())),
        ("flag", Arc::new(ids().map(|id| Some(id % 3 == 0)).collect::<BooleanArray>())),
        (
            "category",
            Arc::new(
                ids()
                    .map(|id| (id % 5 != 0).then(|| format!("c{}", id % 11)))
                    .collect::<Vec<_>>()
                    .iter()
                    .map(Option::as_deref)
                    .collect::<DictionaryArray<Int32Type>>(),
            ),
        ),
        (
            "items",
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(
                ids().map(|id| (id % 4 != 0).then(|| (0..id % 4).map(Some).collect::<Vec<_>>())),
            )),
        ),
        (
            "nested",
            Arc::new(StructArray::new(
                Fields::from(vec![Field::new("view", DataType::Utf8View, true)]),
                vec![Arc::new(ids().map(text).collect::<StringViewArray>())],
                None,
            )),
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
        .unwrap()
}

fn numbers(start: i64, end: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(start..end));
    RecordBatch::try_from_iter([("id", ids)]).unwrap()
}

fn ids(batches: &[RecordBatch]) -> Vec<i64> {
    let of = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
    batches.iter().flat_map(of).collect()
}

/// Consecutive batches of `sizes` rows.
fn cut(sizes: &[usize], make: fn(i64, i64) -> RecordBatch) -> Vec<RecordBatch> {
    let mut start = 0;
    let batch = |&size: &usize| {
        let first = start;
        start += size as i64;
        make(first, start)
    };
    sizes.iter().map(batch).collect()
}

/// Does a lane's work: pushes until a batch is full, and takes it.
fn exact(batch_size: usize, input: Vec<RecordBatch>) -> Vec<Vec<RecordBatch>> {
    let mut queue = RowQueue::new(tiny(batch_size));
    // Runs of tiny pieces between pieces that are not, and a piece cut at either end.
    let most = 2 * (batch_size / tiny(batch_size)) + 3;
    let mut output = Vec::new();
    let mut take = |queue: &mut RowQueue, rows: usize| {
        let before = queue.rows();
        let pieces: Vec<RecordBatch> =
            queue.take(rows).unwrap().into_iter().map(|rows| rows.into_batch().unwrap()).collect();
        assert!(pieces.len() <= most, "{} pieces", pieces.len());
        assert!(pieces.iter().all(|piece| piece.num_rows() > 0));
        let taken: usize = pieces.iter().map(RecordBatch::num_rows).sum();
        assert_eq!((taken, queue.rows()), (rows.min(before), before - taken));
        if taken > 0 {
            output.push(pieces);
        }
    };
    for batch in input {
        let rows = queue.rows() + batch.num_rows();
        queue.push(batch).unwrap();
        assert_eq!(queue.rows(), rows);
        while queue.rows() >= batch_size {
            take(&mut queue, batch_size);
        }
    }
    take(&mut queue, batch_size);
    assert_eq!(queue.rows(), 0);
    assert!(queue.take(batch_size).unwrap().is_empty());
    output
}

fn windows(capacity: usize, key: u64, input: Vec<RecordBatch>) -> Vec<Window> {
    let mut shuffle = ShuffleWindow::try_new(capacity, key).unwrap();
    let mut output = Vec::new();
    for batch in input {
        shuffle.push(batch).unwrap();
        while shuffle.rows() >= capacity {
            let window = shuffle.next_window().unwrap().unwrap();
            assert_eq!(window.num_rows(), capacity);
            output.push(window);
        }
    }
    output.extend(shuffle.next_window().unwrap());
    assert_eq!(shuffle.rows(), 0);
    output
}

fn shuffled(capacity: usize, key: u64, input: Vec<RecordBatch>) -> RecordBatch {
    let schema = input[0].schema();
    // Of numbers alone, which lie in their order, a batch may be all of a window.
    let most = match schema.fields().iter().all(|field| field.data_type().is_primitive()) {
        true => capacity,
        false => 8192,
    };
    let batches: Vec<RecordBatch> =
        windows(capacity, key, input).into_iter().flatten().map(Result::unwrap).collect();
    assert!(batches.iter().all(|batch| (1..=most).contains(&batch.num_rows())));
    concat_batches(&schema, &batches).unwrap()
}

/// Sizes of pushed batches: none, tiny, and large, mixed.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![3 => 0_usize..6, 2 => 0_usize..200, 1 => 0_usize..3000];
    prop::collection::vec(size, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn only_the_last_batch_is_short_and_rows_keep_their_order(
        sizes in sizes(),
        batch_size in prop_oneof![1_usize..70, 1_usize..5000],
    ) {
        let total: usize = sizes.iter().sum();
        let batches = exact(batch_size, cut(&sizes, numbers));
        let lengths: Vec<usize> =
            batches.iter().map(|pieces| pieces.iter().map(RecordBatch::num_rows).sum()).collect();
        prop_assert_eq!(lengths.len(), total.div_ceil(batch_size));
        let full = &lengths[..total / batch_size];
        prop_assert!(full.iter().all(|&length| length == batch_size));
        prop_assert_eq!(ids(&batches.concat()), (0..total as i64).collect::<Vec<_>>());
    }

    #[test]
    fn a_shuffle_delivers_every_row_once_whatever_its_type(
        sizes in prop::collection::vec(0_usize..60, 1..20),
        capacity in 1_usize..400,
        key: u64,
    ) {
        let total: usize = sizes.iter().sum();
        let output = shuffled(capacity, key, cut(&sizes, rows));
        let order = ids(std::slice::from_ref(&output));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..total as i64).collect::<Vec<_>>());
        // A row stays whole, and in its window.
        for (place, &id) in order.iter().enumerate() {
            prop_assert_eq!(id as usize / capacity, place / capacity);
            let wanted = rows(id, id + 1);
            for (column, field) in wanted.columns().iter().zip(wanted.schema().fields()) {
                let got = output.column_by_name(field.name()).unwrap().slice(place, 1);
                // Dictionaries may number their values differently: compare what they say.
                let plain = |array: &dyn Array| match array.data_type() {
                    DataType::Dictionary(_, _) => {
                        arrow::compute::cast(array, &DataType::Utf8).unwrap().to_data()
                    }
                    _ => array.to_data(),
                };
                prop_assert_eq!(plain(&got), plain(column), "column {}", field.name());
            }
        }
    }

    #[test]
    fn an_order_does_not_depend_on_the_cut_into_batches(
        sizes in sizes(),
        capacity in prop_oneof![1_usize..50, 500_usize..20_000],
        key: u64,
    ) {
        let total: usize = sizes.iter().sum();
        let whole = shuffled(capacity, key, vec![numbers(0, total as i64)]);
        prop_assert_eq!(shuffled(capacity, key, cut(&sizes, numbers)), whole);
    }

    #[test]
    fn a_cursor_is_a_window_and_an_offset(
        total in 1_usize..3000,
        capacity in 1_usize..700,
        stop in 0_usize..3000,
        key: u64,
    ) {
        let stop = stop % total;
        let whole = ids(&[shuffled(capacity, key, vec![numbers(0, total as i64)])]);
        let window = stop / capacity;
        let mut shuffle =
            ShuffleWindow::try_new(capacity, key).unwrap().starting_at(window as u64);
        shuffle.push(numbers((window * capacity) as i64, total as i64)).unwrap();
        let mut resumed = Vec::new();
        let mut skip = stop % capacity;
        while let Some(mut next) = shuffle.next_window().unwrap() {
            next.skip_rows(std::mem::take(&mut skip));
            resumed.extend(next.by_ref().map(Result::unwrap));
            prop_assert_eq!(next.offset(), next.num_rows());
        }
        prop_assert_eq!(ids(&resumed), whole[stop..].to_vec());
    }
}

#[test]
fn a_large_batch_is_cut_without_a_copy() {
    let input = numbers(0, 1000);
    let memory = |batch: &RecordBatch| {
        let values = batch.column(0).as_primitive::<Int64Type>().values();
        (values.inner().data_ptr(), values.len())
    };
    let batches = exact(300, vec![input.clone()]);
    let pieces: Vec<_> = batches.concat().iter().map(memory).collect();
    let pointer = memory(&input).0;
    assert_eq!(pieces, [300, 300, 300, 100].map(|length| (pointer, length)));
}

#[test]
fn thousands_of_tiny_batches_become_few_pieces() {
    let batches = exact(65_536, cut(&vec![3; 30_000], numbers));
    assert_eq!(batches.len(), 2);
    assert!(batches[0].len() <= 66, "{} pieces", batches[0].len());
}

/// A batch keeps the strings of its rows alive, not the pages that they were sliced from.
#[test]
fn tiny_and_shuffled_strings_let_go_of_their_pages() {
    let page = rows(0, 5000).project(&[0, 2, 6]).unwrap();
    let string_bytes = |batch: &RecordBatch| -> usize {
        let of =
            |array: &StringViewArray| array.data_buffers().iter().map(|b| b.len()).sum::<usize>();
        of(batch.column(1).as_string_view())
            + of(batch.column(2).as_struct().column(0).as_string_view())
    };
    let per_row = string_bytes(&page) / 5000 + 4;

    let tiny = (0..10).map(|row| page.slice(row * 500, 2)).collect();
    let batches = exact(20, tiny).concat();
    assert_eq!(batches.len(), 1);
    assert!(string_bytes(&batches[0]) <= 20 * per_row, "{}", string_bytes(&batches[0]));

    for window in windows(5000, 0, vec![page.clone()]) {
        for batch in window {
            let batch = batch.unwrap();
            assert!(string_bytes(&batch) <= (batch.num_rows() + 20) * per_row);
        }
    }
}

#[test]
fn rows_are_mixed_inside_a_batch() {
    let output = ids(&[shuffled(10_000, 3, cut(&[1000; 10], numbers))]);
    // Of 100 rows in a row, about 10 come from each of the ten pushed batches.
    for batch in output.chunks(100) {
        let mut counts = [0; 10];
        batch.iter().for_each(|id| counts[(id / 1000) as usize] += 1);
        assert!(counts.iter().all(|&count| count <= 30), "{counts:?}");
        assert!(counts.iter().filter(|&&count| count > 0).count() >= 7, "{counts:?}");
    }
    assert_ne!(output, ids(&[shuffled(10_000, 4, cut(&[1000; 10], numbers))]));
}

/// A batch that somebody keeps holds one of them.
#[test]
fn a_large_window_has_its_numbers_in_several_arrays() {
    const ROWS: usize = 300_000;
    let draw = || windows(ROWS, 5, vec![numbers(0, ROWS as i64)]).remove(0);
    let whole: Vec<RecordBatch> = draw().map(Result::unwrap).collect();
    let sizes: Vec<usize> = whole.iter().map(RecordBatch::num_rows).collect();
    assert_eq!(sizes, [131_072, 131_072, 37_856]);
    assert!(whole.iter().all(|batch| batch.column(0).get_buffer_memory_size() <= 2 << 20));
    let order = ids(&whole);
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..ROWS as i64).collect::<Vec<_>>());
    for skipped in [131_000, 131_072, 262_200] {
        let mut window = draw();
        window.skip_rows(skipped);
        let rest: Vec<RecordBatch> = window.by_ref().map(Result::unwrap).collect();
        assert_eq!(ids(&rest), order[skipped..]);
    }
}

#[test]
fn windows_are_numbered_and_differ() {
    let mut windows = windows(50, 9, vec![numbers(0, 120)]);
    assert_eq!(windows.iter().map(Window::number).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(windows[2].num_rows(), 20);
    let orders: Vec<Vec<i64>> = windows
        .iter_mut()
        .map(|window| ids(&window.by_ref().map(Result::unwrap).collect::<Vec<_>>()))
        .collect();
    let relative = |order: &[i64], start| order.iter().map(|id| id - start).collect::<Vec<_>>();
    assert_ne!(relative(&orders[0], 0), relative(&orders[1], 50));
}

/// The values come from a second implementation, in Python; see `golden_orders_stay_as_they_are`.
#[test]
fn the_golden_order_of_a_window_stays_as_it_is() {
    let mut shuffle = ShuffleWindow::try_new(12, 9).unwrap().starting_at(2);
    shuffle.push(numbers(0, 12)).unwrap();
    let window = shuffle.next_window().unwrap().unwrap();
    let batches: Vec<RecordBatch> = window.map(Result::unwrap).collect();
    assert_eq!(ids(&batches), GOLDEN_WINDOW);
}

const GOLDEN_WINDOW: [i64; 12] = [1, 9, 7, 4, 0, 2, 3, 11, 10, 5, 8, 6];

#[test]
fn wide_rows_are_drained_in_smaller_batches() {
    let wide = |id: i64| Some("x".repeat(100_000 + id as usize));
    let array: ArrayRef = Arc::new((0..1500).map(wide).collect::<StringArray>());
    let input = RecordBatch::try_from_iter([("text", array)]).unwrap();
    let sizes: Vec<usize> = windows(1500, 0, vec![input])
        .into_iter()
        .flatten()
        .map(|b| b.unwrap().num_rows())
        .collect();
    assert_eq!(sizes.iter().sum::<usize>(), 1500);
    // 16 MiB is about 165 rows.
    assert!(sizes.iter().all(|&rows| rows <= 256), "{sizes:?}");
}

/// The 200 values of each batch fit its key type of 8 bits, all 2000 together do not.
#[test]
fn dictionaries_that_do_not_fit_one_key_type_stay_apart() {
    let batch = |number: usize| {
        let values = StringArray::from_iter_values((0..200).map(|v| format!("{number} {v}")));
        let keys = UInt8Array::from_iter_values(0..200);
        let array: ArrayRef = Arc::new(DictionaryArray::<UInt8Type>::new(keys, Arc::new(values)));
        RecordBatch::try_from_iter([("category", array)]).unwrap()
    };
    // Batches under 400 rows would be merged.
    let batches = exact(25_600, (0..10).map(batch).collect());
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [10]);

    let drained: Vec<RecordBatch> = windows(2000, 0, (0..10).map(batch).collect())
        .into_iter()
        .flatten()
        .map(Result::unwrap)
        .collect();
    let mut seen: Vec<String> = Vec::new();
    for batch in &drained {
        let text = arrow::compute::cast(batch.column(0), &DataType::Utf8).unwrap();
        seen.extend(text.as_string::<i32>().iter().flatten().map(str::to_owned));
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 2000);
}

#[test]
fn a_query_without_columns_keeps_its_number_of_rows() {
    let options = arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(70));
    let empty =
        RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
    let input = vec![empty.clone(), empty.slice(0, 5)];
    let lengths = |batches: Vec<Vec<RecordBatch>>| -> Vec<usize> {
        batches.iter().map(|pieces| pieces.iter().map(RecordBatch::num_rows).sum()).collect()
    };
    assert_eq!(lengths(exact(40, input.clone())), [40, 35]);
    let drained = windows(40, 0, input).into_iter().flatten();
    assert_eq!(drained.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 75);
}

#[test]
fn windows_of_zero_and_changing_types_are_refused() {
    let message = |error: tensorquery::Error| error.to_string();
    assert!(
        message(ShuffleWindow::try_new(0, 0).err().unwrap()).starts_with("shuffle_buffer_size 0")
    );

    let floats: ArrayRef = Arc::new(Float32Array::from(vec![1.0]));
    let other = RecordBatch::try_from_iter([("id", floats)]).unwrap();
    let mut batches = RowQueue::new(tiny(10));
    batches.push(numbers(0, 2)).unwrap();
    assert_eq!(
        message(batches.push(other.clone()).unwrap_err()),
        "column \"id\" turns from Int64 into Float32 within one query; cast it to one type"
    );
    assert!(
        message(batches.push(rows(0, 1)).unwrap_err()).contains("7 columns follows batches of 1")
    );
    let mut shuffle = ShuffleWindow::try_new(10, 0).unwrap();
    shuffle.push(numbers(0, 2)).unwrap();
    assert!(shuffle.push(other).is_err());
}
