//! The judge is `arrow-csv`, alone.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::record_batch::RecordBatch;

use super::super::random::{Random, decoded, is_plain};
use super::super::{LONGEST_RECORD, PIECE, PlainText};
use super::{BYTE_ORDER_MARK, CsvRead, PlainCsv, SchemaRef};
use crate::formats::CsvFormat;

/// What is read of a text, and in which pieces it comes.
struct Case<'a> {
    text: &'a [u8],
    piece: usize,
    table: Schema,
    columns: Vec<usize>,
    rows: usize,
    has_names: bool,
    format: CsvFormat,
}

impl Case<'_> {
    fn read(&self) -> CsvRead {
        CsvRead {
            format: self.format.clone(),
            table: Arc::new(self.table.clone()),
            columns: self.columns.clone(),
            rows: self.rows,
            has_names: self.has_names,
        }
    }

    fn wanted(&self) -> SchemaRef {
        Arc::new(self.table.project(&self.columns).unwrap())
    }

    fn plain(&self) -> PlainText<PlainCsv> {
        PlainText::new(PlainCsv::new(self.read(), self.wanted()), self.wanted(), self.rows)
    }

    fn ours(&self) -> Result<RecordBatch, String> {
        match self.read().is_plain() {
            true => decoded(self.plain(), self.text, self.piece, &self.wanted(), self.rows),
            false => self.theirs(),
        }
    }

    fn theirs(&self) -> Result<RecordBatch, String> {
        let judge = self.read().thorough(0).unwrap();
        decoded(judge, self.text, self.piece, &self.wanted(), self.rows)
    }

    fn is_plain(&self) -> bool {
        self.read().is_plain() && is_plain(self.plain(), self.text)
    }
}

fn case(text: &str, types: &[DataType]) -> Case<'static> {
    let named = |(place, of): (usize, &DataType)| Field::new(format!("c{place}"), of.clone(), true);
    Case {
        text: Box::leak(text.to_owned().into_boxed_str()).as_bytes(),
        piece: usize::MAX,
        table: Schema::new(types.iter().enumerate().map(named).collect::<Vec<_>>()),
        columns: (0..types.len()).collect(),
        rows: 8,
        has_names: false,
        format: CsvFormat::default(),
    }
}

/// A text, in which every `oddness`-th value is odd.
fn text(
    random: &mut Random,
    types: &[DataType],
    has_names: bool,
    oddness: Option<usize>,
) -> Vec<u8> {
    const ODD: [&str; 23] = [
        "x",
        "\"",
        "a\"b",
        "\"a\"b",
        "1,2",
        " 1",
        "1 ",
        "+1",
        "-",
        ".",
        "1e5",
        "inf",
        "nan",
        "1e400",
        "99999999999999999999",
        "\"unclosed",
        "-0",
        "0x1",
        "\u{e9}",
        "1_000",
        "--1",
        "1.",
        ".5",
    ];
    let mut text = Vec::new();
    if random.below(10) == 0 {
        text.extend_from_slice(BYTE_ORDER_MARK);
    }
    let end = random.of(&["\n", "\r\n", "\r"]);
    let records = random.below(30) + usize::from(has_names);
    for place in 0..records {
        let mut record: Vec<_> = types
            .iter()
            .map(|of| match oddness {
                _ if random.below(12) == 0 => String::new(),
                Some(oddness) if random.below(oddness) == 0 => random.of(&ODD).to_owned(),
                _ => {
                    let value = random.value(of);
                    match value.contains(['"', ',', '\n', '\r']) || random.below(10) == 0 {
                        true => format!("\"{}\"", value.replace('"', "\"\"")),
                        false => value,
                    }
                }
            })
            .collect();
        if let Some(oddness) = oddness
            && random.below(oddness) == 0
        {
            match random.below(3) {
                0 => drop(record.pop()),
                1 => record.push("9".to_owned()),
                _ => text.push(0xff),
            }
        }
        text.extend_from_slice(record.join(",").as_bytes());
        // The last record may do without an end; a line may be empty.
        let is_last = place + 1 == records;
        let ends = usize::from(!is_last || random.below(2) == 0) + random.below(30) / 29;
        text.extend_from_slice(end.repeat(ends).as_bytes());
    }
    text
}

#[test]
fn random_texts_are_decoded_as_arrow_csv_decodes_them() {
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
        Null,
        Int32,
        Timestamp(TimeUnit::Millisecond, None),
        Timestamp(TimeUnit::Microsecond, Some("Europe/Berlin".into())),
        Decimal128(10, 2),
    ];
    let (mut good, mut bad, mut plain) = (0, 0, 0);
    for seed in 1..4_000u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let chosen: Vec<_> = (0..1 + random.below(6)).map(|_| random.of(&types)).collect();
        let has_names = random.below(2) == 0;
        let oddness = random.of(&[None, None, Some(200), Some(30)]);
        let text = text(&mut random, &chosen, has_names, oddness);
        let mut case = case("", &chosen);
        case.columns.retain(|_| random.below(3) > 0);
        case.text = &text;
        // The judge keeps a byte order mark that comes in parts.
        let least = if text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 1 };
        case.piece = random.of(&[1, 2, 5, 50, 100_000]).max(least);
        case.rows = random.of(&[1, 2, 3, 7, 100]);
        case.has_names = has_names;
        match (case.ours(), case.theirs()) {
            (Ok(ours), Ok(theirs)) => {
                assert_eq!(ours, theirs, "seed {seed}: {:?}", String::from_utf8_lossy(&text));
                good += 1;
                plain += usize::from(case.is_plain());
            }
            // Of two errors in a text, either may come first.
            (Err(_), Err(_)) => bad += 1,
            (ours, theirs) => panic!("seed {seed}: {ours:?}\n{theirs:?}\n{text:?}"),
        }
    }
    assert!(good > 2_000 && bad > 500, "{good} {bad}");
    assert!(plain * 10 > good * 6, "{plain} of {good}");
}

#[test]
fn numbers_of_any_form_are_those_of_arrow_csv() {
    let mut random = Random(7);
    let mut good = 0;
    let odd = [
        ".",
        "-",
        "-.",
        "1.",
        ".1",
        "-1.",
        "-.1",
        "--1",
        "1-",
        "12345678.",
        ".12345678",
        "123456789.",
        "1.2.3",
    ];
    for number in 0..20_000 {
        let letters: &[u8] = random.of(&[&b"0123456789"[..], b"0123456789.", b"0123456789.-+e"]);
        let text: String = match odd.get(number) {
            Some(odd) => (*odd).to_owned(),
            None => (0..1 + random.below(18)).map(|_| char::from(random.of(letters))).collect(),
        };
        for of in [DataType::Float64, DataType::Int64, DataType::UInt8] {
            let case = case(&format!("100\n{text}\n"), &[of]);
            let ours = case.ours();
            assert_eq!(ours, case.theirs(), "{text}");
            good += usize::from(ours.is_ok());
        }
    }
    assert!(good > 10_000, "{good}");
}

#[test]
fn an_error_names_the_record_as_arrow_csv_names_it() {
    let types = [DataType::Int64, DataType::Int32, DataType::Utf8];
    let good = |place: usize| format!("{place},{},\"a \"\"b\"\"\"\n", place * 2);
    let bad = ["x,1,a\n", "1,2\n", "1,2,3,4\n", "1,99999999999,a\n", "1,,\"a\"b,\n", "1,2,\"a\n"];
    for has_names in [false, true] {
        for bad in bad {
            for before in [0, 1, 8, 21, 64] {
                let names = if has_names { "a,b,c\n" } else { "" };
                let begin: String = (0..before).map(good).collect();
                let end: String = (0..9).map(good).collect();
                for piece in [7, usize::MAX] {
                    let mut case = case(&format!("{names}{begin}{bad}{end}"), &types);
                    (case.has_names, case.piece) = (has_names, piece);
                    // The judge knows whether one field more is the last that its buffer has.
                    let named = |found: Result<RecordBatch, String>| {
                        found.map_err(|error| error.split(" got ").next().unwrap().to_owned())
                    };
                    assert_eq!(named(case.ours()), named(case.theirs()), "{bad:?} after {before}");
                }
            }
        }
    }
}

#[test]
fn files_as_programs_write_them_are_decoded_here() {
    let types = [DataType::Int64, DataType::Float64, DataType::Utf8View];
    let lines = ["1,0.25,abc", "-5,,\"a, \"\"b\"\"\"", ",1e-3,", "007,-12345678.125,\"x\r\ny\""];
    for end in ["\n", "\r\n"] {
        for last in ["", end] {
            for mark in ["", "\u{feff}"] {
                let case = case(&format!("{mark}{}{last}", lines.join(end)), &types);
                assert!(case.is_plain(), "{end:?} {last:?} {mark:?}");
                assert_eq!(case.ours(), case.theirs());
                assert_eq!(case.ours().unwrap().num_rows(), 4);
            }
        }
    }
    let case = case("1,2,3\n4,5,\"a\"b\n", &types);
    assert!(!case.is_plain());
    assert_eq!(case.ours(), case.theirs());
}

#[test]
fn formats_that_are_not_plain_are_decoded_as_arrow_csv_decodes_them() {
    let types = [DataType::Utf8, DataType::Int64];
    let changed = |change: fn(&mut CsvFormat)| {
        let mut format = CsvFormat::default();
        change(&mut format);
        format
    };
    let formats = [
        changed(|format| format.escape = Some(b'\\')),
        changed(|format| format.comment = Some(b'#')),
        changed(|format| format.quote = b'\''),
        changed(|format| format.delimiter = Some(b';')),
        changed(|format| format.delimiter = Some(0)),
        changed(|format| format.delimiter = Some(b'"')),
        changed(|format| format.delimiter = Some(b'\n')),
        changed(|format| format.quote = b'\n'),
    ];
    let texts = [
        "'a,b',1\n#c,2\n",
        "\"a\\\"b\",1\n",
        "a;1\nb;2\n",
        "a\x001\nb\x002",
        "a\"1\"b\n",
        "a,1\nb,2\n",
    ];
    for format in &formats {
        for text in texts {
            let mut case = case(text, &types);
            case.format = format.clone();
            let (ours, theirs) = (case.ours(), case.theirs());
            match (&ours, &theirs) {
                (Err(_), Err(_)) => {}
                _ => assert_eq!(ours, theirs, "{text:?} by {format:?}"),
            }
        }
    }
}

#[test]
fn a_long_record_and_a_large_batch_are_no_other_rows() {
    let types = [DataType::Int64, DataType::Utf8];
    let long = "x".repeat(LONGEST_RECORD + PIECE);
    let mut case = case(&format!("1,a\n2,{long}\n3,\"{long}\"\n4,b\n"), &types);
    case.piece = PIECE;
    assert_eq!(case.ours(), case.theirs());
    assert!(!case.is_plain());
}
