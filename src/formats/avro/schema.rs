//! The shape of rows, to which their bytes must conform. A block is checked against it before it is
//! decoded.

use serde_json::Value;

use super::normal::invalid;
use super::wire::{Cursor, damaged};
use crate::{Error, ErrorKind, Result};

/// A type as its bytes show it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    Null,
    Boolean,
    Int,
    Long,
    /// Bytes of a number of fixed length.
    Fixed(usize),
    /// A length, and as many bytes.
    Bytes,
    Text,
    /// One of as many symbols.
    Enum(usize),
    Array(Box<Shape>),
    Map(Box<Shape>),
    Record(Vec<Shape>),
    Union(Vec<Shape>),
}

impl Shape {
    /// The shape of a normalized schema.
    ///
    /// # Errors
    /// `Data` if it is invalid; `UnsupportedType` for a type that takes no bytes and is not null,
    /// naming the column.
    pub fn of(schema: &Value, column: &str) -> Result<Self> {
        Self::build(schema, column, true)
    }

    /// The shape of a normalized schema whose values may take no bytes, but for items of lists.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_any(schema: &Value) -> Result<Self> {
        Self::build(schema, "", false)
    }

    fn build(schema: &Value, column: &str, strict: bool) -> Result<Self> {
        let kind = match schema {
            Value::String(kind) => kind.as_str(),
            Value::Array(branches) => {
                if branches.is_empty() {
                    return Err(invalid(column, "a union has no branches"));
                }
                let branches = branches.iter().map(|branch| Self::build(branch, column, strict));
                return branches.collect::<Result<_>>().map(Self::Union);
            }
            other => other["type"].as_str().unwrap_or_default(),
        };
        Ok(match kind {
            "null" => Self::Null,
            "boolean" => Self::Boolean,
            "int" => Self::Int,
            "long" => Self::Long,
            "float" => Self::Fixed(4),
            "double" => Self::Fixed(8),
            "bytes" => Self::Bytes,
            "string" => Self::Text,
            "fixed" => match schema["size"].as_u64().unwrap_or_default() {
                0 if strict => return Err(no_bytes(column, "holds a fixed of size 0")),
                size => Self::Fixed(size as usize),
            },
            "enum" => Self::Enum(schema["symbols"].as_array().map_or(0, Vec::len)),
            "array" => {
                let item = Self::build(&schema["items"], column, strict)?;
                if item.takes_nothing() {
                    return Err(no_bytes(column, "is a list of items that take no bytes"));
                }
                Self::Array(Box::new(item))
            }
            "map" => Self::Map(Box::new(Self::build(&schema["values"], column, strict)?)),
            "record" => {
                let fields = schema["fields"].as_array().map(Vec::as_slice).unwrap_or_default();
                if strict && fields.is_empty() && !column.is_empty() {
                    return Err(no_bytes(column, "holds a record without fields"));
                }
                let shapes = fields.iter().map(|field| {
                    let name = field["name"].as_str().unwrap_or_default();
                    let of = if column.is_empty() { name } else { column };
                    Self::build(&field["type"], of, strict)
                });
                Self::Record(shapes.collect::<Result<_>>()?)
            }
            other => return Err(invalid(column, &format!("{other:?} is no type"))),
        })
    }

    /// Returns true if values take no bytes at all, so that any number of them fits anywhere.
    pub fn takes_nothing(&self) -> bool {
        match self {
            Self::Null | Self::Fixed(0) => true,
            Self::Record(fields) => fields.iter().all(Self::takes_nothing),
            _ => false,
        }
    }

    /// Checks that `count` values fill `bytes` exactly; returns how many items their lists and maps
    /// have together.
    ///
    /// # Errors
    /// `Data` where they do not, or one of them is impossible.
    pub fn check(&self, bytes: &[u8], count: u64) -> Result<u64> {
        let mut cursor = Cursor::new(bytes);
        for _ in 0..count {
            self.pass(&mut cursor)?;
        }
        match cursor.left() {
            0 => Ok(cursor.items),
            left => {
                Err(damaged(&format!("{left} bytes are left behind the {count} rows of a block")))
            }
        }
    }

    fn pass(&self, cursor: &mut Cursor<'_>) -> Result<()> {
        match self {
            Self::Null => Ok(()),
            Self::Boolean => match take(cursor, 1)? {
                [0 | 1] => Ok(()),
                _ => Err(damaged("a boolean is neither true nor false")),
            },
            Self::Int => match i32::try_from(long(cursor)?) {
                Ok(_) => Ok(()),
                Err(_) => Err(damaged("an int has more than 32 bits")),
            },
            Self::Long => long(cursor).map(drop),
            Self::Fixed(size) => take(cursor, *size).map(drop),
            Self::Bytes => sized(cursor).map(drop),
            Self::Text => text(cursor),
            Self::Enum(symbols) => index(cursor, *symbols, "symbol").map(drop),
            Self::Union(branches) => {
                branches[index(cursor, branches.len(), "branch")?].pass(cursor)
            }
            Self::Record(fields) => fields.iter().try_for_each(|field| field.pass(cursor)),
            Self::Array(item) => items(cursor, |cursor| item.pass(cursor)),
            Self::Map(value) => items(cursor, |cursor| {
                text(cursor)?;
                value.pass(cursor)
            }),
        }
    }
}

fn no_bytes(column: &str, what: &str) -> Error {
    Error::new(
        ErrorKind::UnsupportedType,
        format!("column {column:?} {what}, which is not read; write the file without it"),
    )
}

fn long(cursor: &mut Cursor<'_>) -> Result<i64> {
    cursor.long()?.ok_or_else(ends)
}

fn take<'a>(cursor: &mut Cursor<'a>, length: usize) -> Result<&'a [u8]> {
    cursor.take(length).ok_or_else(ends)
}

fn sized<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    let length = usize::try_from(long(cursor)?)
        .map_err(|_| damaged("a value has a negative number of bytes"))?;
    take(cursor, length)
}

fn text(cursor: &mut Cursor<'_>) -> Result<()> {
    match std::str::from_utf8(sized(cursor)?) {
        Ok(_) => Ok(()),
        Err(_) => Err(damaged("a text is not UTF-8")),
    }
}

fn index(cursor: &mut Cursor<'_>, of: usize, what: &str) -> Result<usize> {
    let found = long(cursor)?;
    usize::try_from(found)
        .ok()
        .filter(|index| *index < of)
        .ok_or_else(|| damaged(&format!("{what} {found} is not in 0..{of}")))
}

/// Items in groups: a number of them, negative where the bytes that they take follow; zero ends the
/// last group.
fn items<'a>(
    cursor: &mut Cursor<'a>,
    mut pass: impl FnMut(&mut Cursor<'a>) -> Result<()>,
) -> Result<()> {
    loop {
        let count = long(cursor)?;
        let bytes = match count < 0 {
            true => Some(long(cursor)?),
            false => None,
        };
        if count == 0 {
            return Ok(());
        }
        let before = cursor.left();
        // Items take bytes, so that a number without truth ends where the bytes do.
        for _ in 0..count.unsigned_abs() {
            pass(cursor)?;
        }
        cursor.items += count.unsigned_abs();
        if bytes.is_some_and(|bytes| bytes != (before - cursor.left()) as i64) {
            return Err(damaged("the items of a list take other bytes than it says"));
        }
    }
}

fn ends() -> Error {
    damaged("a block ends within a row")
}
