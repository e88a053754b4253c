//! Arrow to tensors: any types, any piece boundaries, any nulls give what a value-by-value reading of
//! the same Arrow data gives.

mod cases;
mod portions;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, DictionaryArray, FixedSizeListArray, Int8Array,
    Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{
    DataType, Field, Float64Type, Int8Type, Int64Type, Schema, SchemaRef, TimeUnit, UInt64Type,
};
use proptest::prelude::*;
use tensorquery::ErrorKind;
use tensorquery::tensor::{
    Converter, DType, NullPolicy, Nulls, OutputKind, OutputSpec, Pad, TensorBatch, TensorOptions,
    Value,
};

fn schema(fields: Vec<Field>) -> SchemaRef {
    Arc::new(Schema::new(fields))
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    )
    .unwrap()
}

fn convert(batch: &RecordBatch, options: &TensorOptions) -> (Converter, TensorBatch) {
    let converter = Converter::try_new(&batch.schema(), options).unwrap();
    let tensors = converter.convert(std::slice::from_ref(batch)).unwrap();
    (converter, tensors)
}

fn nulls(rule: NullPolicy) -> TensorOptions {
    TensorOptions { nulls: Nulls::All(rule), ..TensorOptions::default() }
}

fn output<'a>(converter: &'a Converter, name: &str) -> &'a OutputSpec {
    converter.outputs().iter().find(|output| output.name == name).unwrap()
}

fn slot_bytes(tensors: &TensorBatch, slot: usize) -> &[u8] {
    tensors.block().slot(tensors.slots()[slot])
}

/// Every element of a slot as f64, or as i64 where it is 64 bits wide.
fn elements(tensors: &TensorBatch, slot: usize) -> Vec<Number> {
    let dtype = tensors.slots()[slot].dtype;
    slot_bytes(tensors, slot)
        .chunks_exact(dtype.size())
        .map(|raw| Number::read(dtype, raw))
        .collect()
}

fn dense(converter: &Converter, tensors: &TensorBatch, name: &str) -> (DType, Vec<Number>) {
    match output(converter, name).kind {
        OutputKind::Dense { slot, dtype, .. } | OutputKind::Padded { slot, dtype, .. } => {
            (dtype, elements(tensors, slot))
        }
        ref other => panic!("{name} is {other:?}"),
    }
}

/// A value of any dtype, compared exactly; NaN equals NaN.
#[derive(Clone, Copy, Debug)]
enum Number {
    Int(i128),
    Float(f64),
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b || (a.is_nan() && b.is_nan()),
            _ => false,
        }
    }
}

impl Number {
    fn read(dtype: DType, raw: &[u8]) -> Self {
        macro_rules! from {
            ($native:ty) => {
                <$native>::from_ne_bytes(raw.try_into().unwrap())
            };
        }
        match dtype {
            DType::Bool | DType::UInt8 => Self::Int(raw[0].into()),
            DType::Int8 => Self::Int(from!(i8).into()),
            DType::Int16 => Self::Int(from!(i16).into()),
            DType::Int32 => Self::Int(from!(i32).into()),
            DType::Int64 => Self::Int(from!(i64).into()),
            DType::UInt16 => Self::Int(from!(u16).into()),
            DType::UInt32 => Self::Int(from!(u32).into()),
            DType::UInt64 => Self::Int(from!(u64).into()),
            DType::Float16 => {
                let half = arrow::array::Float16Array::from_iter_values([half(raw)]);
                let wide = cast(&half, &DataType::Float64).unwrap();
                Self::Float(wide.as_primitive::<Float64Type>().value(0))
            }
            DType::Float32 => Self::Float(from!(f32).into()),
            DType::Float64 => Self::Float(from!(f64)),
        }
    }
}

type Half = <arrow::datatypes::Float16Type as arrow::array::ArrowPrimitiveType>::Native;

fn half(raw: &[u8]) -> Half {
    Half::from_bits(u16::from_ne_bytes(raw.try_into().unwrap()))
}

/// The elements of `array` by arrow's own casts; None under a null.
fn oracle(array: &ArrayRef) -> Vec<Option<Number>> {
    let as_int = |array: &ArrayRef| {
        let wide = cast(array, &DataType::Int64).unwrap();
        wide.as_primitive::<Int64Type>().iter().map(|v| v.map(|v| Number::Int(v.into()))).collect()
    };
    match array.data_type() {
        DataType::UInt64 => array
            .as_primitive::<UInt64Type>()
            .iter()
            .map(|v| v.map(|v| Number::Int(v.into())))
            .collect(),
        DataType::Date32 | DataType::Time32(_) => as_int(&cast(array, &DataType::Int32).unwrap()),
        data_type if data_type.is_floating() => {
            let wide = cast(array, &DataType::Float64).unwrap();
            wide.as_primitive::<Float64Type>().iter().map(|v| v.map(Number::Float)).collect()
        }
        _ => as_int(array),
    }
}

fn leaf_types() -> Vec<DataType> {
    let units =
        [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
    let mut types = vec![
        DataType::Boolean,
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
        DataType::Date32,
        DataType::Date64,
        DataType::Time32(TimeUnit::Second),
        DataType::Time32(TimeUnit::Millisecond),
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Time64(TimeUnit::Nanosecond),
    ];
    types.extend(units.map(|unit| DataType::Timestamp(unit, Some("Europe/Berlin".into()))));
    types.extend(units.map(DataType::Duration));
    types
}

/// An array of `data_type` whose values are small, with nulls.
fn make(data_type: &DataType, values: &[Option<u8>]) -> ArrayRef {
    let wide: ArrayRef = match data_type {
        DataType::Boolean => {
            Arc::new(values.iter().map(|v| v.map(|v| v % 2 == 1)).collect::<BooleanArray>())
        }
        DataType::Date32 | DataType::Time32(_) => {
            Arc::new(values.iter().map(|v| v.map(i32::from)).collect::<Int32Array>())
        }
        DataType::Int8 => {
            Arc::new(values.iter().map(|v| v.map(|v| v as i8)).collect::<Int8Array>())
        }
        _ => Arc::new(values.iter().map(|v| v.map(i64::from)).collect::<Int64Array>()),
    };
    cast(&wide, data_type).unwrap()
}

/// A batch cut into pieces that are slices: offsets into shared buffers, some of them empty.
fn cut(batch: &RecordBatch, cuts: &[usize]) -> Vec<RecordBatch> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (batch.num_rows() + 1)).collect();
    ends.push(batch.num_rows());
    ends.sort_unstable();
    let mut start = 0;
    let slice = |end| {
        let piece = batch.slice(start, end - start);
        start = end;
        piece
    };
    ends.into_iter().map(slice).collect()
}

fn column_of(values: usize) -> impl Strategy<Value = Vec<Option<u8>>> {
    proptest::collection::vec(proptest::option::weighted(0.8, 0..120_u8), values)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Scalars, fixed-size lists and jagged lists of each type, with nulls under a fill value.
    #[test]
    fn any_pieces_give_the_values_of_the_whole(
        kind in 0..leaf_types().len(),
        (values, items, lengths) in (0..40_usize).prop_flat_map(|rows| (
            column_of(rows),
            column_of(rows * 6),
            proptest::collection::vec(proptest::option::weighted(0.8, 0..4_usize), rows),
        )),
        cuts in proptest::collection::vec(any::<usize>(), 0..4),
    ) {
        let data_type = leaf_types()[kind].clone();
        let rows = values.len();
        let scalar = make(&data_type, &values);
        let children = make(&data_type, &items);
        let item = Arc::new(Field::new_list_field(data_type.clone(), true));
        let validity = NullBuffer::from_iter(lengths.iter().map(Option::is_some));
        let pairs = FixedSizeListArray::new(item.clone(), 2, children.clone(), None);
        let nested = Arc::new(Field::new_list_field(pairs.data_type().clone(), true));
        let fixed = FixedSizeListArray::new(nested, 3, Arc::new(pairs), Some(validity.clone()));
        // A null list may point to elements: here it points to two, which must not be read.
        let sizes = lengths.iter().map(|length| length.unwrap_or(2));
        let offsets = OffsetBuffer::from_lengths(sizes);
        let list = ListArray::new(item, offsets, children.clone(), Some(validity));
        let whole = batch(vec![("s", scalar.clone()), ("f", Arc::new(fixed)), ("l", Arc::new(list.clone()))]);
        let pieces = cut(&whole, &cuts);

        // Value by value. A mask marks rows, so that elements under valid rows must be valid: filled first.
        let fill = Number::Int(1);
        let fill = if data_type.is_floating() { Number::Float(1.0) } else { fill };
        let children = oracle(&children);
        let policies = BTreeMap::from([
            ("s".to_owned(), NullPolicy::Mask),
            ("f".to_owned(), NullPolicy::Fill(Value::Int(1))),
            ("l".to_owned(), NullPolicy::Fill(Value::Int(1))),
        ]);
        let options = TensorOptions { nulls: Nulls::Columns(policies), ..TensorOptions::default() };
        let converter = Converter::try_new(&whole.schema(), &options).unwrap();
        let has_null_list = lengths.iter().any(Option::is_none);
        if has_null_list {
            // A null list has no length to fill: refused, naming column and count.
            let error = converter.convert(&pieces).unwrap_err();
            prop_assert_eq!(error.kind(), ErrorKind::Data);
            prop_assert!(error.to_string().contains("\"l\""), "{}", error);
        }
        let whole = match has_null_list {
            false => whole,
            true => batch(vec![
                ("s", scalar.clone()),
                ("f", whole.column(1).clone()),
                ("l", Arc::new(ListArray::new(
                    Arc::new(Field::new_list_field(data_type.clone(), true)),
                    list.offsets().clone(), list.values().clone(), None,
                ))),
            ]),
        };
        let tensors = converter.convert(&cut(&whole, &cuts)).unwrap();
        prop_assert_eq!(tensors.rows(), rows);

        let zero = if data_type.is_floating() { Number::Float(0.0) } else { Number::Int(0) };
        let expected: Vec<Number> = oracle(&scalar).iter().map(|v| v.unwrap_or(zero)).collect();
        prop_assert_eq!(dense(&converter, &tensors, "s").1, expected);
        let expected: Vec<Number> = (0..rows).map(|row| Number::Int(scalar.is_valid(row).into())).collect();
        prop_assert_eq!(dense(&converter, &tensors, "s_mask").1, expected);

        let expected: Vec<Number> = (0..rows * 6)
            .map(|i| if lengths[i / 6].is_some() { children[i].unwrap_or(fill) } else { fill })
            .collect();
        prop_assert_eq!(dense(&converter, &tensors, "f").1, expected);

        let OutputKind::Jagged { values, offsets, .. } = output(&converter, "l").kind else {
            panic!("a list is jagged")
        };
        let end = list.offsets()[rows] as usize;
        let expected: Vec<Number> = children[..end].iter().map(|v| v.unwrap_or(fill)).collect();
        prop_assert_eq!(elements(&tensors, values), expected);
        let expected: Vec<Number> = list.offsets().iter().map(|o| Number::Int((*o).into())).collect();
        prop_assert_eq!(elements(&tensors, offsets), expected);
    }

    /// Padded lists: null lists are empty rows under a mask, in any pieces.
    #[test]
    fn padding_fills_up_each_row(
        lengths in proptest::collection::vec(proptest::option::weighted(0.8, 0..5_usize), 0..30),
        cuts in proptest::collection::vec(any::<usize>(), 0..4),
        fixed_length in any::<bool>(),
    ) {
        let total: usize = lengths.iter().map(|length| length.unwrap_or(1)).sum();
        let values = Int32Array::from_iter_values(0..total as i32);
        let offsets = OffsetBuffer::<i64>::from_lengths(lengths.iter().map(|length| length.unwrap_or(1)));
        let validity = NullBuffer::from_iter(lengths.iter().map(Option::is_some));
        let item = Arc::new(Field::new_list_field(DataType::Int32, false));
        let list = arrow::array::LargeListArray::new(item, offsets.clone(), Arc::new(values), Some(validity));
        let whole = batch(vec![("l", Arc::new(list))]);
        let pad = Pad { value: Value::Int(-1), max_length: fixed_length.then_some(5) };
        let options = TensorOptions {
            pad: BTreeMap::from([("l".to_owned(), pad)]),
            ..nulls(NullPolicy::Mask)
        };
        let converter = Converter::try_new(&whole.schema(), &options).unwrap();
        let tensors = converter.convert(&cut(&whole, &cuts)).unwrap();
        let width = if fixed_length { 5 } else { lengths.iter().flatten().copied().max().unwrap_or(0) };
        let mut expected = Vec::new();
        for (row, length) in lengths.iter().enumerate() {
            let length = length.unwrap_or(0);
            expected.extend((0..length).map(|i| Number::Int(i128::from(offsets[row]) + i as i128)));
            expected.extend((length..width).map(|_| Number::Int(-1)));
        }
        prop_assert_eq!(dense(&converter, &tensors, "l").1, expected);
        let mask: Vec<Number> = lengths.iter().map(|length| Number::Int(length.is_some().into())).collect();
        prop_assert_eq!(dense(&converter, &tensors, "l_mask").1, mask);
    }

    /// A stack is the transposition of its columns, of any number of rows, columns and pieces.
    #[test]
    fn a_stack_is_the_columns_side_by_side(
        columns in (1..40_usize, 0..300_usize).prop_flat_map(|(columns, rows)| {
            proptest::collection::vec((0..14_usize, column_of(rows)), columns)
        }),
        cuts in proptest::collection::vec(any::<usize>(), 0..4),
    ) {
        let types = [&leaf_types()[..12], &[DataType::Decimal128(9, 2), DataType::Decimal256(40, 3)]].concat();
        let names: Vec<String> = (0..columns.len()).map(|f| format!("f{f}")).collect();
        let arrays: Vec<ArrayRef> = columns.iter().map(|(kind, values)| make(&types[*kind], values)).collect();
        let whole = batch(names.iter().map(String::as_str).zip(arrays.iter().cloned()).collect());
        let stack = vec![("x".to_owned(), names)];
        let options = TensorOptions { stack, ..nulls(NullPolicy::Mask) };
        let converter = Converter::try_new(&whole.schema(), &options).unwrap();
        prop_assert_eq!(converter.outputs().len(), 2);
        let tensors = converter.convert(&cut(&whole, &cuts)).unwrap();
        let (dtype, matrix) = dense(&converter, &tensors, "x");
        let (_, mask) = dense(&converter, &tensors, "x_mask");
        for (f, array) in arrays.iter().enumerate() {
            let wide = cast(array, &DataType::Float64).unwrap();
            for (row, value) in wide.as_primitive::<Float64Type>().iter().enumerate() {
                let cell = row * arrays.len() + f;
                let expected = value.unwrap_or(0.0);
                let expected =
                    if dtype.is_float() { Number::Float(expected) } else { Number::Int(expected as i128) };
                prop_assert_eq!(matrix[cell], expected);
                prop_assert_eq!(mask[cell], Number::Int(value.is_some().into()));
            }
        }
    }

    /// Codes depend on the values alone: not on pieces, dictionaries or key types.
    #[test]
    fn dictionary_codes_are_those_of_first_appearance(
        values in proptest::collection::vec(proptest::option::weighted(0.8, 0..6_u8), 0..60),
        cuts in proptest::collection::vec(any::<usize>(), 0..4),
        spare in any::<bool>(),
    ) {
        let word = |value: u8| format!("word {value}");
        let mut categories: Vec<Value> = Vec::new();
        let mut expected = Vec::new();
        for value in &values {
            let value = Value::Text(value.map_or("none".to_owned(), word));
            let code = categories.iter().position(|known| *known == value).unwrap_or_else(|| {
                categories.push(value);
                categories.len() - 1
            });
            expected.push(Number::Int(code as i128));
        }
        // Each piece with a dictionary of its own, in an order of its own, with a null among its values.
        let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        let schema = schema(vec![Field::new("d", dictionary, true)]);
        let index = batch(vec![("row", Arc::new(Int64Array::from_iter_values(0..values.len() as i64)))]);
        let pieces: Vec<RecordBatch> = cut(&index, &cuts)
            .iter()
            .enumerate()
            .map(|(number, piece)| {
                let mut words: Vec<Option<String>> = (0..6).map(|value| Some(word(value))).collect();
                words.rotate_left(number % 6);
                words.push(None);
                if spare {
                    words.extend((0..100).map(|extra| Some(format!("spare {extra}"))));
                }
                let rows = piece.column(0).as_primitive::<Int64Type>().values();
                let keys: Int8Array = rows
                    .iter()
                    .map(|row| match values[*row as usize] {
                        Some(value) => {
                            words.iter().position(|w| *w == Some(word(value))).map(|key| key as i8)
                        }
                        None if row % 2 == 0 => Some(6),
                        None => None,
                    })
                    .collect();
                let words = StringArray::from(words);
                let array = DictionaryArray::<Int8Type>::new(keys, Arc::new(words));
                RecordBatch::try_new(schema.clone(), vec![Arc::new(array)]).unwrap()
            })
            .collect();
        let options = nulls(NullPolicy::Fill(Value::Text("none".into())));
        let converter = Converter::try_new(&schema, &options).unwrap();
        let tensors = converter.convert(&pieces).unwrap();
        prop_assert_eq!(&tensors.categories()[0], &categories);
        let OutputKind::Encoded { codes, .. } = output(&converter, "d").kind else { panic!() };
        prop_assert_eq!(elements(&tensors, codes), expected.clone());

        // The same column as plain strings, with the categories named.
        if !categories.is_empty() {
            let whole = concat_batches(&schema, &pieces).unwrap();
            // By way of Utf8: arrow's cast of a dictionary to a view overlooks nulls among its values.
            let plain = cast(whole.column(0), &DataType::Utf8).unwrap();
            let plain = batch(vec![("d", cast(&plain, &DataType::Utf8View).unwrap())]);
            let known = BTreeMap::from([("d".to_owned(), categories)]);
            let options = TensorOptions { categories: known, ..options };
            let none = Value::Text("none".into());
            prop_assume!(options.categories["d"].contains(&none) || plain.column(0).null_count() == 0);
            let (converter, tensors) = convert(&plain, &options);
            prop_assert_eq!(dense(&converter, &tensors, "d"), (DType::Int64, expected));
        }
    }
}
