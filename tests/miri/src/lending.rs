//! Memory that is lent to Python: written through a pointer while others look at other rows of it, and given back.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;

use crate::tensor::{BatchSlice, Block, Converter, TensorBatch, TensorOptions};

fn converted(rows: usize, lends: bool) -> TensorBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    let ratios: ArrayRef = Arc::new((0..rows).map(|row| row as f32).collect::<Float32Array>());
    let rows = RecordBatch::try_from_iter([("id", ids), ("ratio", ratios)]).unwrap();
    let converter = Converter::try_new(&rows.schema(), &TensorOptions::default()).unwrap();
    let converter = if lends { converter.lending() } else { converter };
    converter.convert_portions(&[BatchSlice::decoded(rows, 0)]).unwrap()
}

/// As `PyBlock` does with a block: taken apart, written to, put together again, and kept for the next one.
#[test]
fn a_block_that_was_taken_apart_serves_another() {
    for round in 0..3_u8 {
        let (block, lent) = converted(9_000, false).into_memory();
        assert!(lent.iter().all(Option::is_none));
        let (bytes, start, len) = block.into_parts();
        let mut bytes = ManuallyDrop::new(bytes);
        let (length, capacity, allocation) = (bytes.len(), bytes.capacity(), bytes.as_mut_ptr());
        // SAFETY: the block lies in its allocation, which nothing else refers to.
        unsafe {
            let address = allocation.add(start);
            address.write_bytes(round, len);
            assert_eq!(address.add(len - 1).read(), round);
            Block::recycle(Vec::from_raw_parts(allocation, length, capacity));
        }
    }
}

/// As `PyBlock` does with what is lent: written to at any time, from any thread, while the buffer lives.
#[test]
fn what_is_lent_may_be_written_to() {
    // Lending pays for large columns only.
    let (block, lent) = converted(70_000, true).into_memory();
    let lent: Vec<_> = lent.into_iter().flatten().collect();
    assert_eq!(lent.len(), 2, "{} bytes in the block", block.as_slice().len());
    for memory in lent {
        let address = memory.address().expose_provenance();
        let memory = memory.into_buffer();
        let len = memory.len();
        let at = move || std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the bytes are alone in their allocation, which `memory` keeps until this thread was joined.
        let writer = std::thread::spawn(move || unsafe { at().write_bytes(7, len) });
        writer.join().unwrap();
        // SAFETY: as above; nobody writes any more.
        assert_eq!(unsafe { at().add(len - 1).read() }, 7);
    }
}

/// Portions of one decoded batch are lent each by itself: what is written to one of them does not show in another.
#[test]
fn rows_that_are_lent_do_not_overlap() {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..140_000));
    let rows = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let converter =
        Converter::try_new(&rows.schema(), &TensorOptions::default()).unwrap().lending();
    let (first, second) = BatchSlice::decoded(rows, 0).split_at(70_000);
    let (_, lent) = converter.convert_portions(&[first]).unwrap().into_memory();
    for lent in lent.iter().flatten() {
        // SAFETY: rows that are lent are looked at by nobody else.
        unsafe { lent.address().write_bytes(0xFF, lent.as_slice().len()) };
    }
    let rest = second.into_batch().unwrap();
    let ids = rest.column(0).as_primitive::<Int64Type>();
    assert_eq!((ids.value(0), ids.value(ids.len() - 1)), (70_000, 139_999));
}
