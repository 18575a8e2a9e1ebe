//! An allocator that counts the live bytes of each thread.
//!
//! Counting per thread isolates parallel tests: the CPU backend allocates tensors on the thread that requests them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let counted = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        live.get()
    });
    if let Ok(live) = counted {
        // The peak lives exactly as long as the live count.
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live)));
    }
}

// SAFETY: every call is passed on unchanged to the system allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes above the level at the start: the peak during `work`, and those that its result holds. `work` runs on a thread
/// of its own, once before it is measured. Otherwise matrix kernels would share work with other threads, and each
/// thread keeps a scratch buffer from its first use.
pub(crate) fn bytes<T>(work: impl Fn() -> T + Send + Sync) -> (usize, usize) {
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread can be started");
    alone.install(|| {
        drop(work());
        let before = live();
        PEAK.set(before);
        let result = work();
        let held = live() - before;
        drop(result);
        ((PEAK.get() - before) as usize, held.max(0) as usize)
    })
}

/// Bytes that this thread has allocated and not freed.
pub(crate) fn live() -> isize {
    LIVE.get()
}
