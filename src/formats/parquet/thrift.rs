//! Structures of Thrift's compact protocol, as Parquet uses them in footers, page indexes and
//! before pages. Checks their types, and that they hold as many items as they declare.
//!
//! The reader of the `parquet` crate takes memory for as many elements as a list declares before it
//! reads the first: a file of fifty bytes asks for gigabytes, which ends the process where they are
//! not there. So lists are counted before. It does not check the type of a field that it knows, so
//! a field of another type could make it read uncounted lists: such fields are refused.

use super::shapes::{CHECKSUM, COMPRESSED_PAGE_SIZE, PAGE_HEADER, UNCOMPRESSED_PAGE_SIZE};

/// The fields of a structure, by their numbers. It may have others.
pub(in crate::formats) type Fields = &'static [(i16, Shape)];

/// The type of a field.
#[derive(Debug)]
pub(in crate::formats) enum Shape {
    Truth,
    Byte,
    /// A number of 16, 32 or 64 bits, which are written alike.
    Number,
    Double,
    /// Or bytes.
    Text,
    List(&'static Shape),
    Struct(Fields),
}

/// The maximal nesting of structures and lists; Parquet has a handful of levels.
const MOST_DEPTH: usize = 32;

const STOP: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
pub(in crate::formats) const STRUCT: u8 = 12;

/// Returns true if `bytes` begin with a structure of these fields that is whole, so that every list
/// and text in it has the length that it declares.
pub(in crate::formats) fn is_whole(bytes: &[u8], fields: Fields) -> bool {
    Walk { rest: bytes }.structure(fields, 0).is_some()
}

/// The header of a page: <https://parquet.apache.org/docs/file-format/data-pages/>.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageHeader {
    /// Bytes of the header itself.
    pub(in crate::formats) length: usize,
    /// Stored bytes of the page, behind the header.
    pub(in crate::formats) stored: u64,
    /// Bytes that it has when it is decompressed.
    pub(super) declared: u64,
    /// The CRC-32 of the stored bytes behind the header, if the writer recorded one.
    pub(in crate::formats) checksum: Option<u32>,
    /// The page's type; its number in the format.
    pub(in crate::formats) kind: Option<i64>,
    /// The fields for pages of this type.
    pub(super) details: Details,
}

/// The numbers of a flat structure, by the numbers of its fields; truths are 1 and 0.
pub(super) type Details = [Option<i64>; 10];

/// The header with which `bytes` begin; None where they do not begin with one.
pub(super) fn page_header(bytes: &[u8]) -> Option<PageHeader> {
    let mut walk = Walk { rest: bytes };
    let (mut field, mut numbers) = (0, Details::default());
    let mut details = [Details::default(); 4];
    while let Some(kind) = walk.field(&mut field)? {
        let mut value = Walk { rest: walk.rest };
        walk.known(kind, field, PAGE_HEADER, 0)?;
        // Of fields that come twice the last one counts, as it does for the reader.
        match usize::try_from(field) {
            Ok(number @ 1..=4) => numbers[number] = value.signed(),
            Ok(number @ 5..=8) => details[number - 5] = value.numbers()?,
            _ => (),
        }
    }
    let length = bytes.len() - walk.rest.len();
    let size = |field: i16| u64::try_from(numbers[usize::try_from(field).ok()?]?).ok();
    let kind = numbers[1];
    let of_kind = kind.and_then(|kind| details.get(usize::try_from(kind).ok()?).copied());
    Some(PageHeader {
        length,
        stored: size(COMPRESSED_PAGE_SIZE)?,
        declared: size(UNCOMPRESSED_PAGE_SIZE)?,
        checksum: numbers[CHECKSUM].map(|number| number as u32),
        kind,
        details: of_kind.unwrap_or_default(),
    })
}

/// The bytes not visited yet. A step returns None if the bytes end too early or hold another type.
pub(super) struct Walk<'a> {
    rest: &'a [u8],
}

impl<'a> Walk<'a> {
    pub(in crate::formats) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that were not looked at.
    pub(in crate::formats) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn is_list(kind: u8) -> bool {
        kind == LIST
    }

    pub(super) fn is_struct(kind: u8) -> bool {
        kind == STRUCT
    }

    /// The number that comes, where it is one.
    pub(super) fn number_ahead(&self, kind: u8) -> Option<i64> {
        matches!(kind, I16..=I64).then(|| Walk { rest: self.rest }.signed())?
    }

    /// The text that comes next, if it is one.
    pub(super) fn text_ahead(&self, kind: u8) -> Option<&'a [u8]> {
        let mut ahead = Walk { rest: self.rest };
        let length = if kind == BINARY { ahead.number()? } else { return None };
        ahead.rest.get(..usize::try_from(length).ok()?)
    }

    fn structure(&mut self, fields: Fields, depth: usize) -> Option<()> {
        self.structure_by(fields, depth, |_, _, _| Some(false))
    }

    /// Walks through a structure. `take` gets the number and type of each field and returns true if
    /// it has consumed the value itself.
    pub(super) fn structure_by(
        &mut self,
        fields: Fields,
        depth: usize,
        mut take: impl FnMut(&mut Self, i16, u8) -> Option<bool>,
    ) -> Option<()> {
        let mut field = 0;
        while let Some(kind) = self.field(&mut field)? {
            if !take(self, field, kind)? {
                self.known(kind, field, fields, depth)?;
            }
        }
        Some(())
    }

    /// A list of structures, each of which `item` goes through.
    pub(super) fn structures(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        let (count, kind) = self.list()?;
        (count == 0 || kind == STRUCT).then_some(())?;
        (0..count).try_for_each(|_| item(self))
    }

    /// The type of the field that comes after `field`, and its number there; None where the
    /// structure ends.
    pub(in crate::formats) fn field(&mut self, field: &mut i16) -> Option<Option<u8>> {
        let header = self.byte()?;
        let kind = header & 0x0f;
        if kind == STOP {
            return Some(None);
        }
        *field = match header >> 4 {
            // As the reader cuts it off.
            0 => self.signed()? as i16,
            difference => field.checked_add(difference.into())?,
        };
        Some(Some(kind))
    }

    /// Goes through the value of a field, by its type and its number among `fields`.
    pub(in crate::formats) fn known(
        &mut self,
        kind: u8,
        field: i16,
        fields: Fields,
        depth: usize,
    ) -> Option<()> {
        match fields.iter().find(|(number, _)| *number == field) {
            Some((_, Shape::Truth)) => matches!(kind, TRUE | FALSE).then_some(()),
            Some((_, shape)) => self.shaped(kind, shape, depth),
            // The value of such a field is in its type.
            None if matches!(kind, TRUE | FALSE) => Some(()),
            None => self.unknown(kind, depth),
        }
    }

    fn shaped(&mut self, kind: u8, shape: &'static Shape, depth: usize) -> Option<()> {
        match (shape, kind) {
            (Shape::Truth, TRUE | FALSE) | (Shape::Byte, BYTE) => self.skip(1),
            (Shape::Number, I16..=I64) => self.number().map(drop),
            (Shape::Double, DOUBLE) => self.skip(8),
            (Shape::Text, BINARY) => self.text(),
            _ if depth == MOST_DEPTH => None,
            (Shape::Struct(fields), STRUCT) => self.structure(fields, depth + 1),
            (Shape::List(shape), LIST) => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.shaped(kind, shape, depth + 1))
            }
            _ => None,
        }
    }

    /// A field that nobody reads. Parquet has neither sets nor maps, and the reader passes over
    /// truths in a list wrongly.
    fn unknown(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            BYTE => self.skip(1),
            I16..=I64 => self.number().map(drop),
            DOUBLE => self.skip(8),
            BINARY => self.text(),
            _ if depth == MOST_DEPTH => None,
            STRUCT => self.structure(&[], depth + 1),
            LIST => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.unknown(kind, depth + 1))
            }
            _ => None,
        }
    }

    /// The number of elements of a list, and their type. Every element takes a byte, so that there
    /// are no more of them than bytes.
    fn list(&mut self) -> Option<(u64, u8)> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => self.number()?,
            few => few.into(),
        };
        (count <= self.rest.len() as u64).then_some((count, header & 0x0f))
    }

    /// The numbers of a structure, without those of nested structures.
    fn numbers(&mut self) -> Option<Details> {
        let (mut field, mut numbers) = (0, Details::default());
        while let Some(kind) = self.field(&mut field)? {
            let mut value = Walk { rest: self.rest };
            self.unknown_or_truth(kind)?;
            let found = match kind {
                TRUE | FALSE => Some(i64::from(kind == TRUE)),
                I16..=I64 => value.signed(),
                _ => None,
            };
            if let Some(slot) = usize::try_from(field).ok().and_then(|field| numbers.get_mut(field))
            {
                *slot = found;
            }
        }
        Some(numbers)
    }

    /// A field of any type; the value of a truth is in its type.
    fn unknown_or_truth(&mut self, kind: u8) -> Option<()> {
        if matches!(kind, TRUE | FALSE) { Some(()) } else { self.unknown(kind, 1) }
    }

    fn text(&mut self) -> Option<()> {
        let length = self.number()?;
        self.skip(length)
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Seven bits per byte, the last one without the highest.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The sign in the lowest bit.
    fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: Fields = &[
        (1, Shape::Number),
        (2, Shape::Text),
        (3, Shape::List(&Shape::Struct(&[(1, Shape::Number)]))),
        (4, Shape::List(&Shape::Truth)),
        (5, Shape::Byte),
        (6, Shape::Double),
        (7, Shape::Truth),
    ];

    /// A number, a text, a list of two structures, a long list of truths, a byte, a double, true;
    /// and fields that nobody knows: a number far away, a structure with a list of texts in it.
    fn whole() -> Vec<u8> {
        let mut whole = vec![0x15, 0x82, 0x01, 0x18, 2, b'a', b'b', 0x19, 0x2c, 0x15, 3, 0, 0];
        whole.extend([0x19, 0xf2, 20]);
        whole.extend([1; 20]);
        whole.extend([0x13, 9, 0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0x11]);
        whole.extend([0x06, 0x80, 0x02, 7, 0x1c, 0x19, 0x28, 1, b'x', 0, 0, STOP]);
        whole
    }

    #[test]
    fn what_holds_what_it_declares_is_whole_and_every_part_of_it_is_not() {
        let whole = whole();
        assert!(is_whole(&whole, EVERYTHING));
        assert!(is_whole(&[0x19, 0, STOP], &[(1, Shape::List(&Shape::Text))]));
        for end in 0..whole.len() {
            assert!(!is_whole(&whole[..end], EVERYTHING), "{end} of {} bytes", whole.len());
        }
    }

    #[test]
    fn what_declares_more_than_there_is_ends_at_once() {
        let billions = [0xff, 0xff, 0xff, 0xff, 0x0f];
        for head in [&[0x19_u8, 0xfc][..], &[0x18], &[0x19, 0xf5]] {
            let mut bytes = [head, &billions].concat();
            bytes.resize(1000, 0x19);
            assert!(!is_whole(&bytes, &[]), "{head:?}");
        }
        let deep = vec![0x1c; 1 << 20];
        assert!(!is_whole(&deep, &[]));
        let lists = vec![0x19; 1 << 20];
        assert!(!is_whole(&lists, &[]));
        let endless = [0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0];
        assert!(!is_whole(&endless, &[]));
    }

    /// The reader would take the number of the first for the head of a list.
    #[test]
    fn a_field_of_another_type_is_refused() {
        let list: Fields = &[(1, Shape::List(&Shape::Struct(&[(1, Shape::Number)])))];
        assert!(is_whole(&[0x19, 0x1c, 0x15, 0, 0, STOP], list));
        for other in [&[0x15_u8, 0x7c, STOP][..], &[0x18, 0, STOP], &[0x19, 0x15, 2, STOP]] {
            assert!(!is_whole(other, list), "{other:?}");
            assert!(is_whole(other, &[(2, Shape::Truth)]));
        }
        // The number of a field is cut off to sixteen bits.
        assert!(!is_whole(&[0x05, 0x82, 0x80, 0x08, 0x7c, STOP], list));
        assert!(!is_whole(&[0x11, STOP], list) && !is_whole(&[0x1a, 0x15, 0, STOP], list));
    }
}
