//! The byte-order mark that some programs write before UTF-8 text.

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::Result;

/// The mark.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Text from its beginning on, with blanks in place of a mark: parsers of JSON pass over them, and
/// all places stay the same. The mark is looked for in the first piece.
pub(super) fn blanked(
    text: BoxStream<'static, Result<Bytes>>,
) -> BoxStream<'static, Result<Bytes>> {
    let mut is_first = true;
    let blank = move |piece: Bytes| match std::mem::take(&mut is_first) {
        true => without_mark(piece),
        false => piece,
    };
    text.map_ok(blank).boxed()
}

fn without_mark(text: Bytes) -> Bytes {
    match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => [b"   ", rest].concat().into(),
        None => text,
    }
}
