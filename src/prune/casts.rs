//! Casts that keep the order of values, so that the cast bounds of a column are bounds of its cast
//! values.

use std::sync::Arc;

use arrow::datatypes::DataType;

/// Returns true if a value that is not less than another is not less after the cast either. Of
/// casts that are not known, nothing is: digits sort otherwise as text, a time of day otherwise
/// than its timestamp, and a zone repeats an hour each year.
pub(super) fn keeps_order(from: &DataType, to: &DataType) -> bool {
    use DataType::{Date32, Date64, Timestamp};
    let is_utc = |zone: &Option<Arc<str>>| {
        zone.as_deref().is_none_or(|zone| matches!(zone, "UTC" | "+00:00" | "Z"))
    };
    match (from, to) {
        (from, to) if from == to => true,
        (from, to) if from.is_numeric() && to.is_numeric() => true,
        (Date32 | Date64, Date32 | Date64) => true,
        (Timestamp(_, zone), Date32 | Date64) | (Date32 | Date64, Timestamp(_, zone)) => {
            is_utc(zone)
        }
        // Of one zone only the unit changes.
        (Timestamp(_, one), Timestamp(_, other)) => one == other || (is_utc(one) && is_utc(other)),
        (from, to) => is_text(from) && is_text(to) || is_bytes(from) && is_bytes(to),
    }
}

/// Returns true if no value fails to be cast, so that a cast that gives NULL for failures gives
/// none.
pub(super) fn never_fails(from: &DataType, to: &DataType) -> bool {
    let bits = |data_type: &DataType| data_type.primitive_width().unwrap_or(0);
    let is_wider = bits(from) < bits(to);
    from == to
        || from.is_signed_integer() && to.is_signed_integer() && is_wider
        || from.is_unsigned_integer() && to.is_integer() && is_wider
        || from.is_integer() && matches!(to, DataType::Float32 | DataType::Float64)
        || from.is_floating() && to.is_floating() && is_wider
        || is_text(from) && is_text(to)
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_bytes(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}
