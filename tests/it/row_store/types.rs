//! Every type that a query can yield, through a stage and back.

use arrow::array::{
    Array, BinaryArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray,
    Float32Array, ListArray, MapBuilder, NullArray, StringBuilder, StringViewBuilder, StructArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, Int8Type, Int32Type, IntervalUnit, TimeUnit};

use super::*;

const LONG: &str = "a string that is longer than a view holds inline, number";

fn text(row: i64) -> Option<String> {
    (row % 6 != 2).then(|| if row % 2 == 0 { format!("{row}") } else { format!("{LONG} {row}") })
}

/// One column of most types; a row's values tell its number.
fn columns(rows: std::ops::Range<i64>) -> Vec<(String, ArrayRef)> {
    let number = |row: i64| (row % 5 != 4).then_some(row % 100);
    let numbers: ArrayRef = Arc::new(rows.clone().map(number).collect::<Int64Array>());
    let small: ArrayRef = cast(&numbers, &DataType::Int32).unwrap();
    let texts: ArrayRef = Arc::new(rows.clone().map(text).collect::<StringArray>());
    let zone = || Some("Europe/Berlin".into());
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    for data_type in [
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Date64,
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Timestamp(TimeUnit::Microsecond, zone()),
        DataType::Timestamp(TimeUnit::Second, None),
        DataType::Duration(TimeUnit::Millisecond),
        DataType::Decimal32(9, 2),
        DataType::Decimal64(18, 2),
        DataType::Decimal128(38, 2),
        DataType::Decimal256(76, 2),
        DataType::Dictionary(Box::new(DataType::UInt8), Box::new(DataType::Int64)),
    ] {
        columns.push((data_type.to_string(), cast(&numbers, &data_type).unwrap()));
    }
    for data_type in [
        DataType::Date32,
        DataType::Time32(TimeUnit::Second),
        DataType::Interval(IntervalUnit::YearMonth),
    ] {
        columns.push((data_type.to_string(), cast(&small, &data_type).unwrap()));
    }
    for data_type in [
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
    ] {
        columns.push((data_type.to_string(), cast(&texts, &data_type).unwrap()));
    }
    let flags = rows.clone().map(|row| (row % 4 != 1).then_some(row % 3 == 0));
    columns.push(("flag".into(), Arc::new(flags.collect::<BooleanArray>())));
    let bytes = rows.clone().map(|row| Some((row as u32).to_le_bytes()));
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, 4).unwrap();
    columns.push(("fixed".into(), Arc::new(fixed)));
    let raw = rows.clone().map(|row| (row % 3 != 0).then(|| vec![row as u8; row as usize % 20]));
    columns.push(("raw".into(), Arc::new(raw.collect::<BinaryArray>())));
    columns.push(("nothing".into(), Arc::new(NullArray::new(rows.clone().count()))));
    let categories = rows.clone().map(|row| (row % 5 != 0).then(|| format!("c{}", row % 11)));
    let categories: Vec<_> = categories.collect();
    let codes: DictionaryArray<Int8Type> = categories.iter().map(Option::as_deref).collect();
    columns.push(("tiny".into(), Arc::new(codes)));
    let items = rows
        .clone()
        .map(|row| (row % 4 != 0).then(|| (0..row % 6).map(|i| (i != 3).then_some(i as i32))));
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(items);
    let sizes = DataType::List(Arc::new(Field::new_list_field(
        DataType::Dictionary(Box::new(DataType::Int16), Box::new(DataType::Int32)),
        true,
    )));
    columns.push(("coded list".into(), cast(&list, &sizes).unwrap()));
    columns.push(("list".into(), Arc::new(list)));
    let vectors = rows.clone().flat_map(|row| [row as f32, 0.5, -1.0]);
    let vector = FixedSizeListArray::try_new(
        Arc::new(Field::new_list_field(DataType::Float32, true)),
        3,
        Arc::new(Float32Array::from_iter_values(vectors)),
        numbers.nulls().cloned(),
    )
    .unwrap();
    columns.push(("vector".into(), Arc::new(vector)));
    let views = cast(&texts, &DataType::Utf8View).unwrap();
    let fields = Fields::from(vec![
        Field::new("number", DataType::Int64, true),
        Field::new("view", DataType::Utf8View, true),
    ]);
    let nested =
        StructArray::new(fields, vec![Arc::clone(&numbers), views], texts.nulls().cloned());
    columns.push(("nested".into(), Arc::new(nested)));
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringViewBuilder::new());
    for row in rows.clone() {
        for key in 0..row % 3 {
            map.keys().append_value(format!("k{key}"));
            map.values().append_option(text(row));
        }
        map.append(row % 7 != 0).unwrap();
    }
    columns.push(("map".into(), Arc::new(map.finish())));
    columns
}

fn table(rows: std::ops::Range<i64>) -> RecordBatch {
    let columns = columns(rows).into_iter().map(|(name, array)| (name, array, true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

#[test]
fn every_type_comes_back_as_it_was() {
    let folder = TempDir::new().unwrap();
    let session = session();
    let whole = table(0..900);
    let slices = vec![table(0..400), table(400..410), whole.slice(410, 490)];
    session.register_batches("t", whole.schema(), slices).unwrap();
    let plan = plan_with(&session, "SELECT * FROM t", &finest()).unwrap();
    assert!(plan.splits().len() > 3);
    assert!(plan.schema().fields().len() > 40);
    let stage = write(&plan, &folder.path().join("stage"), 2).unwrap();
    assert_holds(&stage, &plan);
    assert_holds(&Stage::open(stage.path(), plan.fingerprint()).unwrap(), &plan);
}

#[test]
fn gathered_strings_do_not_keep_those_of_other_rows() {
    let folder = TempDir::new().unwrap();
    let session = session();
    let texts = (0..20_000).map(|row| Some(format!("{LONG} {row}")));
    let views = cast(&texts.collect::<StringArray>(), &DataType::Utf8View).unwrap();
    let batch = RecordBatch::try_from_iter([("s", views)]).unwrap();
    session.register_batches("t", batch.schema(), vec![batch]).unwrap();
    let plan = plan_with(&session, "SELECT * FROM t", &finest()).unwrap();
    let stage = write(&plan, &folder.path().join("stage"), 1).unwrap();
    let few = stage.gather(&[19_999, 0, 7]).unwrap();
    assert!(few.get_array_memory_size() < 2000, "{} bytes", few.get_array_memory_size());
}

#[test]
fn rows_of_more_categories_than_a_key_numbers_are_read_in_parts() {
    let folder = TempDir::new().unwrap();
    let session = session();
    // Each batch has 100 categories of its own: together they are more than 128.
    let batches: Vec<RecordBatch> = (0..5)
        .map(|batch| {
            let names: Vec<String> =
                (0..100).map(|row| format!("c{}", batch * 100 + row)).collect();
            let codes: DictionaryArray<Int8Type> =
                names.iter().map(|name| Some(name.as_str())).collect();
            RecordBatch::try_from_iter([("c", Arc::new(codes) as ArrayRef)]).unwrap()
        })
        .collect();
    session.register_batches("t", batches[0].schema(), batches.clone()).unwrap();
    let plan = plan_with(&session, "SELECT * FROM t", &finest()).unwrap();
    let stage = Arc::new(write(&plan, &folder.path().join("stage"), 1).unwrap());
    let all: Vec<u64> = (0..500).collect();
    assert_eq!(stage.gather(&all).unwrap_err().kind(), ErrorKind::Data);
    let permutation = Permutation::new(3, 500);
    let read = stage.read(permutation.clone().into(), 0..500, 500, 1).unwrap();
    let read: Vec<RecordBatch> = block_on(read.try_collect()).unwrap();
    assert!(read.len() > 1);
    let expected: Vec<String> = (0..500).map(|at| format!("c{}", permutation.at(at))).collect();
    assert_eq!(rows(&read), expected);
}
