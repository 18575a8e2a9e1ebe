//! Stacks for the threads of a block, each above an inaccessible page.

use std::{ffi::c_void, ptr};

const STACK: usize = 256 << 10;
const GUARD: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct Stacks {
    start: *mut c_void,
    count: usize,
}

impl Default for Stacks {
    fn default() -> Self {
        Self { start: ptr::null_mut(), count: 0 }
    }
}

// SAFETY: an owned mapping, usable from any thread.
unsafe impl Send for Stacks {}

impl Stacks {
    /// Earlier stacks must not be in use.
    pub(super) fn provide(&mut self, count: usize) {
        if count <= self.count {
            return;
        }
        self.unmap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the system's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), count * STACK, protection, flags, -1, 0) };
        assert!(start != libc::MAP_FAILED, "no address space for the stacks of {count} threads");
        for index in 0..count {
            // SAFETY: the lowest page of each stack, within the fresh mapping.
            unsafe { libc::mprotect(start.wrapping_byte_add(index * STACK), GUARD, libc::PROT_NONE) };
        }
        (self.start, self.count) = (start, count);
    }

    pub(super) fn top(&self, index: usize) -> *mut c_void {
        assert!(index < self.count);
        self.start.wrapping_byte_add((index + 1) * STACK)
    }

    fn unmap(&mut self) {
        if self.count > 0 {
            // SAFETY: mapped by `provide` with this length.
            unsafe { libc::munmap(self.start, self.count * STACK) };
            self.count = 0;
        }
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        self.unmap();
    }
}
