//! Aligned memory for direct I/O.

use super::extents::ALIGNMENT;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Accessed by address only: transfers may use each buffer.
pub(super) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    each: usize,
}

// SAFETY: plain memory.
unsafe impl Send for Memory {}

impl Memory {
    /// Zeroed buffers of `each` bytes, a multiple of [`ALIGNMENT`].
    pub(super) fn zeroed(buffers: usize, each: usize) -> Self {
        let layout = Layout::from_size_align(each * buffers, ALIGNMENT as usize).expect("a few mebibytes");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout, each }
    }

    pub(super) fn whole(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.layout.size())
    }

    pub(super) fn part(&self, slot: usize, len: usize) -> NonNull<[u8]> {
        assert!(
            (slot + 1) * self.each <= self.layout.size() && len <= self.each,
            "no buffer has so many bytes"
        );
        // SAFETY: the offset lies within the allocation.
        NonNull::slice_from_raw_parts(unsafe { self.start.add(slot * self.each) }, len)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the owner waited for all transfers.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
