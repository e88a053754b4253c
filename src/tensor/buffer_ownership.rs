//! Decoded columns whose memory is theirs alone: they may be handed out to be written to, without a
//! copy.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, FixedSizeListArray, downcast_primitive_array, make_array,
};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;

use crate::Result;

/// The array, and whether nothing else holds its values' memory: no other array, slice, column or
/// cache, and no mapped file or other library. Only arrays without nulls are checked; their
/// validity bitmap is dropped.
///
/// Taking the array is the proof: memory that somebody else could see cannot be taken out of it.
pub(crate) fn sole_owner(array: ArrayRef) -> (ArrayRef, bool) {
    if array.null_count() > 0 {
        return (array, false);
    }
    if let DataType::FixedSizeList(_, 1..) = array.data_type() {
        let (field, width, values, _) = array.as_fixed_size_list().clone().into_parts();
        drop(array);
        let (values, is_alone) = sole_owner(values);
        return (Arc::new(FixedSizeListArray::new(field, width, values, None)), is_alone);
    }
    let Some(values) = native_values(&array) else { return (array, false) };
    let (data_type, len) = (array.data_type().clone(), array.len());
    drop(array);
    let (values, is_alone) = match values.into_mutable() {
        Ok(mut values) => {
            // A pointer that may be written through: that of a `Buffer` may only be read through.
            // See `Lent::address`.
            values.as_mut_ptr().expose_provenance();
            (Buffer::from(values), true)
        }
        Err(values) => (values, false),
    };
    // SAFETY: type, length and values are those of the array that was taken apart, which had no
    // nulls.
    let data =
        unsafe { ArrayData::builder(data_type).len(len).add_buffer(values).build_unchecked() };
    (make_array(data), is_alone)
}

/// Memory of a column that a batch may hold, however little of it is its own.
const HELD_BYTES: usize = 256 << 10;

/// Beyond that, how many times as much as is its own.
const HELD_TIMES: usize = 8;

/// An array that may be kept for long: where it is a small part of much memory, such as a shuffle
/// window, numbers are copied.
///
/// # Errors
/// Errors of the format's own checks, when it is put together again.
pub(super) fn apart(array: &ArrayRef) -> Result<ArrayRef> {
    let held = native_values(array).filter(|values| {
        values.capacity() > HELD_BYTES && values.capacity() / HELD_TIMES > values.len()
    });
    let Some(values) = held else { return Ok(Arc::clone(array)) };
    let values = Buffer::from(values.as_slice());
    let data = ArrayData::builder(array.data_type().clone()).len(array.len()).add_buffer(values);
    Ok(make_array(data.nulls(array.nulls().cloned()).build()?))
}

/// The memory of the values of a primitive array; None for other arrays.
pub(super) fn native_values(array: &dyn Array) -> Option<Buffer> {
    downcast_primitive_array!(
        array => Some(array.values().inner().clone()),
        _ => None,
    )
}

#[cfg(test)]
mod tests {
    use arrow::array::{BooleanArray, Float32Array, Int64Array, StringArray};
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn a_small_part_of_much_memory_is_copied() {
        let all: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
        let held = |array: &ArrayRef| native_values(array).unwrap().capacity();
        let part = apart(&all.slice(5000, 700)).unwrap();
        assert_eq!(&part, &all.slice(5000, 700));
        assert!(held(&part) < 10_000);
        assert_eq!(held(&apart(&all.slice(0, 50_000)).unwrap()), held(&all));
        let few: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10_000));
        assert_eq!(held(&apart(&few.slice(0, 1)).unwrap()), held(&few));
        let mut holes: Vec<Option<i64>> = vec![Some(1); 100_000];
        holes[7] = None;
        let holes: ArrayRef = Arc::new(Int64Array::from(holes));
        assert_eq!(&apart(&holes.slice(5, 9)).unwrap(), &holes.slice(5, 9));
    }

    fn numbers() -> ArrayRef {
        Arc::new(Int64Array::from((0..100).collect::<Vec<i64>>()))
    }

    fn vectors() -> ArrayRef {
        let values: ArrayRef = Arc::new(Float32Array::from(vec![0.5; 12]));
        let field = Arc::new(Field::new("item", DataType::Float32, false));
        Arc::new(FixedSizeListArray::new(field, 4, values, None))
    }

    #[test]
    fn what_nobody_else_holds_is_alone_and_keeps_its_values() {
        for array in [numbers(), vectors()] {
            let address = array.to_data().buffers().first().map(Buffer::as_ptr);
            let copy = make_array(array.to_data().slice(0, array.len()));
            let expected = format!("{copy:?}");
            drop(copy);
            let (array, is_alone) = sole_owner(array);
            assert!(is_alone, "{:?}", array.data_type());
            assert_eq!(format!("{array:?}"), expected);
            assert_eq!(array.to_data().buffers().first().map(Buffer::as_ptr), address);
        }
    }

    #[test]
    fn what_anybody_else_holds_is_not() {
        for array in [numbers(), vectors()] {
            let other = Arc::clone(&array);
            assert!(!sole_owner(array).1);
            let slice = other.slice(0, 2);
            assert!(!sole_owner(other).1);
            // What it was cut from is gone, but for the slice.
            let values = slice.to_data();
            assert!(!sole_owner(slice).1);
            drop(values);
        }
        let memory = Buffer::from_vec((0..10_i64).collect::<Vec<_>>());
        let column = |memory: Buffer| Arc::new(Int64Array::new(memory.into(), None)) as ArrayRef;
        assert!(!sole_owner(column(memory.clone())).1);
        assert!(sole_owner(column(memory)).1);
    }

    /// Memory of another library, aligned as numbers are.
    struct Foreign(Buffer);

    impl AsRef<[u8]> for Foreign {
        fn as_ref(&self) -> &[u8] {
            self.0.as_slice()
        }
    }

    #[test]
    fn memory_of_others_nulls_and_other_types_are_not() {
        let foreign = Foreign(Buffer::from_vec(vec![0_i64; 10]));
        let foreign = Buffer::from(bytes::Bytes::from_owner(foreign));
        let foreign: ArrayRef = Arc::new(Int64Array::new(foreign.into(), None));
        assert!(!sole_owner(foreign).1);
        let nulls: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        assert!(!sole_owner(nulls).1);
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        assert!(!sole_owner(texts).1);
        let bits: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
        assert!(!sole_owner(bits).1);
    }
}
