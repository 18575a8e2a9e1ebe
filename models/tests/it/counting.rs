//! An allocator that counts live bytes, and a way to ask it about one piece of work.
//!
//! It counts per thread, so that tests beside each other do not disturb it: the CPU backend allocates a tensor on the
//! thread that asks for it.

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

/// Bytes above the level at the start: highest during `work`, and held by its result. Everything happens on one thread
/// of its own, and once before it is measured: the matrix kernels would otherwise share their work with other threads,
/// and each thread keeps a scratch buffer from its first use.
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
