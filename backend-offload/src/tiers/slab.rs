//! Slabs: pieces of host memory of exactly the size of a block.

use std::fmt;

/// Kind of memory a device wants its host copies in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SlabSource {
    /// Ordinary memory.
    Heap,
    /// Page-locked memory from this function, ordinary memory when it refuses.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "only CUDA can pin host memory"))]
    Pinned(fn(usize) -> Option<PinnedMemory>),
}

/// Host memory, zeroed when first taken and otherwise with what was last put there.
pub(crate) enum Slab {
    Heap(Box<[u8]>),
    Pinned(PinnedMemory),
}

/// Page-locked memory and the way to give it back.
pub(crate) struct PinnedMemory {
    start: std::ptr::NonNull<u8>,
    len: usize,
    free: fn(std::ptr::NonNull<u8>),
}

// SAFETY: the memory is owned by this value alone; page-locked memory may be used from any thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// # Safety
    /// `start` points to `len` initialised bytes that nobody else uses, and `free` releases them.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "only CUDA can pin host memory"))]
    pub(crate) unsafe fn new(
        start: std::ptr::NonNull<u8>,
        len: usize,
        free: fn(std::ptr::NonNull<u8>),
    ) -> Self {
        Self { start, len, free }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        (self.free)(self.start);
    }
}

impl Slab {
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self, Self::Pinned(_))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(memory) => memory,
            // SAFETY: `PinnedMemory::new` promises `len` initialised bytes.
            Self::Pinned(memory) => unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), memory.len) },
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(memory) => memory,
            // SAFETY: as above, and `&mut self` makes the access exclusive.
            Self::Pinned(memory) => unsafe {
                std::slice::from_raw_parts_mut(memory.start.as_ptr(), memory.len)
            },
        }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_pinned() { "pinned" } else { "heap" };
        write!(f, "Slab({kind}, {} bytes)", self.bytes().len())
    }
}
