//! The judge is `arrow-json`, alone.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::record_batch::RecordBatch;
use serde_json::json;

use super::super::random::{Random, decoded, is_plain};
use super::super::{LONGEST_RECORD, PIECE, PlainText};
use super::{JsonRead, PlainJson, SchemaRef};

/// What is read of a text, and in which pieces it comes.
struct Case {
    text: Vec<u8>,
    piece: usize,
    schema: SchemaRef,
    rows: usize,
}

impl Case {
    fn new(text: impl Into<Vec<u8>>, columns: &[(&str, DataType)]) -> Self {
        let fields = columns.iter().map(|(name, of)| Field::new(*name, of.clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Self { text: text.into(), piece: usize::MAX, schema, rows: 8 }
    }

    fn read(&self) -> JsonRead {
        JsonRead { schema: Arc::clone(&self.schema), rows: self.rows }
    }

    fn plain(&self) -> PlainText<PlainJson> {
        PlainText::new(PlainJson::new(self.read()), Arc::clone(&self.schema), self.rows)
    }

    fn ours(&self) -> Result<RecordBatch, String> {
        assert!(self.read().is_plain());
        decoded(self.plain(), &self.text, self.piece, &self.schema, self.rows)
    }

    fn theirs(&self) -> Result<RecordBatch, String> {
        let judge = self.read().thorough().unwrap();
        decoded(judge, &self.text, self.piece, &self.schema, self.rows)
    }

    fn is_plain(&self) -> bool {
        is_plain(self.plain(), &self.text)
    }
}

const ODD: [&str; 35] = [
    "{\"k\": \"\\ud800\"}",
    "x",
    "\"",
    "nul",
    "tru",
    "True",
    "[1, 2]",
    "{\"c1\": 1}",
    "[",
    "\"a\\",
    "\"\\u12\"",
    "\"\\ud800\"",
    "\"\\ud83d\\ude00\"",
    "\"\\x\"",
    "-",
    "+1",
    "1e400",
    "1.",
    ".5",
    "01",
    "1-2",
    "99999999999999999999",
    "3.0",
    "3e2",
    "1.5",
    "\"12\"",
    "\"1.5\"",
    "\"\"",
    "true",
    "\"true\"",
    "\"tab\tin it\"",
    "\"line\nin it\"",
    "\"2020-01-01\"",
    "5, \"c0\": 6",
    "1,",
];

/// A text of objects whose keys are `c0`, `c1` and so on, some of them in another order, some missing.
fn text(random: &mut Random, types: &[DataType], oddness: Option<usize>) -> Vec<u8> {
    let mut text = Vec::new();
    let (comma, colon) = random.of(&[(",", ":"), (", ", ": "), ("\n ,", "\t:\r")]);
    let end = random.of(&["\n", "\r\n", "", " \n\n"]);
    for _ in 0..random.below(30) {
        let mut members = Vec::new();
        for (place, of) in types.iter().enumerate() {
            let value = match oddness {
                _ if random.below(15) == 0 => "null".to_owned(),
                Some(oddness) if random.below(oddness) == 0 => random.of(&ODD).to_owned(),
                _ => {
                    let value = random.value(of);
                    match of {
                        DataType::Boolean => value.to_lowercase(),
                        _ if of.is_numeric() => match value.parse::<f64>() {
                            Ok(number) if number.is_finite() => value,
                            _ => "0".to_owned(),
                        },
                        // Escapes as another program would write them.
                        _ => match random.below(4) {
                            0 => json!(value)
                                .to_string()
                                .replace('/', "\\/")
                                .replace("\u{fc}", "\\u00fc"),
                            _ => json!(value).to_string(),
                        },
                    }
                }
            };
            if random.below(20) > 0 {
                members.push(format!("\"c{place}\"{colon}{value}"));
            }
        }
        if random.below(8) == 0 {
            members.reverse();
        }
        if random.below(10) == 0 {
            members.push(format!("\"other\"{colon}{{\"a\": [1, \"]}}\", {{}}]}}"));
        }
        text.extend_from_slice(format!("{{{}}}", members.join(comma)).as_bytes());
        if let Some(oddness) = oddness
            && random.below(oddness) == 0
        {
            text.extend_from_slice(random.of(&[&b"\xff"[..], b",", b"}", b"[]", b"1"]));
        }
        text.extend_from_slice(end.as_bytes());
    }
    text
}

#[test]
fn random_texts_are_decoded_as_arrow_json_decodes_them() {
    use DataType::*;
    let types = [
        Int64,
        Int8,
        UInt64,
        Float64,
        Float32,
        Boolean,
        Utf8,
        Utf8View,
        Date32,
        Int32,
        Timestamp(TimeUnit::Millisecond, None),
        Decimal128(10, 2),
        Duration(TimeUnit::Second),
    ];
    let (mut good, mut bad, mut plain) = (0, 0, 0);
    for seed in 1..4_000u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let chosen: Vec<_> = (0..1 + random.below(6)).map(|_| random.of(&types)).collect();
        let oddness = random.of(&[None, None, Some(200), Some(30)]);
        let text = text(&mut random, &chosen, oddness);
        let mut fields: Vec<_> = chosen
            .iter()
            .enumerate()
            .map(|(place, of)| Field::new(format!("c{place}"), of.clone(), random.below(20) > 0))
            .collect();
        fields.retain(|_| random.below(3) > 0);
        if fields.is_empty() {
            fields.push(Field::new("missing", Int64, true));
        }
        let case = Case {
            text,
            piece: random.of(&[1, 2, 5, 50, 100_000]),
            schema: Arc::new(Schema::new(fields)),
            rows: random.of(&[1, 2, 3, 7, 100]),
        };
        match (case.ours(), case.theirs()) {
            (Ok(ours), Ok(theirs)) => {
                let text = String::from_utf8_lossy(&case.text);
                assert_eq!(ours, theirs, "seed {seed}: {text}");
                good += 1;
                plain += usize::from(case.is_plain());
            }
            // Of two errors in a text, either may come first.
            (Err(_), Err(_)) => bad += 1,
            (ours, theirs) => {
                let text = String::from_utf8_lossy(&case.text);
                panic!("seed {seed}: {ours:?}\n{theirs:?}\n{:?}\n{text}", case.schema)
            }
        }
    }
    assert!(good > 2_000 && bad > 300, "{good} {bad}");
    assert!(plain * 10 > good * 7, "{plain} of {good}");
}

#[test]
fn each_odd_value_is_what_arrow_json_makes_of_it() {
    use DataType::*;
    let types = [
        Int64,
        UInt8,
        Float64,
        Float32,
        Boolean,
        Utf8,
        Utf8View,
        Date32,
        Decimal128(10, 2),
        Timestamp(TimeUnit::Microsecond, None),
    ];
    let mut good = 0;
    for odd in ODD {
        for of in &types {
            for columns in [&[("c0", of.clone())][..], &[("other", Int64)]] {
                let begin = "{\"c0\": null}\n".repeat(11);
                let case = Case::new(format!("{begin}{{\"c0\": {odd}, \"d\": 1}}\n{{}}"), columns);
                let (ours, theirs) = (case.ours(), case.theirs());
                assert_eq!(ours, theirs, "{odd} as {of}");
                good += usize::from(ours.is_ok());
            }
        }
    }
    assert!(good > 200, "{good}");
}

#[test]
fn objects_as_programs_write_them_are_decoded_here() {
    let columns = [("a", DataType::Int64), ("b", DataType::Utf8View), ("c", DataType::Float64)];
    let lines = [
        "{\"a\": 1, \"b\": \"x \\\"y\\\" \\u00fc\", \"c\": 0.25}",
        "{\"a\":-5,\"c\":1e-3,\"d\":{\"e\":[1,2]},\"b\":\"\"}",
        "{}",
        "{\"c\":null,\"b\":null}",
    ];
    for end in ["\n", "\r\n", " "] {
        for last in ["", end] {
            let case = Case::new(format!("{}{last}", lines.join(end)), &columns);
            assert!(case.is_plain(), "{end:?} {last:?}");
            assert_eq!(case.ours(), case.theirs());
            assert_eq!(case.ours().unwrap().num_rows(), 4);
        }
    }
    let odd = ["{\"a\": 1,, \"b\": \"x\"}", "{\"a\": 1, \"a\": null}", "{\"\\u0061\": 1}"];
    for odd in odd {
        let case = Case::new(odd, &columns);
        assert!(!case.is_plain(), "{odd}");
        assert_eq!(case.ours(), case.theirs(), "{odd}");
    }
}

#[test]
fn keys_that_are_data_and_long_records_are_no_other_rows() {
    let columns = [("a", DataType::Int64), ("b", DataType::Utf8)];
    let many: String =
        (0..5_000).map(|row| format!("{{\"key {row}\": {row}, \"a\": {row}}}\n")).collect();
    let case = Case::new(many, &columns);
    assert!(!case.is_plain());
    assert_eq!(case.ours(), case.theirs());
    let long = "x".repeat(LONGEST_RECORD + PIECE);
    let mut case =
        Case::new(format!("{{\"a\": 1}}{{\"b\": \"{long}\", \"a\": 2}}{{\"a\": 3}}"), &columns);
    case.piece = PIECE;
    assert!(!case.is_plain());
    assert_eq!(case.ours(), case.theirs());
}
