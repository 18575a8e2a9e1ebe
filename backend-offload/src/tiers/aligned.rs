//! Aligned memory for direct I/O.

use super::extents::ALIGNMENT;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Accessed by address only: transfers may use each buffer.
pub(super) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    each: usize,
    /// Replacements by buffer number. Neither they nor the replaced buffers are ever freed.
    replaced: Vec<(usize, NonNull<u8>)>,
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
        Self { start, layout, each, replaced: Vec::new() }
    }

    /// Takes another, zeroed buffer for `slot`: a transfer may use the former one for ever.
    pub(super) fn replace(&mut self, slot: usize) {
        let another = ManuallyDrop::new(Self::zeroed(1, self.each));
        self.replaced.retain(|(other, _)| *other != slot);
        self.replaced.push((slot, another.start));
    }

    pub(super) fn replace_by_copy(&mut self, slot: usize) {
        let before = self.part(slot, self.each);
        self.replace(slot);
        let mut after = self.part(slot, self.each);
        // SAFETY: two separate buffers; nothing writes the former one, and nothing else knows the new one.
        unsafe { after.as_mut().copy_from_slice(before.as_ref()) };
    }

    pub(super) fn whole(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.layout.size())
    }

    pub(super) fn part(&self, slot: usize, len: usize) -> NonNull<[u8]> {
        assert!(
            (slot + 1) * self.each <= self.layout.size() && len <= self.each,
            "no buffer has so many bytes"
        );
        let replaced = self.replaced.iter().find(|(other, _)| *other == slot);
        let start = match replaced {
            Some((_, start)) => *start,
            // SAFETY: the offset lies within the allocation.
            None => unsafe { self.start.add(slot * self.each) },
        };
        NonNull::slice_from_raw_parts(start, len)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.replaced.is_empty() {
            // SAFETY: allocated with this layout; the owner waited for all transfers.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}
