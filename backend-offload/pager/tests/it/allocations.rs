//! The planner allocates nothing on the heap for a program that fits.

use pager::{Arena, BlockId, Limit, Oversized, Pager, Policy};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may allocate when its counter is gone.
        _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise holds for the system's allocator too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[test]
fn operations_of_a_program_that_fits_allocate_nothing() {
    let mut pager = Pager::new(Limit::bytes(1 << 30), Policy::Planned, Oversized::Refuse);
    let blocks: Vec<BlockId> = (0..50).map(|n| pager.insert(100 + n, Arena::UNPOOLED)).collect();
    let mut step = || {
        for pair in blocks.windows(2) {
            if !pager.begin(pair).expect("it fits") {
                for block in pair {
                    if !pager.get(*block).expect("it lives").place.is_on_device() {
                        let token = pager.return_started(*block).expect("nowhere yet");
                        pager.landed(token).expect("under way");
                    }
                }
            }
            pager.wrote(pair[1]).expect("on the device");
        }
        pager.mark_step();
    };
    // The trace has grown to a power of two behind its last reallocation.
    (0..30).for_each(|_| step());
    let before = ALLOCATIONS.get();
    (0..10).for_each(|_| step());
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(pager.counters().predicted > 1000);
}
