//! Merging schemas: a wider type holds each value of both, exactly.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use tensorquery::catalog::merge_schemas;
use tensorquery::{ErrorKind, Result};

use DataType::*;

fn one(data_type: DataType, nullable: bool) -> Schema {
    Schema::new(vec![Field::new("c", data_type, nullable)])
}

fn merge(a: &DataType, b: &DataType) -> Result<DataType> {
    let (a, b) = (one(a.clone(), true), one(b.clone(), true));
    Ok(merge_schemas([("a", &a), ("b", &b)])?.field(0).data_type().clone())
}

/// The least and the greatest integer such that it and all between are exact.
fn integers(data_type: &DataType) -> (i128, i128) {
    match data_type {
        Int8 => (i8::MIN.into(), i8::MAX.into()),
        Int16 => (i16::MIN.into(), i16::MAX.into()),
        Int32 => (i32::MIN.into(), i32::MAX.into()),
        Int64 => (i64::MIN.into(), i64::MAX.into()),
        UInt8 => (0, u8::MAX.into()),
        UInt16 => (0, u16::MAX.into()),
        UInt32 => (0, u32::MAX.into()),
        UInt64 => (0, u64::MAX.into()),
        Float16 => (-(1 << 11), 1 << 11),
        Float32 => (-(1 << 24), 1 << 24),
        Float64 => (-(1 << 53), 1 << 53),
        other => panic!("{other} is no number"),
    }
}

fn mantissa(data_type: &DataType) -> u32 {
    match data_type {
        Float16 => 1,
        Float32 => 2,
        Float64 => 3,
        _ => 0,
    }
}

#[test]
fn numbers_widen_exactly_or_not_at_all() {
    let numbers =
        [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64];
    let mut widened = 0;
    for a in &numbers {
        for b in &numbers {
            let either = merge(a, b);
            assert_eq!(either.as_ref().ok(), merge(b, a).as_ref().ok(), "{a} and {b}");
            let holds = |wide: &DataType, narrow: &DataType| {
                let (wide_range, narrow_range) = (integers(wide), integers(narrow));
                wide == narrow
                    || (mantissa(wide) >= mantissa(narrow)
                        && wide_range.0 <= narrow_range.0
                        && wide_range.1 >= narrow_range.1)
            };
            let fitting = numbers.iter().find(|wide| holds(wide, a) && holds(wide, b));
            match either {
                Ok(wide) => {
                    widened += 1;
                    assert!(holds(&wide, a) && holds(&wide, b), "{a} and {b} became {wide}");
                }
                Err(error) => {
                    assert_eq!(fitting, None, "{a} and {b} would fit: {error}");
                }
            }
        }
    }
    assert!(widened > 60, "{widened}");
}

#[test]
fn decimals_keep_digits_on_both_sides_of_the_point() {
    let cases = [
        ((10, 2), (12, 4), Some((12, 4))),
        ((10, 2), (5, 4), Some((12, 4))),
        ((38, 0), (10, 1), None),
        ((38, 10), (38, 10), Some((38, 10))),
        ((5, -2), (5, 0), Some((7, 0))),
        ((5, -2), (4, -3), Some((5, -2))),
        ((20, 19), (20, 1), Some((38, 19))),
        ((20, 19), (21, 1), None),
    ];
    for ((p, s), (q, t), wanted) in cases {
        let found = merge(&Decimal128(p, s), &Decimal128(q, t)).ok();
        assert_eq!(found, wanted.map(|(p, s)| Decimal128(p, s)), "({p}, {s}) and ({q}, {t})");
    }
}

fn list(item: DataType) -> DataType {
    List(Arc::new(Field::new("item", item, true)))
}

fn structure(fields: &[(&str, DataType)]) -> DataType {
    let fields: Vec<Field> =
        fields.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect();
    Struct(fields.into())
}

#[test]
fn other_types_widen() {
    let dictionary = Dictionary(Box::new(Int32), Box::new(Utf8));
    let cases = [
        (Null, Int8, Int8),
        (Utf8, LargeUtf8, LargeUtf8),
        (Utf8View, Utf8, Utf8View),
        (Binary, LargeBinary, LargeBinary),
        (BinaryView, Binary, BinaryView),
        (dictionary.clone(), Utf8, Utf8),
        (dictionary.clone(), Dictionary(Box::new(Int8), Box::new(LargeUtf8)), LargeUtf8),
        (dictionary.clone(), Null, dictionary),
        (Date32, Date64, Date64),
        (list(Int8), list(Int64), list(Int64)),
        (
            structure(&[("x", Int8), ("y", Utf8)]),
            structure(&[("x", Int32), ("y", Null)]),
            structure(&[("x", Int32), ("y", Utf8)]),
        ),
    ];
    for (a, b, wide) in cases {
        assert_eq!(merge(&a, &b).unwrap(), wide, "{a} and {b}");
        assert_eq!(merge(&b, &a).unwrap(), wide, "{b} and {a}");
    }
}

#[test]
fn structs_have_the_fields_of_all_files_in_the_order_of_their_first_appearance() {
    let (old, new) = (structure(&[("x", Int8)]), structure(&[("y", Utf8), ("x", Int32)]));
    let both = structure(&[("x", Int32), ("y", Utf8)]);
    assert_eq!(merge(&old, &new).unwrap(), both);
    assert_eq!(merge(&list(old.clone()), &list(new.clone())).unwrap(), list(both.clone()));
    let other_way = structure(&[("y", Utf8), ("x", Int32)]);
    assert_eq!(merge(&new, &old).unwrap(), other_way);
    let map = |value| {
        let entries = structure(&[("key", Utf8), ("value", value)]);
        Map(Arc::new(Field::new("entries", entries, false)), false)
    };
    assert_eq!(merge(&map(old), &map(new)).unwrap(), map(both));
    // A field that a file lacks may be NULL, whatever the others say of it.
    let required = Struct(vec![Field::new("z", Int8, false)].into());
    let found = merge(&required, &structure(&[("x", Int8)])).unwrap();
    assert_eq!(found, structure(&[("z", Int8), ("x", Int8)]));
}

#[test]
fn what_does_not_widen_names_both_files_and_the_column() {
    let fixed = |length| FixedSizeList(Arc::new(Field::new("item", Int8, true)), length);
    let cases = [
        (Int64, Utf8),
        (Int64, Float64),
        (UInt64, Int64),
        (Boolean, Int8),
        (Timestamp(TimeUnit::Second, None), Timestamp(TimeUnit::Millisecond, None)),
        (Timestamp(TimeUnit::Second, None), Timestamp(TimeUnit::Second, Some("UTC".into()))),
        (Date32, Timestamp(TimeUnit::Second, None)),
        (Utf8, Binary),
        (fixed(2), fixed(3)),
        (list(Int8), Int8),
        (structure(&[("x", Int8)]), structure(&[("x", Utf8)])),
        (list(structure(&[("x", Int8)])), list(structure(&[("x", Utf8)]))),
        (Dictionary(Box::new(Int8), Box::new(Utf8)), Int8),
    ];
    for (a, b) in cases {
        for (a, b) in [(&a, &b), (&b, &a)] {
            let error = merge(a, b).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data);
            let text = error.to_string();
            for part in ["column \"c\"", &format!("{a} in a"), &format!("{b} in b")] {
                assert!(text.contains(part), "{part:?} is missing in: {text}");
            }
        }
    }
}

#[test]
fn a_missing_column_must_be_nullable() {
    let empty = Schema::empty();
    let (nullable, required) = (one(Int8, true), one(Int8, false));
    for files in [[("a", &nullable), ("b", &empty)], [("a", &empty), ("b", &nullable)]] {
        assert!(merge_schemas(files).unwrap().field(0).is_nullable());
    }
    for files in
        [[("with", &required), ("without", &empty)], [("without", &empty), ("with", &required)]]
    {
        let error = merge_schemas(files).unwrap_err().to_string();
        assert!(error.contains("in with and missing in without"), "{error}");
        assert!(error.contains("column \"c\""), "{error}");
    }
    assert!(merge_schemas([("a", &required), ("b", &nullable)]).unwrap().field(0).is_nullable());
    assert!(!merge_schemas([("a", &required), ("b", &required)]).unwrap().field(0).is_nullable());
}

#[test]
fn columns_keep_the_order_of_their_first_appearance() {
    let schema = |names: &[&str]| {
        Schema::new(names.iter().map(|name| Field::new(*name, Int8, true)).collect::<Vec<_>>())
    };
    let (a, b) = (schema(&["x", "y"]), schema(&["z", "y", "x"]));
    assert_eq!(merge_schemas([("a", &a), ("b", &b)]).unwrap(), schema(&["x", "y", "z"]));
}

#[test]
fn a_column_that_stands_twice_in_a_file_is_an_error() {
    let twice = Schema::new(vec![Field::new("c", Int8, true), Field::new("c", Int8, true)]);
    let error = merge_schemas([("a", &twice)]).unwrap_err().to_string();
    assert!(error.contains("a has two columns named \"c\""), "{error}");
}
