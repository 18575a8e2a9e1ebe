//! Counts the process's allocations and allocated bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Excludes wgpu's lists per command encoder, whose size depends on unrelated buffers.
pub const SMALL: usize = 128;

static SMALL_ONES: AtomicU64 = AtomicU64::new(0);

static LARGER_ONES: AtomicU64 = AtomicU64::new(0);

static BYTES: AtomicI64 = AtomicI64::new(0);

pub fn small_so_far() -> u64 {
    SMALL_ONES.load(Ordering::Relaxed)
}

pub fn so_far() -> u64 {
    small_so_far() + LARGER_ONES.load(Ordering::Relaxed)
}

pub fn live_bytes() -> i64 {
    BYTES.load(Ordering::Relaxed)
}

fn note(size: usize) {
    BYTES.fetch_add(size as i64, Ordering::Relaxed);
    let count = if size <= SMALL { &SMALL_ONES } else { &LARGER_ONES };
    count.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        note(size);
        // SAFETY: as above.
        unsafe { System.realloc(start, layout, size) }
    }
}
