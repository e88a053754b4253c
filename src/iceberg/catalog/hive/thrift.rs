//! Questions in Thrift's binary protocol, as a Hive metastore speaks it: a call with strings, and
//! any answer. <https://github.com/apache/thrift/blob/master/doc/specs/thrift-binary-protocol.md>.
//!
//! The generated client for the metastore brings a runtime whose locks do not survive `fork`, so
//! the little that is asked here is written out.

use std::io::{self, Read, Write};

use crate::bounds::CATALOG_ANSWER;

/// Version 1 of the strict protocol, and a call in it.
const CALL: u32 = 0x8001_0001;
/// The kind of message of an answer that is an error of the protocol.
const EXCEPTION: u8 = 3;

/// Bytes of one string, and items of one list, beyond which an answer is taken for nonsense.
const MOST: usize = 64 << 20;
/// Depth of nesting beyond which an answer is taken for nonsense.
const DEEPEST: usize = 32;

/// A value of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Booleans, numbers: nobody asks for them.
    Scalar,
    /// Text or bytes.
    Text(Vec<u8>),
    /// A list or a set.
    List(Vec<Value>),
    /// A map.
    Map(Vec<(Value, Value)>),
    /// Fields by id.
    Struct(Vec<(i16, Value)>),
}

impl Value {
    /// A field of a struct.
    pub fn field(&self, id: i16) -> Option<&Self> {
        match self {
            Self::Struct(fields) => fields.iter().find(|(known, _)| *known == id).map(|(_, v)| v),
            _ => None,
        }
    }

    /// Text, if it is UTF-8.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }
}

/// The bytes of a call with string arguments, numbered from 1.
pub fn call(method: &str, arguments: &[&str]) -> Vec<u8> {
    let mut out = CALL.to_be_bytes().to_vec();
    write_text(&mut out, method);
    out.extend_from_slice(&0_i32.to_be_bytes());
    for (argument, id) in arguments.iter().zip(1_i16..) {
        out.push(11);
        out.extend_from_slice(&id.to_be_bytes());
        write_text(&mut out, argument);
    }
    out.push(0);
    out
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Sends a call, in a frame where the server wants that, and reads the result: field 0 is the
/// answer, others are the method's exceptions.
///
/// # Errors
/// Sends a call and returns the connection's answer; `InvalidData` if the answer is not of the
/// protocol.
pub fn ask(stream: &mut (impl Read + Write), call: &[u8], framed: bool) -> io::Result<Value> {
    if framed {
        stream.write_all(&(call.len() as u32).to_be_bytes())?;
    }
    stream.write_all(call)?;
    stream.flush()?;
    let mut answer = stream.take(CATALOG_ANSWER.most());
    let read = read_answer(&mut answer, framed);
    match answer.limit() {
        0 => Err(odd(&CATALOG_ANSWER.message("its answer has", CATALOG_ANSWER.most()))),
        _ => read,
    }
}

fn read_answer(stream: &mut impl Read, framed: bool) -> io::Result<Value> {
    if framed {
        read_array::<4>(stream)?;
    }
    let [a, b, _, kind] = read_array(stream)?;
    if [a, b] != [0x80, 0x01] {
        return Err(odd("it does not speak Thrift's binary protocol"));
    }
    read_bytes(stream)?;
    read_array::<4>(stream)?;
    let result = read_value(stream, 12, DEEPEST)?;
    if kind == EXCEPTION {
        let told = result.field(1).and_then(Value::text).unwrap_or_default();
        return Err(odd(&format!("it refuses the call: {told}")));
    }
    Ok(result)
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn read_array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_count(stream: &mut impl Read) -> io::Result<usize> {
    let count = u32::from_be_bytes(read_array(stream)?) as usize;
    if count > MOST { Err(odd("a length in its answer is not plausible")) } else { Ok(count) }
}

fn read_bytes(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = read_count(stream)? as u64;
    let mut bytes = Vec::new();
    stream.take(length).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == length {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn read_value(stream: &mut impl Read, kind: u8, depth: usize) -> io::Result<Value> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(odd("its answer is nested too deeply"));
    };
    Ok(match kind {
        2 | 3 => read_array::<1>(stream).map(|_| Value::Scalar)?,
        6 => read_array::<2>(stream).map(|_| Value::Scalar)?,
        8 => read_array::<4>(stream).map(|_| Value::Scalar)?,
        4 | 10 => read_array::<8>(stream).map(|_| Value::Scalar)?,
        11 => Value::Text(read_bytes(stream)?),
        12 => {
            let mut fields = Vec::new();
            loop {
                let [kind] = read_array(stream)?;
                if kind == 0 {
                    return Ok(Value::Struct(fields));
                }
                let id = i16::from_be_bytes(read_array(stream)?);
                fields.push((id, read_value(stream, kind, depth)?));
            }
        }
        13 => {
            let [key, value] = read_array(stream)?;
            let mut pairs = Vec::new();
            for _ in 0..read_count(stream)? {
                let key = read_value(stream, key, depth)?;
                pairs.push((key, read_value(stream, value, depth)?));
            }
            Value::Map(pairs)
        }
        14 | 15 => {
            let [item] = read_array(stream)?;
            let count = read_count(stream)?;
            let mut items = Vec::new();
            for _ in 0..count {
                items.push(read_value(stream, item, depth)?);
            }
            Value::List(items)
        }
        other => return Err(odd(&format!("its answer has a value of the unknown type {other}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_and_a_damaged_one_refused() {
        // get_all_databases: a list of two strings in field 0.
        let mut answer = vec![0x80, 0x01, 0, 2, 0, 0, 0, 1, b'm', 0, 0, 0, 0];
        answer
            .extend_from_slice(&[15, 0, 0, 11, 0, 0, 0, 2, 0, 0, 0, 1, b'a', 0, 0, 0, 1, b'b', 0]);
        let texts = |bytes: &[u8]| {
            let mut stream = Both { read: bytes, written: Vec::new() };
            ask(&mut stream, &call("m", &["x"]), false)
        };
        let list = Value::List(vec![Value::Text(b"a".to_vec()), Value::Text(b"b".to_vec())]);
        assert_eq!(texts(&answer).unwrap().field(0), Some(&list));
        for end in 0..answer.len() {
            assert!(texts(&answer[..end]).is_err(), "{end}");
        }
        assert!(texts(b"HTTP/1.1 400 Bad Request").is_err());
    }

    struct Both<'a> {
        read: &'a [u8],
        written: Vec<u8>,
    }

    impl Read for Both<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.read.read(out)
        }
    }

    impl Write for Both<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
