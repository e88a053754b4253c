//! The one allocation of a finished batch.

use arrow::buffer::Buffer;

use super::dtype::DType;
use crate::pool;

/// Every block and every slot in it begins at a multiple of this many bytes: a cache line, and the
/// widest vector register.
pub const ALIGNMENT: usize = 64;

/// Where one array of elements lies in a [`Block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First byte, from the start of the block; a multiple of [`ALIGNMENT`]. 0 in memory that is
    /// lent.
    pub offset: usize,
    /// Number of elements.
    pub count: usize,
    /// Type of the elements.
    pub dtype: DType,
}

/// The memory of one column as it was decoded, whose rows are no one else's from now on.
#[derive(Debug)]
pub struct Lent(Buffer);

impl Lent {
    pub(super) fn new(values: Buffer) -> Self {
        Self(values)
    }

    /// The elements as they lie in memory.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// Where the elements may be written: the pointer that was exposed when
    /// [`alone`](super::buffer_ownership) found that nobody else looks at them, or when the
    /// [`Matrix`](crate::matrix) was finished of which the same was found.
    pub fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0.as_ptr().addr())
    }

    /// The owner of the memory. Others may hold the same allocation, but look at other rows of it.
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}

impl Slot {
    fn len_bytes(&self) -> usize {
        self.count * self.dtype.size()
    }
}

/// The memory of one batch: each array of elements in its own slot. Once dropped, it serves a later
/// batch.
#[derive(Debug)]
pub struct Block {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Block {
    /// A block with one slot for each `(dtype, count)`, in this order; None where there is no such
    /// memory. Slots are zeroed unless the caller fills them: then they, but not the gaps between
    /// them, may show an earlier batch.
    pub(super) fn allocate(wanted: &[(DType, usize)], filled: bool) -> Option<(Self, Vec<Slot>)> {
        let mut len = 0_usize;
        let mut slots = Vec::with_capacity(wanted.len());
        for &(dtype, count) in wanted {
            let offset = len.checked_next_multiple_of(ALIGNMENT)?;
            slots.push(Slot { offset, count, dtype });
            len = count.checked_mul(dtype.size())?.checked_add(offset)?;
        }
        let capacity = len.checked_add(ALIGNMENT).filter(|bytes| *bytes <= isize::MAX as usize)?;
        let (bytes, is_fresh) = pool::take(capacity)?;
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        let mut block = Self { bytes, start, len };
        if !is_fresh {
            block.clear(&slots, filled);
        }
        Some((block, slots))
    }

    /// Zeroes the gaps between slots, or everything.
    fn clear(&mut self, slots: &[Slot], filled: bool) {
        let block = &mut self.bytes[self.start..self.start + self.len];
        if !filled {
            return block.fill(0);
        }
        let ends = slots.iter().map(|slot| slot.offset + slot.len_bytes());
        let starts = slots.iter().skip(1).map(|slot| slot.offset);
        for (end, next) in ends.zip(starts) {
            block[end..next].fill(0);
        }
    }

    /// The whole block.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The elements of `slot` as they lie in memory.
    pub fn slot(&self, slot: Slot) -> &[u8] {
        &self.as_slice()[slot.offset..slot.offset + slot.len_bytes()]
    }

    /// The elements of `slot`, to be written.
    pub(super) fn slot_mut(&mut self, slot: Slot) -> &mut [u8] {
        let first = self.start + slot.offset;
        &mut self.bytes[first..first + slot.len_bytes()]
    }

    /// The allocation, the position of the block in it, and the block's length, all in bytes.
    pub fn into_parts(mut self) -> (Vec<u8>, usize, usize) {
        (std::mem::take(&mut self.bytes), self.start, self.len)
    }

    /// Takes back the allocation of [`into_parts`](Self::into_parts), for blocks to come.
    pub fn recycle(allocation: Vec<u8>) {
        pool::give(allocation);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        pool::give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dropped block full of other bytes is the memory of the next one of its size.
    #[test]
    fn nothing_of_an_earlier_batch_shows_in_gaps_or_in_slots_that_nobody_fills() {
        // Of a size that no other test has; Miri takes its time for each byte.
        let rows = if cfg!(miri) { 60_001 } else { 3_000_001 };
        let wanted = [(DType::Bool, rows), (DType::Int64, 3), (DType::Bool, 70)];
        for filled in [true, false] {
            let (mut old, _) = Block::allocate(&wanted, true).unwrap();
            let address = old.bytes.as_ptr();
            old.bytes.fill(0xA5);
            drop(old);
            let (new, slots) = Block::allocate(&wanted, filled).unwrap();
            assert_eq!(new.bytes.as_ptr(), address, "it was not used again");
            let in_slot = |at: &usize| {
                slots.iter().any(|slot| (slot.offset..slot.offset + slot.len_bytes()).contains(at))
            };
            let shown = (0..new.len).filter(|at| !filled || !in_slot(at));
            assert!(shown.into_iter().all(|at| new.as_slice()[at] == 0), "filled: {filled}");
        }
    }
}
