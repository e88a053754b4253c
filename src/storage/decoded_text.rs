//! Text files as the text that they hold: unpacked, and without the mark that some begin with.

use std::sync::Arc;

use object_store::{GetOptions, GetResult, GetResultPayload, ObjectStore};

use super::layer::{Layer, Layered};
use super::mark::blanked;
use super::members::Members;

/// Whole files are read as the text that they are compressed from; ranges are of the stored bytes.
struct DecodedText {
    /// How whole files are unpacked.
    members: Option<Members>,
    /// Whether a byte-order mark is read as blanks.
    blanks_mark: bool,
}

/// `store`, whose whole files are unpacked by `members`, and whose text that begins with a
/// byte-order mark is read as if it began with blanks where `blanks_mark` says so.
pub fn with_decoded_text(
    store: Arc<dyn ObjectStore>,
    members: Option<Members>,
    blanks_mark: bool,
) -> Arc<dyn ObjectStore> {
    match members.is_some() || blanks_mark {
        true => Arc::new(Layered { inner: store, layer: DecodedText { members, blanks_mark } }),
        false => store,
    }
}

impl Layer for DecodedText {
    fn answer(
        &self,
        _: &Arc<dyn ObjectStore>,
        options: GetOptions,
        mut answer: GetResult,
    ) -> GetResult {
        let members = self.members.filter(|_| options.range.is_none() && !options.head);
        if let GetResultPayload::Stream(mut text) = answer.payload {
            if let Some(members) = members {
                text = members.unpack(text);
            }
            if self.blanks_mark && answer.range.start == 0 {
                text = blanked(text);
            }
            answer.payload = GetResultPayload::Stream(text);
        }
        answer
    }
}
