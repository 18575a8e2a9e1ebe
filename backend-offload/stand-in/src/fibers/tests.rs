//! Fibers alone, with bodies in Rust.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;

const THREADS: usize = 70;

/// The fibers run on one thread, so cells suffice.
struct Board {
    position: Cell<*const Position>,
    first: [Cell<u64>; THREADS],
    second: [Cell<u64>; THREADS],
}

impl Board {
    fn thread(&self) -> usize {
        // SAFETY: the position outlives the block.
        unsafe { (*self.position.get()).thread.x as usize }
    }
}

/// Runs one block at a time, as under the driver's lock.
fn run(body: unsafe extern "C" fn(*mut *mut c_void), threads: u32) -> Board {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one: MutexGuard<()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut position = Position { block_dim: Dim { x: threads, y: 1, z: 1 }, ..Position::default() };
    let board = Board {
        position: Cell::new(&raw const position),
        first: [const { Cell::new(0) }; THREADS],
        second: [const { Cell::new(0) }; THREADS],
    };
    let mut arguments = [(&raw const board).cast_mut().cast::<c_void>()];
    // SAFETY: every body of this file takes the board.
    unsafe { Fibers::default().run(body, arguments.as_mut_ptr(), &raw mut position) };
    board
}

/// # Safety
/// Only for bodies that `run` started.
unsafe fn board(arguments: *mut *mut c_void) -> &'static Board {
    // SAFETY: `run` passes a board that outlives the block.
    unsafe { &*(*arguments).cast::<Board>() }
}

fn exchange(mask: u32, value: u64) -> (u32, [u64; 32]) {
    let mut slots = ptr::null();
    // SAFETY: a variable of our own, then 32 slots valid until the second next exchange.
    unsafe {
        let came = warp_exchange(mask, value, &raw mut slots);
        (came, *slots.cast())
    }
}

#[test]
fn no_thread_passes_a_barrier_before_all_have_come() {
    unsafe extern "C" fn body(arguments: *mut *mut c_void) {
        // SAFETY: started by `run`.
        let board = unsafe { board(arguments) };
        let me = board.thread();
        for round in 1..=3 {
            board.first[me].set(round);
            barrier();
            let behind = board.first.iter().filter(|at| at.get() < round).count();
            board.second[me].set(board.second[me].get() + behind as u64);
            barrier();
        }
    }
    let board = run(body, THREADS as u32);
    assert!(board.first.iter().all(|at| at.get() == 3));
    assert!(board.second.iter().all(|behind| behind.get() == 0));
}

#[test]
fn each_warp_exchanges_values_among_its_own_lanes() {
    unsafe extern "C" fn body(arguments: *mut *mut c_void) {
        // SAFETY: started by `run`.
        let board = unsafe { board(arguments) };
        let me = board.thread();
        let (came, values) = exchange(!0, me as u64 * 10);
        board.first[me].set(values[(me % 32) ^ 1]);
        board.second[me].set(u64::from(came));
    }
    let board = run(body, THREADS as u32);
    for me in 0..THREADS {
        assert_eq!(board.first[me].get(), (me as u64 ^ 1) * 10);
        assert_eq!(board.second[me].get(), if me < 64 { 0xffff_ffff } else { 0x3f });
    }
}

#[test]
fn consecutive_exchanges_do_not_mix_their_values() {
    unsafe extern "C" fn body(arguments: *mut *mut c_void) {
        // SAFETY: started by `run`.
        let board = unsafe { board(arguments) };
        let me = board.thread();
        let mut sum = me as u64;
        for distance in [16, 8, 4, 2, 1] {
            sum += exchange(!0, sum).1[(me % 32) ^ distance];
        }
        board.first[me].set(sum);
    }
    let board = run(body, 64);
    assert!(board.first[..32].iter().all(|sum| sum.get() == (0..32).sum()));
    assert!(board.first[32..64].iter().all(|sum| sum.get() == (32..64).sum()));
}

#[test]
fn ended_lanes_are_not_waited_for() {
    unsafe extern "C" fn body(arguments: *mut *mut c_void) {
        // SAFETY: started by `run`.
        let board = unsafe { board(arguments) };
        let me = board.thread();
        if me % 2 == 1 {
            return;
        }
        board.first[me].set(u64::from(exchange(!0, 1).0));
        board.second[me].set(u64::from(active()));
        barrier();
    }
    let board = run(body, 32);
    assert_eq!((board.first[0].get(), board.second[30].get()), (0x5555_5555, 0x5555_5555));
}

#[test]
fn a_mask_lets_half_a_warp_exchange_without_the_other() {
    unsafe extern "C" fn body(arguments: *mut *mut c_void) {
        // SAFETY: started by `run`.
        let board = unsafe { board(arguments) };
        let me = board.thread();
        if me < 16 {
            let (came, values) = exchange(0xffff, 5);
            board.first[me].set(u64::from(came) + values[15]);
        }
        barrier();
    }
    let board = run(body, 32);
    assert!(board.first[..16].iter().all(|at| at.get() == 0xffff + 5));
}

#[test]
fn lanes_take_a_turn_together_even_after_a_condition() {
    const LANES: usize = 32;
    fn count(cells: &[Cell<u64>; THREADS]) -> usize {
        cells.iter().take(LANES).filter(|cell| cell.get() > 0).count()
    }
    unsafe extern "C" fn all_came(of: *mut c_void) -> bool {
        // SAFETY: the board, which outlives the block.
        count(unsafe { &(*of.cast::<Board>()).first }) == LANES
    }
    unsafe extern "C" fn body(arguments: *mut *mut c_void) {
        // SAFETY: started by `run`.
        let board = unsafe { board(arguments) };
        let me = board.thread();
        board.first[me].set(1);
        // The last lane goes on at once, as at a barrier in shared memory.
        if count(&board.first) < LANES {
            wait_until(all_came, ptr::from_ref(board).cast_mut().cast());
        }
        board.second[me].set(1);
        // Half the lanes take one turn more.
        if me < LANES / 2 {
            turn(1);
            board.first[me].set(2);
        }
        turn(2);
        let parted = board.first.iter().take(LANES / 2).all(|cell| cell.get() == 2);
        turn(3);
        board.first[me].set(if parted { count(&board.second) as u64 } else { 0 });
    }
    let board = run(body, LANES as u32);
    assert!(board.first.iter().take(LANES).all(|seen| seen.get() == LANES as u64));
}
