//! The one allocation of a finished batch.

use super::dtype::DType;

/// Every block and every slot in it begins at a multiple of this many bytes: a cache line, and the
/// widest vector register.
pub const ALIGNMENT: usize = 64;

/// Where one array of elements lies in a [`Block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First byte, from the start of the block; a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// Number of elements.
    pub count: usize,
    /// Type of the elements.
    pub dtype: DType,
}

impl Slot {
    fn len_bytes(&self) -> usize {
        self.count * self.dtype.size()
    }
}

/// The memory of one batch: each array of elements in its own slot.
///
/// Zeroed on allocation, which costs next to nothing for large batches (the allocator asks the system
/// for fresh pages), so that the gaps between slots never show foreign memory.
#[derive(Debug)]
pub struct Block {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Block {
    /// A block with one slot for each `(dtype, count)`, in this order; None where the sizes exceed the
    /// address space.
    pub(super) fn allocate(wanted: &[(DType, usize)]) -> Option<(Self, Vec<Slot>)> {
        let mut len = 0_usize;
        let mut slots = Vec::with_capacity(wanted.len());
        for &(dtype, count) in wanted {
            let offset = len.checked_next_multiple_of(ALIGNMENT)?;
            slots.push(Slot { offset, count, dtype });
            len = count.checked_mul(dtype.size())?.checked_add(offset)?;
        }
        let capacity = len.checked_add(ALIGNMENT).filter(|bytes| *bytes <= isize::MAX as usize)?;
        let bytes = vec![0_u8; capacity];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Some((Self { bytes, start, len }, slots))
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
    pub fn into_parts(self) -> (Vec<u8>, usize, usize) {
        (self.bytes, self.start, self.len)
    }
}
