//! ORC files whose postscript, footer, metadata, stripe footers and run lengths may lie.
//! Format: <https://orc.apache.org/specification/ORCv1/>.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

use crate::choices::Choices;
use crate::protobuf::{Message, put_varint};

/// Rows of each stripe.
const ROWS: u64 = 3;

/// Levels of nested types that are built; references of types add more.
const LEVELS: usize = 4;

const BOOLEAN: u64 = 0;
const BYTE: u64 = 1;
const FLOAT: u64 = 5;
const DOUBLE: u64 = 6;
const STRING: u64 = 7;
const BINARY: u64 = 8;
const TIMESTAMP: u64 = 9;
const LIST: u64 = 10;
const MAP: u64 = 11;
const STRUCT: u64 = 12;
const UNION: u64 = 13;
const DECIMAL: u64 = 14;
const VARCHAR: u64 = 16;
const CHAR: u64 = 17;
const INSTANT: u64 = 18;

/// The kinds of types, those with children twice.
const KINDS: &[u64] =
    &[4, 7, 10, 12, 11, 13, 0, 1, 2, 3, 5, 6, 8, 9, 14, 15, 16, 17, 18, 10, 12, 11];

const PRESENT: u64 = 0;
const DATA: u64 = 1;
const LENGTH: u64 = 2;
const DICTIONARY_DATA: u64 = 3;
const SECONDARY: u64 = 5;
const ROW_INDEX: u64 = 6;

const DIRECT_V2: u64 = 2;
const DICTIONARY_V2: u64 = 3;

/// A column of the footer and of the stripes.
struct Column {
    kind: u64,
    subtypes: Vec<u64>,
    has_dictionary: bool,
    has_nulls: bool,
}

/// A file of one or two stripes, as an input chooses it.
pub fn orc_file(bytes: &[u8]) -> Vec<u8> {
    let choices = &mut Choices::new(bytes);
    let compression = *choices.one_of(&[0_u64, 1, 1, 2, 4, 5]);
    let stripes = 1 + choices.below(2);
    let has_index = choices.below(2) == 1;
    let columns = columns(choices);
    let mut file = b"ORC".to_vec();
    let mut footer = Message::default().number(1, 3, choices);
    let mut held = Vec::new();
    for _ in 0..stripes {
        held.push(stripe(&mut file, &columns, compression, has_index, choices));
    }
    footer = footer.number(2, file.len() as u64, choices);
    for stripe in held {
        footer = footer.message(3, stripe, choices);
    }
    for column in &columns {
        footer = footer.message(4, type_of(column, choices), choices);
    }
    let note = Message::default().bytes(1, b"note", choices).bytes(2, b"text", choices);
    footer = footer.message(5, note, choices).number(6, ROWS * stripes as u64, choices);
    for column in &columns {
        footer = footer.message(7, statistics(column, choices), choices);
    }
    footer = footer.number(8, if has_index { 10_000 } else { 0 }, choices);
    let mut metadata = Message::default();
    for _ in 0..stripes {
        let mut stripe = Message::default();
        for column in &columns {
            stripe = stripe.message(1, statistics(column, choices), choices);
        }
        metadata = metadata.message(1, stripe, choices);
    }
    let metadata = section(metadata, compression, choices);
    let footer = section(footer, compression, choices);
    let mut postscript =
        Message::default().number(1, footer.len() as u64, choices).number(2, compression, choices);
    if compression > 0 {
        postscript = postscript.number(3, 256 << 10, choices);
    }
    let postscript = postscript
        .bytes(4, &[0, 12], choices)
        .number(5, metadata.len() as u64, choices)
        .number(6, 6, choices)
        .bytes(8000, b"ORC", choices)
        .done();
    file.extend_from_slice(&metadata);
    file.extend_from_slice(&footer);
    let length = choices.length(postscript.len()) as u8;
    file.extend_from_slice(&postscript);
    file.push(length);
    choices.bytes(file)
}

/// The types of a tree, by their numbers in the footer.
fn columns(choices: &mut Choices<'_>) -> Vec<Column> {
    let mut columns = Vec::new();
    let width = 1 + choices.below(5);
    add(&mut columns, STRUCT, width, 0, choices);
    if choices.strikes() {
        // A chain of types, deeper than anyone writes.
        for _ in 0..choices.below(600) {
            let next = columns.len() as u64 + 1;
            columns.push(Column {
                kind: LIST,
                subtypes: vec![next],
                has_dictionary: false,
                has_nulls: false,
            });
        }
    }
    columns
}

fn add(
    columns: &mut Vec<Column>,
    kind: u64,
    width: usize,
    level: usize,
    choices: &mut Choices<'_>,
) {
    let at = columns.len();
    let style = choices.below(4);
    columns.push(Column {
        kind,
        subtypes: Vec::new(),
        has_dictionary: style & 1 == 1,
        has_nulls: style & 2 == 2 && level > 0,
    });
    for _ in 0..width {
        let next = columns.len() as u64;
        columns[at].subtypes.push(next);
        let mut kind = *choices.one_of(KINDS);
        if level >= LEVELS && matches!(kind, LIST..=UNION) {
            kind = STRING;
        }
        let inner = match kind {
            LIST => 1,
            MAP => 2,
            STRUCT | UNION => choices.below(3),
            _ => 0,
        };
        add(columns, kind, inner, level + 1, choices);
    }
}

fn type_of(column: &Column, choices: &mut Choices<'_>) -> Message {
    let mut message = Message::default().number(1, column.kind, choices);
    if choices.strikes() {
        message = message.number(2, 1, choices);
    }
    if !column.subtypes.is_empty() {
        let mut packed = Vec::new();
        for subtype in &column.subtypes {
            put_varint(&mut packed, choices.number(*subtype));
        }
        message = message.bytes(2, &packed, choices);
    }
    if column.kind == STRUCT {
        for at in 0..column.subtypes.len() {
            message = message.bytes(3, format!("f{at}").as_bytes(), choices);
        }
    }
    match column.kind {
        VARCHAR | CHAR => message.number(4, 10, choices),
        DECIMAL => message.number(5, 9, choices).number(6, 2, choices),
        _ => message,
    }
}

fn statistics(column: &Column, choices: &mut Choices<'_>) -> Message {
    let message = Message::default().number(1, ROWS, choices);
    let message = match column.kind {
        BYTE..=4 => {
            let range = Message::default().signed(1, 0, choices).signed(2, 1, choices);
            message.message(2, range.signed(3, 3, choices), choices)
        }
        STRING => {
            let range = Message::default().bytes(1, b"a", choices).bytes(2, b"b", choices);
            message.message(4, range.signed(3, 3, choices), choices)
        }
        DECIMAL => {
            let range = Message::default().bytes(1, b"0.01", choices);
            message.message(6, range.bytes(2, b"9.99", choices), choices)
        }
        15 => {
            let range = Message::default().signed(1, 0, choices).signed(2, 1, choices);
            message.message(7, range, choices)
        }
        TIMESTAMP | INSTANT => {
            let range = Message::default().signed(3, 0, choices).signed(4, 1, choices);
            message.message(9, range.number(5, 1, choices), choices)
        }
        _ => message,
    };
    message.number(10, u64::from(column.has_nulls), choices)
}

/// Writes a stripe, and says what the footer has of it.
fn stripe(
    file: &mut Vec<u8>,
    columns: &[Column],
    compression: u64,
    has_index: bool,
    choices: &mut Choices<'_>,
) -> Message {
    let start = file.len();
    let mut footer = Message::default();
    let mut put = |file: &mut Vec<u8>,
                   kind: u64,
                   column: usize,
                   bytes: Vec<u8>,
                   choices: &mut Choices<'_>| {
        let bytes = chunks(&bytes, compression, choices);
        let stream = Message::default()
            .number(1, kind, choices)
            .number(2, column as u64, choices)
            .number(3, bytes.len() as u64, choices);
        file.extend_from_slice(&bytes);
        footer = std::mem::take(&mut footer).message(1, stream, choices);
    };
    if has_index {
        for (number, column) in columns.iter().enumerate() {
            let entry = Message::default().bytes(1, &[0, 0, 0], choices);
            let entry = entry.message(2, statistics(column, choices), choices);
            let index = Message::default().message(1, entry, choices);
            put(file, ROW_INDEX, number, index.done(), choices);
        }
    }
    let index = file.len() - start;
    for (number, column) in columns.iter().enumerate() {
        if column.has_nulls {
            put(file, PRESENT, number, byte_run(0xA0, choices), choices);
        }
        for (kind, bytes) in streams(column, choices) {
            put(file, kind, number, bytes, choices);
        }
    }
    let data = file.len() - start - index;
    for column in columns {
        let has_dictionary = column.has_dictionary && column.kind == STRING;
        let encoding = if has_dictionary { DICTIONARY_V2 } else { DIRECT_V2 };
        let mut encoding = Message::default().number(1, encoding, choices);
        if has_dictionary {
            encoding = encoding.number(2, 1, choices);
        }
        footer = footer.message(2, encoding, choices);
    }
    let footer = footer.bytes(3, b"UTC", choices);
    let footer = section(footer, compression, choices);
    file.extend_from_slice(&footer);
    Message::default()
        .number(1, start as u64, choices)
        .number(2, index as u64, choices)
        .number(3, data as u64, choices)
        .number(4, footer.len() as u64, choices)
        .number(5, ROWS, choices)
}

/// The streams of a column's values; where there are nulls, with more values than are read.
fn streams(column: &Column, choices: &mut Choices<'_>) -> Vec<(u64, Vec<u8>)> {
    let mut numbers = |number: u64| integer_run(number, choices);
    match column.kind {
        STRUCT => Vec::new(),
        BOOLEAN | BYTE | UNION => vec![(DATA, byte_run(0, choices))],
        FLOAT => vec![(DATA, vec![0; 12])],
        DOUBLE => vec![(DATA, vec![0; 24])],
        STRING if column.has_dictionary => {
            vec![(DATA, numbers(0)), (DICTIONARY_DATA, b"ab".to_vec()), (LENGTH, numbers(2))]
        }
        STRING | BINARY | VARCHAR | CHAR => vec![(DATA, b"abc".to_vec()), (LENGTH, numbers(1))],
        TIMESTAMP | INSTANT => vec![(DATA, numbers(4)), (SECONDARY, numbers(8))],
        DECIMAL => vec![(DATA, vec![2, 4, 6]), (SECONDARY, numbers(4))],
        LIST | MAP => vec![(LENGTH, numbers(1))],
        _ => vec![(DATA, numbers(6))],
    }
}

/// A number three times: as a short repeat, or where damage strikes as another run of version 2.
fn integer_run(number: u64, choices: &mut Choices<'_>) -> Vec<u8> {
    let number = choices.number(number);
    if choices.strikes() {
        // Direct, patched and delta: few bits say how many values there are, and how wide.
        let head = [0x40, 0x5E, 0x8E, 0xCE, 0xC0, 0x7F, 0xBF, 0xFF];
        let mut run = vec![*choices.one_of(&head), choices.byte()];
        run.extend((0..choices.below(64)).map(|_| choices.byte()));
        return run;
    }
    if let Ok(small) = u8::try_from(number) {
        return vec![0, small];
    }
    let mut run = vec![0x38];
    run.extend_from_slice(&number.to_be_bytes());
    run
}

/// A byte three times.
fn byte_run(byte: u8, choices: &mut Choices<'_>) -> Vec<u8> {
    vec![choices.number(0) as u8, byte]
}

fn section(message: Message, compression: u64, choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = message.done();
    if choices.strikes() {
        // A field that nobody knows, which repeats itself.
        let zeros = vec![0; choices.below(64) << 16];
        let more = Message::default().bytes(100, &zeros, choices).done();
        bytes.extend_from_slice(&more);
    }
    chunks(&bytes, compression, choices)
}

/// Bytes as they are stored: deflated if that is the file's compression, else as they are in a chunk.
fn chunks(bytes: &[u8], compression: u64, choices: &mut Choices<'_>) -> Vec<u8> {
    if compression == 0 {
        return bytes.to_vec();
    }
    let mut stored = Vec::new();
    for part in bytes.chunks(256 << 10) {
        let mut is_original = compression != 1;
        let mut held = part.to_vec();
        if !is_original {
            let mut packer = DeflateEncoder::new(Vec::new(), Compression::fast());
            held = packer.write_all(part).and_then(|()| packer.finish()).expect("memory takes it");
        }
        if choices.strikes() {
            is_original = !is_original;
        }
        if choices.strikes() {
            // Codecs say first how long the rest becomes.
            held.splice(0..0, [0xff, 0xff, 0xff, 0xff, 0x0f]);
        }
        let head = choices.length(held.len()) << 1 | u64::from(is_original);
        stored.extend_from_slice(&head.to_le_bytes()[..3]);
        stored.extend_from_slice(&held);
    }
    stored
}
