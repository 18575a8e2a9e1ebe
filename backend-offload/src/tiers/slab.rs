//! Slabs: host memory of exactly a block's size.

#[cfg(target_os = "linux")]
use super::hollow::HollowMemory;
use std::fmt;

/// A process has about 65,000 mappings: smaller buffers of a dry run come from the heap.
const SMALLEST_HOLLOW: usize = 1 << 20;

#[derive(Debug, Clone, Copy)]
pub enum SlabSource {
    Heap,
    /// Page-locked memory from this function, or ordinary memory on refusal. It fills the memory with zeros if asked
    /// to: a driver that computes nothing gives untouched pages, which are zeros.
    #[cfg_attr(
        not(any(feature = "cube", feature = "adapter", test)),
        expect(dead_code, reason = "only CUDA can pin host memory")
    )]
    Pinned(fn(usize, bool) -> Option<PinnedMemory>),
}

/// Zeros when allocated, its last contents when reused.
pub(crate) enum Slab {
    Heap(HeapMemory),
    Pinned(PinnedMemory),
    #[cfg(target_os = "linux")]
    Hollow(HollowMemory),
}

/// Aligned by hand: glibc's aligned memory seldom serves the next request of its size. A process could hold a fifth
/// more than its tiers count.
pub(crate) struct HeapMemory {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

const ALIGNMENT: usize = 64;

impl HeapMemory {
    /// `None` instead of aborting the process.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        let bytes = len.checked_add(ALIGNMENT - 1)?;
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).ok()?;
        memory.resize(bytes, 0);
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Some(Self { memory, start, len })
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

pub struct PinnedMemory {
    start: std::ptr::NonNull<u8>,
    len: usize,
    free: fn(std::ptr::NonNull<u8>, usize),
    /// For `free`: any thread may drop the memory.
    context: usize,
}

// SAFETY: this value alone owns the memory.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// # Safety
    /// `start` points to `len` initialised bytes that nothing else uses. Any thread may release them by
    /// `free(context)`.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "adapter", test)),
        expect(dead_code, reason = "only CUDA can pin host memory")
    )]
    pub(crate) unsafe fn new(
        start: std::ptr::NonNull<u8>,
        len: usize,
        free: fn(std::ptr::NonNull<u8>, usize),
        context: usize,
    ) -> Self {
        Self { start, len, free, context }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        (self.free)(self.start, self.context);
    }
}

impl Slab {
    /// Whether a buffer of a dry run is address space alone.
    pub(crate) fn is_hollow(len: usize) -> bool {
        cfg!(target_os = "linux") && len >= SMALLEST_HOLLOW
    }

    pub(crate) fn dry_run(len: usize) -> Option<Self> {
        #[cfg(target_os = "linux")]
        if Self::is_hollow(len) {
            return HollowMemory::new(len).map(Self::Hollow);
        }
        HeapMemory::zeroed(len).map(Self::Heap)
    }

    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self, Self::Pinned(_))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(memory) => memory.bytes(),
            // SAFETY: `PinnedMemory::new` promises `len` initialised bytes.
            Self::Pinned(memory) => unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), memory.len) },
            #[cfg(target_os = "linux")]
            Self::Hollow(memory) => memory.bytes(),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(memory) => memory.bytes_mut(),
            // SAFETY: as above, and `&mut self` makes the access exclusive.
            Self::Pinned(memory) => unsafe {
                std::slice::from_raw_parts_mut(memory.start.as_ptr(), memory.len)
            },
            #[cfg(target_os = "linux")]
            Self::Hollow(memory) => memory.bytes_mut(),
        }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_pinned() { "pinned" } else { "heap" };
        write!(f, "Slab({kind}, {} bytes)", self.bytes().len())
    }
}
