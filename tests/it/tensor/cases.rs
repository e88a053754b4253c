//! Single cases: exact values at the edges of types, and errors that name the column, the value and the fix.

use std::collections::HashMap;

use arrow::array::{
    Decimal128Array, Decimal256Array, Float32Array, Float64Array, Int16Array, ListViewArray,
    StringViewArray, StructArray, UInt64Array, new_null_array,
};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{Fields, IntervalUnit, UnionFields, UnionMode, i256};
use tensorquery::tensor::{ALIGNMENT, DecimalFormat, TextRef};

use super::*;

fn fails(batch: &RecordBatch, options: &TensorOptions) -> tensorquery::Error {
    match Converter::try_new(&batch.schema(), options) {
        Err(error) => error,
        Ok(converter) => converter.convert(std::slice::from_ref(batch)).unwrap_err(),
    }
}

fn nulls_of(name: &str, rule: NullPolicy) -> TensorOptions {
    let columns = BTreeMap::from([(name.to_owned(), rule)]);
    TensorOptions { nulls: Nulls::Columns(columns), ..TensorOptions::default() }
}

fn stack(columns: &[&str]) -> TensorOptions {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    TensorOptions { stack: vec![("x".to_owned(), columns)], ..TensorOptions::default() }
}

fn assert_mentions(error: &tensorquery::Error, kind: ErrorKind, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

fn ints(values: &[i32]) -> ArrayRef {
    Arc::new(Int32Array::from(values.to_vec()))
}

#[test]
fn every_slot_is_aligned_in_one_block() {
    let columns =
        (0..5).map(|i| (["a", "b", "c", "d", "e"][i], make(&leaf_types()[i], &[Some(1); 7])));
    let (_, tensors) = convert(&batch(columns.collect()), &TensorOptions::default());
    assert_eq!(tensors.slots().len(), 5);
    for slot in tensors.slots() {
        assert_eq!(tensors.block().slot(*slot).as_ptr().align_offset(ALIGNMENT), 0);
    }
    assert!(tensors.block().as_slice().len() <= 5 * ALIGNMENT);
}

#[test]
fn no_pieces_and_no_columns_are_batches_too() {
    let whole =
        batch(vec![("a", ints(&[])), ("t", Arc::new(StringArray::from(Vec::<&str>::new())))]);
    let converter = Converter::try_new(&whole.schema(), &stack(&["a"])).unwrap();
    for pieces in [vec![], vec![whole.clone()], vec![whole.clone(), whole]] {
        let tensors = converter.convert(&pieces).unwrap();
        assert_eq!((tensors.rows(), tensors.slots()[0].count), (0, 0));
        assert!(tensors.texts()[0].is_empty());
    }
    let converter = Converter::try_new(&schema(vec![]), &TensorOptions::default()).unwrap();
    assert_eq!(converter.convert(&[]).unwrap().rows(), 0);
}

#[test]
fn decimals_are_the_nearest_float_or_the_unscaled_integer() {
    let digits = 12_345_678_901_234_567_890_123_456_789_i128;
    let values = [Some(125), Some(-1), Some(digits), None, Some(i128::from(i64::MAX))];
    let array = Decimal128Array::from(values.to_vec()).with_precision_and_scale(38, 2).unwrap();
    let whole = batch(vec![("m", Arc::new(array.clone()))]);
    let (converter, tensors) = convert(&whole, &nulls(NullPolicy::Nan));
    let expected =
        [1.25, -0.01, 123_456_789_012_345_678_901_234_567.89, f64::NAN, 92_233_720_368_547_758.07];
    let expected = expected.map(Number::Float).to_vec();
    assert_eq!(dense(&converter, &tensors, "m"), (DType::Float64, expected.clone()));

    let wide: Vec<Option<i256>> = values.iter().map(|v| v.map(i256::from_i128)).collect();
    let wide = Decimal256Array::from(wide).with_precision_and_scale(70, 2).unwrap();
    let (converter, tensors) =
        convert(&batch(vec![("m", Arc::new(wide))]), &nulls(NullPolicy::Nan));
    assert_eq!(dense(&converter, &tensors, "m").1, expected);

    let unscaled =
        TensorOptions { decimal: DecimalFormat::Int64, ..nulls(NullPolicy::Fill(Value::Int(7))) };
    let error = fails(&whole, &unscaled);
    assert_mentions(
        &error,
        ErrorKind::Data,
        &["\"m\"", "12345678901234567890123456789", "float64"],
    );
    let (converter, tensors) = convert(&whole.slice(3, 2), &unscaled);
    let expected = vec![Number::Int(7), Number::Int(i64::MAX.into())];
    assert_eq!(dense(&converter, &tensors, "m"), (DType::Int64, expected));
}

#[test]
fn integers_keep_all_their_bits() {
    let whole = batch(vec![("u", Arc::new(UInt64Array::from(vec![u64::MAX, (1 << 53) + 1])))]);
    let (converter, tensors) = convert(&whole, &TensorOptions::default());
    let expected = vec![Number::Int(u64::MAX.into()), Number::Int((1 << 53) + 1)];
    assert_eq!(dense(&converter, &tensors, "u"), (DType::UInt64, expected));
}

#[test]
fn stacked_types_promote_like_numpy_where_that_is_exact() {
    use DType::*;
    for (dtypes, common) in [
        (vec![Int16, Int16], Int16),
        (vec![Bool, Bool], Bool),
        (vec![Bool, UInt8], UInt8),
        (vec![Int8, Int32], Int32),
        (vec![UInt8, UInt64], UInt64),
        (vec![Int8, UInt8], Int16),
        (vec![Int8, UInt32], Int64),
        (vec![Int64, UInt64], Float64),
        (vec![Float16, Float16], Float16),
        (vec![Float16, Bool], Float16),
        (vec![Float16, Int8], Float32),
        (vec![Float32, Int16, UInt16], Float32),
        (vec![Float32, Int32], Float64),
        (vec![Float16, Float64], Float64),
    ] {
        assert_eq!(DType::common(&dtypes), Some(common), "{dtypes:?}");
        let reversed: Vec<DType> = dtypes.into_iter().rev().collect();
        assert_eq!(DType::common(&reversed), Some(common), "{reversed:?}");
    }
    assert_eq!(DType::common(&[]), None);
}

#[test]
fn a_fixed_shape_tensor_has_its_shape_and_order() {
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let values = Float32Array::from_iter_values((0..12).map(|value| value as f32));
    let list = FixedSizeListArray::new(item, 6, Arc::new(values), None);
    let tensor = |metadata: &str| {
        let metadata = HashMap::from([
            ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
            ("ARROW:extension:metadata".to_owned(), metadata.to_owned()),
        ]);
        let field = Field::new("t", list.data_type().clone(), false).with_metadata(metadata);
        RecordBatch::try_new(schema(vec![field]), vec![Arc::new(list.clone())]).unwrap()
    };
    let (converter, tensors) =
        convert(&tensor(r#"{"shape": [2, 3], "permutation": [1, 0]}"#), &TensorOptions::default());
    let OutputKind::Dense { shape, permutation, .. } = &output(&converter, "t").kind else {
        panic!()
    };
    assert_eq!((shape.as_slice(), permutation.as_deref()), (&[2, 3][..], Some(&[1, 0][..])));
    assert_eq!(tensors.slots()[0].count, 12);
    for (metadata, problem) in [
        (r#"{"shape": [4]}"#, "does not have 6 elements"),
        (r#"{"shape": [2, 3], "permutation": [0, 0]}"#, "no permutation"),
        (r#"{"shape": "two"}"#, "\"t\""),
        ("{}", "missing field"),
    ] {
        let error = fails(&tensor(metadata), &TensorOptions::default());
        assert_mentions(&error, ErrorKind::UnsupportedType, &["\"t\"", problem]);
    }
}

#[test]
fn a_null_struct_masks_its_fields() {
    let fields = Fields::from(vec![
        Field::new("a", DataType::Int32, false),
        Field::new("t", DataType::Utf8View, true),
    ]);
    let columns: Vec<ArrayRef> = vec![
        ints(&[1, 2, 3]),
        Arc::new(StringViewArray::from(vec![Some("one"), Some("two"), None])),
    ];
    let validity = NullBuffer::from(vec![true, false, true]);
    let whole = batch(vec![("s", Arc::new(StructArray::new(fields, columns, Some(validity))))]);
    let (converter, tensors) = convert(&whole, &nulls(NullPolicy::Mask));
    let OutputKind::Struct { fields } = &output(&converter, "s").kind else { panic!() };
    let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
    // `a` is declared without nulls: only the struct's own mask speaks for it.
    assert_eq!(names, ["a", "t", "t_mask"]);
    let OutputKind::Dense { slot, .. } = fields[0].kind else { panic!() };
    assert_eq!(elements(&tensors, slot), [1, 0, 3].map(Number::Int));
    let texts: Vec<TextRef<'_>> = tensors.texts()[0].iter().collect();
    assert_eq!(texts, ["one", "", ""].map(TextRef::Str));
    assert_eq!(dense(&converter, &tensors, "s_mask").1, [1, 0, 1].map(Number::Int));

    let error = fails(&whole, &TensorOptions::default());
    assert_mentions(&error, ErrorKind::Data, &["has", "null", "\"s"]);
    let (_, tensors) = convert(&whole, &nulls_of("s.t", NullPolicy::Error).with_struct_fill());
    let texts: Vec<TextRef<'_>> = tensors.texts()[0].iter().collect();
    assert_eq!(texts, ["one", "?", "?"].map(TextRef::Str));
}

trait WithStructFill {
    fn with_struct_fill(self) -> Self;
}

impl WithStructFill for TensorOptions {
    /// The struct's fields filled one by one.
    fn with_struct_fill(self) -> Self {
        let policies = [
            ("s", NullPolicy::Mask),
            ("s.a", NullPolicy::Fill(Value::Int(9))),
            ("s.t", NullPolicy::Fill(Value::Text("?".into()))),
        ];
        let columns = policies.map(|(name, rule)| (name.to_owned(), rule)).into();
        Self { nulls: Nulls::Columns(columns), ..self }
    }
}

#[test]
fn list_views_may_overlap_and_run_backwards() {
    let item = Arc::new(Field::new_list_field(DataType::Int32, false));
    let offsets = ScalarBuffer::from(vec![2, 0, 1, 4]);
    let sizes = ScalarBuffer::from(vec![2, 3, 0, 1]);
    let view = ListViewArray::new(item, offsets, sizes, ints(&[10, 11, 12, 13, 14]), None);
    let (converter, tensors) =
        convert(&batch(vec![("l", Arc::new(view))]), &TensorOptions::default());
    let OutputKind::Jagged { values, offsets, .. } = output(&converter, "l").kind else { panic!() };
    assert_eq!(elements(&tensors, values), [12, 13, 10, 11, 12, 14].map(Number::Int));
    assert_eq!(elements(&tensors, offsets), [0, 2, 5, 5, 6].map(Number::Int));
}

#[test]
fn types_without_a_tensor_form_are_refused_when_planned() {
    let text = Arc::new(Field::new_list_field(DataType::Utf8, true));
    let entries = DataType::Struct(Fields::from(vec![
        Field::new("keys", DataType::Utf8, false),
        Field::new("values", DataType::Int32, true),
    ]));
    let union =
        UnionFields::try_new(vec![0], vec![Field::new("a", DataType::Int32, true)]).unwrap();
    let types = [
        DataType::Null,
        DataType::Map(Arc::new(Field::new("entries", entries, false)), false),
        DataType::Union(union, UnionMode::Dense),
        DataType::Interval(IntervalUnit::MonthDayNano),
        DataType::RunEndEncoded(
            Arc::new(Field::new("run_ends", DataType::Int32, false)),
            Arc::new(Field::new("values", DataType::Int32, true)),
        ),
        DataType::List(text.clone()),
        DataType::FixedSizeList(text, 2),
        DataType::Dictionary(
            Box::new(DataType::Int8),
            Box::new(DataType::Interval(IntervalUnit::DayTime)),
        ),
    ];
    for data_type in types {
        let schema = schema(vec![Field::new("odd", data_type.clone(), true)]);
        let error = Converter::try_new(&schema, &TensorOptions::default()).unwrap_err();
        let words =
            ["\"odd\"", &data_type.to_string(), "cast it in SQL", "output_format=\"arrow\""];
        assert_mentions(&error, ErrorKind::UnsupportedType, &words);
    }
}

#[test]
fn nulls_are_refused_by_name_and_count() {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![None, Some(1.5), None]));
    let whole = batch(vec![("f", floats), ("i", new_null_array(&DataType::Int16, 3))]);
    let error = fails(&whole, &TensorOptions::default());
    assert_mentions(&error, ErrorKind::Data, &["\"f\"", "2 nulls", "3 rows", "mask"]);
    let error = fails(&whole, &nulls(NullPolicy::Nan));
    assert_mentions(&error, ErrorKind::Data, &["\"i\"", "3 nulls", "float columns only"]);
    let error = fails(&whole, &nulls_of("i", NullPolicy::Nan));
    assert_mentions(&error, ErrorKind::Config, &["\"i\"", "\"nan\"", "fill value"]);
    let error = fails(&whole, &nulls_of("i", NullPolicy::Fill(Value::Int(40_000))));
    assert_mentions(&error, ErrorKind::Config, &["40000", "\"i\"", "int16"]);
    let error = fails(&whole, &nulls_of("f", NullPolicy::Fill(Value::Text("eror".into()))));
    assert_mentions(&error, ErrorKind::Config, &["\"eror\"", "did you mean \"error\"?"]);
    let error = fails(&whole, &nulls_of("ff", NullPolicy::Mask));
    assert_mentions(&error, ErrorKind::Config, &["\"ff\"", "did you mean \"f\"?"]);

    let item = Arc::new(Field::new_list_field(DataType::Float64, true));
    let pairs = FixedSizeListArray::new(item, 1, whole.column(0).clone(), None);
    let error = fails(&batch(vec![("p", Arc::new(pairs))]), &nulls(NullPolicy::Mask));
    assert_mentions(&error, ErrorKind::Data, &["\"p\"", "2 null elements", "whole rows"]);
}

#[test]
fn options_that_fit_no_column_are_refused() {
    let lists =
        ListArray::from_iter_primitive::<arrow::datatypes::Int32Type, _, _>([Some([Some(1); 3])]);
    let whole = batch(vec![
        ("a", ints(&[1])),
        ("a_mask", ints(&[1])),
        ("when", make(&DataType::Date32, &[Some(1)])),
        ("l", Arc::new(lists)),
        ("t", Arc::new(StringArray::from(vec!["cat"]))),
    ]);
    let pad = |name: &str, value, max_length| TensorOptions {
        pad: BTreeMap::from([(name.to_owned(), Pad { value, max_length })]),
        ..TensorOptions::default()
    };
    let known = |name: &str, values: Vec<Value>| TensorOptions {
        categories: BTreeMap::from([(name.to_owned(), values)]),
        ..TensorOptions::default()
    };
    let text = |text: &str| Value::Text(text.into());
    let config = ErrorKind::Config;
    for (options, kind, words) in [
        (nulls(NullPolicy::Mask), config, &["\"a_mask\"", "mask of column \"a\"", "AS"][..]),
        (stack(&["b"]), config, &["\"b\"", "\"x\""]),
        (stack(&["a", "a"]), config, &["twice"]),
        (stack(&[]), config, &["\"x\" has no columns"]),
        (stack(&["a", "when"]), config, &["\"when\"", "Date32", "cast"]),
        (stack(&["t"]), config, &["\"t\"", "Utf8"]),
        (
            TensorOptions {
                stack: vec![("l".into(), vec!["a".into()])],
                ..TensorOptions::default()
            },
            config,
            &["\"l\"", "the stack", "the column"],
        ),
        (pad("a", Value::Int(0), None), config, &["pad", "\"a\"", "Int32"]),
        (pad("m", Value::Int(0), None), config, &["pad", "\"m\""]),
        (pad("l", Value::Float(0.5), None), config, &["0.5", "\"l\"", "int32"]),
        (
            pad("l", Value::Int(0), Some(2)),
            ErrorKind::Data,
            &["\"l\"", "3 elements", "max_length 2"],
        ),
        (known("a", vec![text("cat")]), config, &["categories", "\"a\""]),
        (known("t", vec![]), config, &["empty"]),
        (known("t", vec![Value::Int(1)]), config, &["1", "\"t\"", "str"]),
        (known("t", vec![text("a"), text("a")]), config, &["twice"]),
        (
            known("t", vec![text("cart"), text("dog")]),
            ErrorKind::Data,
            &["\"t\"", "\"cat\"", "mean \"cart\""],
        ),
    ] {
        assert_mentions(&fails(&whole, &options), kind, words);
    }
    let other = batch(vec![("a", Arc::new(Int16Array::from(vec![1])))]);
    let plan = Converter::try_new(&whole.schema(), &TensorOptions::default()).unwrap();
    assert_mentions(&plan.convert(&[other]).unwrap_err(), ErrorKind::Data, &["1 columns", "5"]);
}

#[test]
fn options_travel_as_json() {
    let options = TensorOptions {
        pad: BTreeMap::from([(
            "l".into(),
            Pad { value: Value::Float(f64::NEG_INFINITY), max_length: None },
        )]),
        ..nulls_of("a", NullPolicy::Fill(Value::Int(u64::MAX.into())))
    };
    let json = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<TensorOptions>(&json).unwrap(), options);
    assert!(serde_json::from_str::<TensorOptions>(r#"{"nul": 1}"#).is_err());
    assert_eq!(serde_json::from_str::<TensorOptions>("{}").unwrap(), TensorOptions::default());
}
