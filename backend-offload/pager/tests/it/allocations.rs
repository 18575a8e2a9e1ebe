//! The pager allocates nothing for a program that fits, and little for others.

use pager::{Arena, BlockId, Limit, Link, Oversized, Pager, Policy, Rooms, Step};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread may allocate at its end, when its counter is gone.
        _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the same contract.
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
                    if !pager.get(*block).expect("it lives").is_on_device() {
                        let token =
                            pager.started(Step::Bring { block: *block, from: None }).expect("nowhere yet");
                        pager.ended(token, true).expect("under way");
                    }
                }
            }
            pager.wrote(pair[1]).expect("on the device");
        }
        pager.mark_step();
    };
    // The trace will not reallocate soon.
    (0..30).for_each(|_| step());
    let before = ALLOCATIONS.get();
    (0..10).for_each(|_| step());
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(pager.counters().ahead.predicted > 1000);
}

/// Takes a step, whose move ends at once.
fn take(pager: &mut Pager, step: Step) {
    let token = match step {
        Step::Evict { .. } | Step::Bring { .. } => pager.started(step),
        Step::Sweep => return pager.swept(),
        Step::Trim => return pager.trimmed(),
        other => panic!("{other:?} is no step of moves that land at once"),
    };
    pager.ended(token.expect("it may move"), true).expect("it is under way");
}

/// A step over blocks of which half fits, with moves ahead.
#[test]
fn operations_of_a_program_of_which_half_fits_allocate_at_most_once_each() {
    const BLOCKS: u64 = 50;
    const STEPS: u64 = 10;
    let mut pager = Pager::new(Limit::bytes(BLOCKS * 100 / 2), Policy::Planned, Oversized::Refuse);
    pager.look_ahead(true);
    let blocks: Vec<BlockId> = (0..BLOCKS).map(|_| pager.insert(100, Arena::UNPOOLED)).collect();
    let rooms = || Rooms { host: Limit::NONE, disk: Limit::bytes(0), page: 1 };
    let mut step = || {
        for pair in blocks.windows(2) {
            let mut is_ready = pager.begin(pair).expect("it fits");
            while !is_ready {
                let step = pager.next_step(&rooms).expect("it fits");
                is_ready = step == Step::Ready;
                if !is_ready {
                    take(&mut pager, step);
                }
            }
            while let Some(step) = pager.prefetch(Link::Device, &rooms) {
                take(&mut pager, step);
            }
            pager.wrote(pair[1]).expect("on the device");
        }
        pager.mark_step();
    };
    (0..30).for_each(|_| step());
    let before = ALLOCATIONS.get();
    (0..STEPS).for_each(|_| step());
    let (made, operations) = (ALLOCATIONS.get() - before, STEPS * (BLOCKS - 1));
    println!("{made} allocations for {operations} operations");
    let counters = pager.counters();
    assert!(counters.ahead.left_ahead > 50 && counters.ahead.brought_ahead > 50, "{counters:?}");
    assert!(made > 0 && made <= operations, "{made} allocations for {operations} operations");
}
