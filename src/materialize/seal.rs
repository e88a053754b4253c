//! A checksum inside a manifest, over all of its text: a manifest that was changed is damaged.

/// The field's value before the checksum is known, and while it is taken.
pub(crate) const UNSEALED: &str = "00000000";

/// What stands before the value. Inside of other texts its quotes are escaped.
const FIELD: &[u8] = b"\"check\":\"";

/// Puts the checksum into the field `check` of a JSON text, which has [`UNSEALED`] there.
pub(crate) fn seal(mut text: Vec<u8>) -> Vec<u8> {
    if let Some(at) = place(&text) {
        let sum = format!("{:08x}", crc32fast::hash(&text));
        text[at..at + UNSEALED.len()].copy_from_slice(sum.as_bytes());
    }
    text
}

/// Returns true if the checksum in the field `check` is that of the text.
pub(crate) fn is_sealed(text: &[u8]) -> bool {
    let Some(at) = place(text) else { return false };
    let end = at + UNSEALED.len();
    let mut hash = crc32fast::Hasher::new();
    hash.update(&text[..at]);
    hash.update(UNSEALED.as_bytes());
    hash.update(&text[end..]);
    text[at..end] == *format!("{:08x}", hash.finalize()).as_bytes()
}

fn place(text: &[u8]) -> Option<usize> {
    let at = text.windows(FIELD.len()).position(|part| part == FIELD)? + FIELD.len();
    (text.len() >= at + UNSEALED.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_shows() {
        let text = br#"{"version":2,"check":"00000000","why":"\"check\":\"x\"","rows":17}"#;
        let sealed = seal(text.to_vec());
        assert!(is_sealed(&sealed));
        assert!(!is_sealed(text) && !is_sealed(b"") && !is_sealed(br#"{"check":""#));
        for bit in 0..sealed.len() * 8 {
            let mut other = sealed.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_sealed(&other), "bit {bit}");
        }
    }
}
