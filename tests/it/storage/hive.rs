//! Directory names become typed values, and never paths.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use object_store::path::Path;
use proptest::prelude::*;
use tensorquery::storage::{FilePin, HivePartitions, Partitioning, decode};
use tensorquery::{ErrorKind, Result};

fn pin(path: &str) -> FilePin {
    FilePin {
        location: Path::parse(path).unwrap(),
        size: 1,
        last_modified: Some(chrono::DateTime::UNIX_EPOCH),
        e_tag: None,
        version: None,
        changed: None,
    }
}

/// Decodes paths below `t`.
fn decode_with(
    paths: &[&str],
    partitioning: Partitioning,
    types: &[(&str, DataType)],
) -> Result<HivePartitions> {
    let pins: Vec<FilePin> = paths.iter().map(|path| pin(&format!("t/{path}"))).collect();
    let roots = vec![Path::from("t"); pins.len()];
    let types: BTreeMap<String, DataType> =
        types.iter().map(|(key, data_type)| ((*key).to_owned(), data_type.clone())).collect();
    decode(&pins, &roots, partitioning, &types)
}

fn detect(paths: &[&str]) -> Result<HivePartitions> {
    decode_with(paths, Partitioning::Detect, &[])
}

fn types(partitions: &HivePartitions) -> Vec<(String, DataType, bool)> {
    let field = |field: &arrow::datatypes::Field| {
        (field.name().clone(), field.data_type().clone(), field.is_nullable())
    };
    partitions.fields.iter().map(field).collect()
}

#[test]
fn values_are_typed_by_all_files() {
    let partitions = detect(&[
        "year=2026/day=2026-01-31/zip=00123/flag=true/big=9223372036854775807/a.csv",
        "year=-1/day=2024-02-29/zip=1/flag=false/big=0/sub/b=c.csv",
    ])
    .unwrap();
    let expected = [
        ("year", DataType::Int64),
        ("day", DataType::Date32),
        ("zip", DataType::Utf8),
        ("flag", DataType::Utf8),
        ("big", DataType::Int64),
    ];
    let expected: Vec<_> =
        expected.into_iter().map(|(key, kind)| (key.to_owned(), kind, false)).collect();
    assert_eq!(types(&partitions), expected);
    assert_eq!(partitions.values[0][0], ScalarValue::Int64(Some(2026)));
    assert_eq!(partitions.values[1][0], ScalarValue::Int64(Some(-1)));
    assert_eq!(partitions.values[0][1], ScalarValue::Date32(Some(20484)));
    assert_eq!(partitions.values[0][2], ScalarValue::from("00123"));
}

#[test]
fn no_text_is_taken_for_a_number_or_date_that_prints_differently() {
    for text in ["007", "+7", "-0", "1e3", " 1", "9223372036854775808", "2026-02-30", "2026-1-01"] {
        let partitions = detect(&[&format!("k={text}/a")]).unwrap();
        assert_eq!(partitions.fields[0].data_type(), &DataType::Utf8, "{text}");
        assert_eq!(partitions.values[0][0], ScalarValue::from(text));
    }
    let partitions = detect(&["k=1/a", "k=x/a"]).unwrap();
    assert_eq!(partitions.values[0][0], ScalarValue::from("1"));
}

#[test]
fn nulls_and_escapes_are_decoded_once() {
    let null = "k=__HIVE_DEFAULT_PARTITION__/a";
    let partitions = detect(&[null, "k=5/b"]).unwrap();
    assert_eq!(types(&partitions), [("k".to_owned(), DataType::Int64, true)]);
    assert_eq!(partitions.values[0][0], ScalarValue::Int64(None));
    let partitions = detect(&[null]).unwrap();
    assert_eq!(types(&partitions), [("k".to_owned(), DataType::Utf8, true)]);

    for (name, value) in [
        ("a%20b%2Fc", "a b/c"),
        ("%2E%2E%2F%2E%2E%2Fetc", "../../etc"),
        ("%2525", "%25"),
        ("100%", "100%"),
        ("", ""),
        ("x=y", "x=y"),
        ("ü", "ü"),
    ] {
        let partitions = detect(&[&format!("my%20key={name}/a")]).unwrap();
        assert_eq!(partitions.fields[0].name(), "my key");
        assert_eq!(partitions.values[0][0], ScalarValue::from(value), "{name}");
    }
}

#[test]
fn declared_types_win() {
    let declared = [
        ("zip", DataType::Int32),
        ("year", DataType::Utf8),
        ("flag", DataType::Boolean),
        ("other", DataType::Int8),
    ];
    let paths = ["zip=007/year=2026/flag=true/a"];
    let partitions = decode_with(&paths, Partitioning::Detect, &declared).unwrap();
    let expected =
        [ScalarValue::Int32(Some(7)), ScalarValue::from("2026"), ScalarValue::Boolean(Some(true))];
    assert_eq!(partitions.values[0], expected);

    let paths = ["zip=1/a", "zip=12x/b.csv"];
    let error = decode_with(&paths, Partitioning::Detect, &declared).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    for part in ["t/zip=12x/b.csv", "\"zip\"", "\"12x\"", "Int32"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn files_that_disagree_are_named() {
    for (paths, parts) in [
        (["k=1/a", "b"], ["t/k=1/a has the hive keys k", "t/b has no hive keys"]),
        (["a", "k=1/b"], ["t/a has no hive keys", "partitioning=False"]),
        (["k=1/l=1/a", "l=1/k=1/b"], ["keys k, l", "keys l, k"]),
        (["k=1/a", "k=1/k=2/b"], ["\"k\" stands twice", "t/k=1/k=2/b"]),
        (["k=%FF/a", "k=1/b"], ["not UTF-8", "t/k=%FF/a"]),
    ] {
        let error = detect(&paths).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
        let off = decode_with(&paths, Partitioning::Off, &[]).unwrap();
        assert_eq!((off.fields.len(), off.values.len()), (0, 2));
    }
}

#[test]
fn hive_demands_keys_and_detection_does_not() {
    let paths = ["=x/a", "y/a=b.csv"];
    assert_eq!(detect(&paths).unwrap().values, [[], []]);
    let error = decode_with(&paths, Partitioning::Hive, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("t/=x/a"), "{error}");
    assert!(decode(&[], &[], Partitioning::Hive, &BTreeMap::new()).is_ok());
}

#[test]
fn directories_above_the_root_do_not_count() {
    let pins = [pin("x=1/t/k=2/a")];
    let roots = [Path::from("x=1/t")];
    let partitions = decode(&pins, &roots, Partitioning::Detect, &BTreeMap::new()).unwrap();
    assert_eq!(partitions.fields.len(), 1);
    assert_eq!(partitions.fields[0].name(), "k");
}

proptest! {
    #[test]
    fn any_value_comes_back(values in prop::collection::vec("\\PC{0,12}", 1..5)) {
        const SAFE: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC.remove(b'-');
        let paths: Vec<String> = values
            .iter()
            .map(|value| format!("k={}/a", percent_encoding::utf8_percent_encode(value, SAFE)))
            .collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let partitions = detect(&paths).unwrap();
        for (row, value) in partitions.values.iter().zip(&values) {
            let text = row[0].cast_to(&DataType::Utf8).unwrap();
            prop_assert_eq!(text, ScalarValue::from(value.as_str()));
        }
    }
}
