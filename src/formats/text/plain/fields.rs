//! Where the fields of delimited text lie: bytes are compared 64 at a time, and nothing is copied.

use memchr::memchr;

use super::{Found, Span, Stop, UNDECODED};

/// Finds the fields of records as RFC 4180 writes them. Either byte of `\r\n` ends a record alone, too, and empty lines are
/// no records, as `csv-core` has it.
#[derive(Debug)]
pub(super) struct FieldSearch {
    pub(super) delimiter: u8,
    pub(super) quote: u8,
    /// For each field of a record, whether its span is kept.
    pub(super) wanted: Vec<bool>,
}

impl FieldSearch {
    /// Finds records from byte `from`, where one begins, until there are `most`. The spans of their wanted fields are appended
    /// to `spans`, record by record.
    pub(super) fn records(
        &self,
        text: &[u8],
        from: usize,
        most: usize,
        spans: &mut Vec<Span>,
    ) -> Found {
        let mut record = Record { start: from, field: 0, rows: 0, end: from, whole: spans.len() };
        let mut block = from;
        let stop = 'text: loop {
            if record.rows == most {
                break Stop::Enough;
            }
            if block >= text.len() {
                break Stop::End;
            }
            let Marks { mut all, ends, quotes } = self.marks(&text[block..]);
            while all != 0 {
                let at = block + all.trailing_zeros() as usize;
                let bit = all & all.wrapping_neg();
                all ^= bit;
                if quotes & bit != 0 {
                    // Within a field a quote is a letter.
                    if at == record.start {
                        let Some((close, doubled)) = closing(text, at + 1, self.quote) else {
                            break 'text Stop::End;
                        };
                        let span = (at as u32 + 1, close as u32 | doubled);
                        let is_end = match text[close + 1] {
                            byte if byte == self.delimiter => false,
                            b'\n' | b'\r' => true,
                            _ => break 'text Stop::Unclear,
                        };
                        if !self.take(&mut record, span, close + 1, is_end, spans) {
                            break 'text Stop::Unclear;
                        }
                        block = close + 2;
                        continue 'text;
                    }
                    continue;
                }
                let is_end = ends & bit != 0;
                if is_end && record.field == 0 && at == record.start {
                    (record.start, record.end) = (at + 1, at + 1);
                    continue;
                }
                let span = (record.start as u32, at as u32);
                if !self.take(&mut record, span, at, is_end, spans) {
                    break 'text Stop::Unclear;
                }
                if is_end && record.rows == most {
                    break 'text Stop::Enough;
                }
            }
            block += BLOCK;
        };
        spans.truncate(record.whole);
        Found { rows: record.rows, end: record.end, stop }
    }

    /// The field that byte `at` ends. Returns whether the record has as many fields as it must have.
    #[inline]
    fn take(
        &self,
        record: &mut Record,
        span: Span,
        at: usize,
        is_end: bool,
        spans: &mut Vec<Span>,
    ) -> bool {
        match self.wanted.get(record.field) {
            Some(true) => spans.push(span),
            Some(false) => {}
            None => return false,
        }
        record.field += 1;
        record.start = at + 1;
        if is_end {
            if record.field != self.wanted.len() {
                return false;
            }
            record.field = 0;
            record.rows += 1;
            record.end = record.start;
            record.whole = spans.len();
        }
        true
    }

    /// The marks of the next block, or of the rest of a text.
    #[inline]
    fn marks(&self, text: &[u8]) -> Marks {
        match text.first_chunk::<BLOCK>() {
            Some(block) => Marks::within(block, self.delimiter, self.quote),
            None => {
                // Zeros could be the delimiter.
                let mut block = [0; BLOCK];
                block[..text.len()].copy_from_slice(text);
                let Marks { all, ends, quotes } = Marks::within(&block, self.delimiter, self.quote);
                Marks { all: all & ((1 << text.len()) - 1), ends, quotes }
            }
        }
    }
}

/// How far a search is.
struct Record {
    /// The first byte of the field that is looked at, and its place in the record.
    start: usize,
    field: usize,
    /// Records before this one, the byte behind the last of them, and their spans.
    rows: usize,
    end: usize,
    whole: usize,
}

/// The place of the quote that closes a field, and [`UNDECODED`] where quotes in it are doubled. None where the text ends before
/// that is known.
fn closing(text: &[u8], mut from: usize, quote: u8) -> Option<(usize, u32)> {
    let mut doubled = 0;
    loop {
        let at = from + memchr(quote, text.get(from..)?)?;
        if *text.get(at + 1)? != quote {
            return Some((at, doubled));
        }
        doubled = UNDECODED;
        from = at + 2;
    }
}

/// Bytes that are compared at a time.
const BLOCK: usize = 64;

/// A bit for each byte of a block that means something, the first byte's lowest.
struct Marks {
    /// Delimiters, ends of lines and quotes.
    all: u64,
    ends: u64,
    quotes: u64,
}

impl Marks {
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn within(block: &[u8; BLOCK], delimiter: u8, quote: u8) -> Self {
        // SAFETY: every CPU of this architecture has SSE2.
        unsafe { Self::by_sse2(block, delimiter, quote) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "sse2")]
    fn by_sse2(block: &[u8; BLOCK], delimiter: u8, quote: u8) -> Self {
        use std::arch::x86_64::{
            _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
        };

        let of = |byte: u8| _mm_set1_epi8(byte.cast_signed());
        let [delimiter, quote, newline, carriage] = [delimiter, quote, b'\n', b'\r'].map(of);
        let mut marks = Self { all: 0, ends: 0, quotes: 0 };
        for (place, quarter) in block.as_chunks::<16>().0.iter().enumerate() {
            let (words, _) = quarter.as_chunks::<8>();
            let bytes = _mm_set_epi64x(i64::from_le_bytes(words[1]), i64::from_le_bytes(words[0]));
            let bits = |equal| u64::from(_mm_movemask_epi8(equal).cast_unsigned()) << (16 * place);
            let ends =
                _mm_or_si128(_mm_cmpeq_epi8(bytes, newline), _mm_cmpeq_epi8(bytes, carriage));
            let quotes = _mm_cmpeq_epi8(bytes, quote);
            let all = _mm_or_si128(_mm_or_si128(ends, quotes), _mm_cmpeq_epi8(bytes, delimiter));
            marks.all |= bits(all);
            marks.ends |= bits(ends);
            marks.quotes |= bits(quotes);
        }
        marks
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn within(block: &[u8; BLOCK], delimiter: u8, quote: u8) -> Self {
        let bits = |is: &dyn Fn(u8) -> bool| {
            block.iter().rev().fold(0, |bits, byte| bits << 1 | u64::from(is(*byte)))
        };
        let ends = bits(&|byte| byte == b'\n' || byte == b'\r');
        let quotes = bits(&|byte| byte == quote);
        Self { all: ends | quotes | bits(&|byte| byte == delimiter), ends, quotes }
    }
}
