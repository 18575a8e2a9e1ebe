//! Counts each thread's live bytes.
//!
//! Parallel tests stay apart: the CPU backend allocates on the requesting thread.

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
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live)));
    }
}

// SAFETY: every call goes unchanged to the system allocator; counting allocates nothing.
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

/// Bytes above the starting level: the peak during `work`, and its result's. `work` runs on one thread, the second
/// time: matrix kernels keep scratch buffers.
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

pub(crate) fn live() -> isize {
    LIVE.get()
}
