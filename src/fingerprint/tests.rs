//! Two inputs share a form only if they are equal, and the forms of all kinds never change.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array,
    DictionaryArray, FixedSizeBinaryArray, Float32Array, Float64Array, Int32Array, Int64Array,
    LargeStringArray, ListArray, NullArray, StringArray, StringViewArray, StructArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field as Column, Fields, Float64Type, Int32Type, Schema};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Form, VERSION};
use crate::Result;
use crate::formats::{
    ArrowFormat, Compression, CsvFormat, Format, JsonFormat, RowRange, SplitUnit, UnitKind,
};

/// A field of any kind, as data.
#[derive(Clone, Debug, PartialEq)]
enum Field {
    Text(String),
    Bytes(Vec<u8>),
    Number(u64),
    Signed(i64),
    Flag(bool),
    Absent,
    Nested(String, Fielded),
    List(Vec<Fielded>),
}

type Fielded = Vec<(String, Field)>;

fn write(form: &mut Form, fields: &Fielded) -> Result<()> {
    for (tag, field) in fields {
        match field {
            Field::Text(text) => form.text(tag, text),
            Field::Bytes(bytes) => form.bytes(tag, bytes),
            Field::Number(number) => form.number(tag, *number),
            Field::Signed(number) => form.signed(tag, *number),
            Field::Flag(flag) => form.flag(tag, *flag),
            Field::Absent => form.absent(tag),
            Field::Nested(kind, inner) => form.nested(tag, kind, |form| write(form, inner))?,
            Field::List(items) => form.list(tag, items, write)?,
        };
    }
    Ok(())
}

fn bytes_of(kind: &str, fields: &Fielded) -> Vec<u8> {
    let mut form = Form::new(kind);
    write(&mut form, fields).unwrap();
    form.bytes
}

/// Fields of few letters and numbers, so that near values are frequent.
fn fields() -> impl Strategy<Value = Fielded> {
    let leaf = prop_oneof![
        "[a\0]{0,2}".prop_map(Field::Text),
        prop::collection::vec(0_u8..2, 0..3).prop_map(Field::Bytes),
        (0_u64..3).prop_map(Field::Number),
        (-1_i64..2).prop_map(Field::Signed),
        any::<bool>().prop_map(Field::Flag),
        Just(Field::Absent),
    ];
    let field = leaf.prop_recursive(3, 12, 3, |inner| {
        let fields = prop::collection::vec(("[a\0]{0,2}", inner), 0..3);
        prop_oneof![
            ("[a\0]{0,2}", fields.clone()).prop_map(|(kind, fields)| Field::Nested(kind, fields)),
            prop::collection::vec(fields, 0..3).prop_map(Field::List),
        ]
    });
    prop::collection::vec(("[a\0]{0,2}", field), 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn only_equal_inputs_share_a_form(inputs in prop::collection::vec(fields(), 2..60)) {
        let forms: Vec<_> = inputs.iter().map(|fields| bytes_of("k", fields)).collect();
        for (a, one) in inputs.iter().enumerate() {
            for (b, other) in inputs.iter().enumerate() {
                prop_assert_eq!(one == other, forms[a] == forms[b], "{:?} {:?}", one, other);
            }
        }
    }
}

#[test]
fn a_form_says_its_version_and_its_kind() {
    let empty = Form::new("plan");
    assert_eq!(empty.bytes, [&[VERSION][..], &4_u32.to_le_bytes(), b"plan"].concat());
    assert_eq!(empty.fingerprint(), format!("{VERSION}-{}", empty.name()));
    assert_eq!(empty.name().len(), 64);
    assert_ne!(Form::new("stage").digest(), empty.digest());
    // A form of another version is another form, whatever it holds.
    let mut later = Form::new("plan");
    later.bytes[0] += 1;
    assert_ne!(later.digest(), empty.digest());
}

fn list(items: Vec<Option<Vec<Option<i32>>>>) -> ArrayRef {
    Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(items))
}

fn pair(name: &str, x: i32) -> ArrayRef {
    let field = Arc::new(Column::new(name, DataType::Int32, true));
    Arc::new(StructArray::from(vec![(field, Arc::new(Int32Array::from(vec![x])) as ArrayRef)]))
}

/// Arrays that all differ, though many look alike as text.
fn arrays() -> Vec<ArrayRef> {
    let floats = |value: f64| -> ArrayRef { Arc::new(Float64Array::from(vec![value])) };
    let decimal = |precision, scale| -> ArrayRef {
        let array = Decimal128Array::from(vec![1]);
        Arc::new(array.with_precision_and_scale(precision, scale).unwrap())
    };
    let codes = |key: i32| -> ArrayRef {
        let values = Arc::new(StringArray::from(vec!["1", "2"]));
        Arc::new(DictionaryArray::<Int32Type>::new(Int32Array::from(vec![key]), values))
    };
    vec![
        Arc::new(Int32Array::from(vec![1])),
        Arc::new(Int64Array::from(vec![1])),
        Arc::new(Int32Array::from(vec![-1])),
        Arc::new(Int32Array::from(vec![1, 1])),
        Arc::new(Int32Array::from(Vec::<i32>::new())),
        Arc::new(Int32Array::from(vec![None::<i32>])),
        Arc::new(Int64Array::from(vec![None::<i64>])),
        Arc::new(Int32Array::from(vec![0])),
        Arc::new(NullArray::new(1)),
        Arc::new(Date32Array::from(vec![1])),
        Arc::new(TimestampMicrosecondArray::from(vec![1])),
        Arc::new(TimestampMicrosecondArray::from(vec![1]).with_timezone("UTC")),
        Arc::new(TimestampMicrosecondArray::from(vec![1]).with_timezone("+00:00")),
        floats(1.0),
        floats(0.0),
        floats(-0.0),
        floats(f64::NAN),
        floats(-f64::NAN),
        floats(f64::from_bits(f64::NAN.to_bits() + 1)),
        Arc::new(Float32Array::from(vec![1.0])),
        Arc::new(BooleanArray::from(vec![true])),
        Arc::new(BooleanArray::from(vec![false])),
        Arc::new(StringArray::from(vec!["1"])),
        Arc::new(StringArray::from(vec!["NULL"])),
        Arc::new(StringArray::from(vec![""])),
        Arc::new(StringArray::from(vec![None::<&str>])),
        Arc::new(LargeStringArray::from(vec!["1"])),
        Arc::new(StringViewArray::from(vec!["1"])),
        Arc::new(BinaryArray::from(vec![b"1".as_slice()])),
        Arc::new(BinaryViewArray::from(vec![b"1".as_slice()])),
        Arc::new(FixedSizeBinaryArray::try_from_iter([b"1"].into_iter()).unwrap()),
        decimal(9, 0),
        decimal(10, 0),
        decimal(9, 2),
        codes(0),
        codes(1),
        list(vec![Some(vec![Some(1)])]),
        list(vec![Some(vec![None])]),
        list(vec![Some(vec![])]),
        list(vec![None]),
        list(vec![Some(vec![Some(1), Some(1)])]),
        list(vec![Some(vec![Some(1)]), Some(vec![Some(1)])]),
        pair("x", 1),
        pair("x", 2),
        pair("y", 1),
    ]
}

fn form_of(array: &dyn Array) -> Vec<u8> {
    let mut form = Form::new("values");
    super::values(&mut form, "values", array).unwrap();
    form.bytes
}

#[test]
fn values_differ_by_type_and_by_bits() {
    let arrays = arrays();
    let forms: Vec<_> = arrays.iter().map(|array| form_of(array)).collect();
    for (a, one) in forms.iter().enumerate() {
        for (b, other) in forms.iter().enumerate() {
            assert_eq!(a == b, one == other, "{:?} and {:?}", arrays[a], arrays[b]);
        }
    }
}

#[test]
fn values_are_the_same_wherever_they_lie() {
    for array in arrays() {
        let twice = arrow::compute::concat(&[&array, &array]).unwrap();
        let second = twice.slice(array.len(), array.len());
        assert_eq!(form_of(&array), form_of(&second), "{array:?}");
    }
    // Another dictionary with the value at another place.
    let values = Arc::new(StringArray::from(vec!["2", "1"]));
    let array = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![1]), values);
    let other = Arc::new(StringArray::from(vec!["1"]));
    let other = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![0]), other);
    assert_eq!(form_of(&array), form_of(&other));
}

#[test]
fn a_union_has_no_form() {
    let fields = [(0, Arc::new(Column::new("a", DataType::Int32, true)))].into_iter().collect();
    let children: Vec<ArrayRef> = vec![Arc::new(Int32Array::from(vec![1]))];
    let union = arrow::array::UnionArray::try_new(fields, vec![0].into(), None, children).unwrap();
    let mut form = Form::new("values");
    let error = super::values(&mut form, "values", &union).unwrap_err();
    assert!(error.to_string().contains("has no place in a fingerprint"), "{error}");
}

fn schema_of(columns: Vec<Column>) -> Vec<u8> {
    let mut form = Form::new("schema");
    super::schema(&mut form, "columns", &Schema::new(columns)).unwrap();
    form.bytes
}

#[test]
fn schemas_differ_by_all_that_a_column_says() {
    let one = |name: &str, data_type: DataType| schema_of(vec![Column::new(name, data_type, true)]);
    let item = |name: &str, nullable| Arc::new(Column::new(name, DataType::Int32, nullable));
    let text = |key: DataType| DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8));
    let marked = Column::new("a", DataType::Int32, true);
    let marked = marked.with_metadata([("k".to_owned(), "v".to_owned())].into());
    let forms = [
        schema_of(vec![]),
        one("a", DataType::Int32),
        one("b", DataType::Int32),
        schema_of(vec![Column::new("a", DataType::Int32, false)]),
        schema_of(vec![marked]),
        one("a", DataType::Int64),
        one("a", DataType::Utf8),
        one("a", DataType::Utf8View),
        one("a", DataType::List(item("item", true))),
        one("a", DataType::List(item("element", true))),
        one("a", DataType::List(item("item", false))),
        one("a", DataType::LargeList(item("item", true))),
        one("a", DataType::FixedSizeList(item("item", true), 2)),
        one("a", DataType::FixedSizeList(item("item", true), 3)),
        one("a", DataType::Struct(Fields::from(vec![item("item", true)]))),
        one("a", text(DataType::Int32)),
        one("a", text(DataType::Int8)),
        one("a", DataType::Decimal128(9, 2)),
        one("a", DataType::Decimal256(9, 2)),
        schema_of(vec![
            Column::new("a", DataType::Int32, true),
            Column::new("b", DataType::Int32, true),
        ]),
        schema_of(vec![
            Column::new("b", DataType::Int32, true),
            Column::new("a", DataType::Int32, true),
        ]),
    ];
    for (a, one) in forms.iter().enumerate() {
        for (b, other) in forms.iter().enumerate() {
            assert_eq!(a == b, one == other, "{a} and {b}");
        }
    }
}

fn form_of_json(document: &Value) -> Vec<u8> {
    let mut form = Form::new("json");
    super::json(&mut form, "document", document).unwrap();
    form.bytes
}

#[test]
fn json_differs_by_content_and_not_by_the_order_of_keys() {
    let parsed = |text: &str| form_of_json(&serde_json::from_str(text).unwrap());
    assert_eq!(parsed(r#"{"a": 1, "b": [2]}"#), parsed(r#"{"b": [2], "a": 1}"#));
    let documents = [
        json!(null),
        json!(1),
        json!("1"),
        json!(1.0),
        json!(true),
        json!([]),
        json!({}),
        json!([1]),
        json!([[1]]),
        json!({"a": 1}),
        json!({"a": null}),
        json!([null]),
        json!("null"),
        json!({"a": {"b": 1}}),
        json!({"a": 1, "b": 1}),
        json!(["a", 1]),
    ];
    let forms: Vec<_> = documents.iter().map(form_of_json).collect();
    for (a, one) in forms.iter().enumerate() {
        for (b, other) in forms.iter().enumerate() {
            assert_eq!(a == b, one == other, "{} and {}", documents[a], documents[b]);
        }
    }
}

/// Formats and units that all differ.
fn formats_and_units() -> Vec<Form> {
    let csv = CsvFormat::default();
    let formats = [
        Format::Parquet,
        Format::Orc,
        Format::Avro,
        Format::Arrow(ArrowFormat::default()),
        Format::Arrow(ArrowFormat { stream: true, unmapped: false }),
        Format::Arrow(ArrowFormat { stream: false, unmapped: true }),
        Format::Json(JsonFormat::default()),
        Format::Json(JsonFormat { array: Some(false), compression: None }),
        Format::Json(JsonFormat { array: Some(true), compression: None }),
        Format::Json(JsonFormat { array: None, compression: Some(Compression::None) }),
        Format::Csv(csv.clone()),
        Format::Csv(CsvFormat { header: false, ..csv.clone() }),
        Format::Csv(CsvFormat { delimiter: Some(b','), ..csv.clone() }),
        Format::Csv(CsvFormat { delimiter: Some(b'\t'), ..csv.clone() }),
        Format::Csv(CsvFormat { quote: b'|', ..csv.clone() }),
        Format::Csv(CsvFormat { escape: Some(b'|'), ..csv.clone() }),
        Format::Csv(CsvFormat { comment: Some(b'|'), ..csv.clone() }),
        Format::Csv(CsvFormat { compression: Some(Compression::Gzip), ..csv.clone() }),
        Format::Csv(CsvFormat { compression: Some(Compression::Zstd), ..csv }),
    ];
    let (byte_start, byte_end) = (4, 9);
    let units = [
        SplitUnit::Units { kind: UnitKind::RowGroups, first: 1, count: 2, byte_start, byte_end },
        SplitUnit::Units { kind: UnitKind::RowGroups, first: 2, count: 2, byte_start, byte_end },
        SplitUnit::Units { kind: UnitKind::RowGroups, first: 1, count: 1, byte_start, byte_end },
        SplitUnit::Units { kind: UnitKind::Stripes, first: 1, count: 2, byte_start, byte_end },
        SplitUnit::Units { kind: UnitKind::Batches, first: 1, count: 2, byte_start, byte_end },
        SplitUnit::Units { kind: UnitKind::Blocks, first: 1, count: 2, byte_start, byte_end },
        SplitUnit::Bytes { start: 1, end: 2 },
        SplitUnit::Bytes { start: 0, end: 2 },
        SplitUnit::Rows(RowRange { start: 1, end: 2 }),
        SplitUnit::File,
    ];
    let formats = formats.iter().map(|format| {
        let mut form = Form::new("format");
        format.write(&mut form);
        form
    });
    let units = units.iter().map(|unit| {
        let mut form = Form::new("unit");
        unit.write(&mut form);
        form
    });
    formats.chain(units).collect()
}

#[test]
fn formats_and_units_differ_by_each_option() {
    let forms = formats_and_units();
    let names: std::collections::BTreeSet<String> = forms.iter().map(Form::name).collect();
    assert_eq!(names.len(), forms.len());
}

/// These forms were committed: a change makes older states, stages and caches useless and must
/// raise [`VERSION`].
#[test]
fn forms_stay_what_they_are() {
    let all: Fielded = vec![
        ("text".into(), Field::Text("größe".into())),
        ("bytes".into(), Field::Bytes(vec![0, 255])),
        ("number".into(), Field::Number(u64::MAX)),
        ("signed".into(), Field::Signed(-2)),
        ("flag".into(), Field::Flag(true)),
        ("absent".into(), Field::Absent),
        ("nested".into(), Field::Nested("kind".into(), vec![("a".into(), Field::Absent)])),
        ("list".into(), Field::List(vec![vec![("a".into(), Field::Number(1))], vec![]])),
    ];
    let digest = |bytes: Vec<u8>| Form { bytes }.name()[..16].to_owned();
    let mut kinds = Form::new("kinds");
    kinds
        .list("all", formats_and_units(), |form, kind| {
            form.bytes("kind", &kind.digest());
            Ok(())
        })
        .unwrap();
    let float = Column::new("f", DataType::Float64, true);
    let lists = ListArray::from_iter_primitive::<Float64Type, _, _>([Some([Some(-0.0), None])]);
    assert_eq!(
        [
            digest(bytes_of("all", &all)),
            digest(schema_of(vec![float])),
            digest(form_of(&lists)),
            digest(form_of_json(&json!({"a": [1, "x", null, true]}))),
            digest(kinds.bytes),
        ],
        [
            "abb486aea31db364",
            "54c551b9db8409f1",
            "51ff96c45d5d2aca",
            "1f5923864edbec32",
            "54fc95cb5e3f3ea8"
        ],
    );
}
