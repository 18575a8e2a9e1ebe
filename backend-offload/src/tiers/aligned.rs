//! Memory that a disk reads and writes directly.

use super::extents::ALIGNMENT;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Memory of all buffers, aligned as the disk wants it. Buffers are reached by address alone, as each may be somebody else's.
pub(super) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    /// Bytes of one buffer.
    each: usize,
}

// SAFETY: it is plain memory; who may touch which part of it does not depend on the thread.
unsafe impl Send for Memory {}

impl Memory {
    /// So many buffers of `each` bytes, which are a multiple of what the disk wants.
    pub(super) fn zeroed(buffers: usize, each: usize) -> Self {
        let layout = Layout::from_size_align(each * buffers, ALIGNMENT as usize).expect("a few mebibytes");
        // SAFETY: it is of some bytes.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout, each }
    }

    pub(super) fn whole(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.layout.size())
    }

    /// The first `len` bytes of a buffer.
    pub(super) fn part(&self, slot: usize, len: usize) -> NonNull<[u8]> {
        assert!(
            (slot + 1) * self.each <= self.layout.size() && len <= self.each,
            "no buffer has so many bytes"
        );
        // SAFETY: it lies within the allocation.
        NonNull::slice_from_raw_parts(unsafe { self.start.add(slot * self.each) }, len)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and its owner waited for all who use it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
