//! A block whose threads wait for each other: one fiber per thread, all on the launching thread.
//!
//! A fiber runs until its thread waits. The order is fixed, so results are deterministic.
//!
//! A warp exchange ends once all running lanes of the mask arrive. Two sets of slots suffice: all lanes leave an
//! exchange before any starts its second next one.

mod stacks;
mod switch;

use std::{
    cell::Cell,
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    findings::{Fault, Finding},
    report,
};
use stacks::Stacks;
use switch::switch;

#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Dim {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

impl Dim {
    pub(crate) fn count(self) -> u64 {
        u64::from(self.x) * u64::from(self.y) * u64::from(self.z)
    }
}

/// `stand_in_position` of the device headers.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Position {
    pub(crate) thread: Dim,
    pub(crate) block: Dim,
    pub(crate) block_dim: Dim,
    pub(crate) grid_dim: Dim,
    pub(crate) serial: u64,
}

pub(crate) type KernelFn = unsafe extern "C" fn(*mut *mut c_void);

/// `stand_in_services` of the device headers: functions that kernels may call.
#[repr(C)]
pub(crate) struct Services {
    barrier: extern "C" fn(),
    warp_exchange: unsafe extern "C" fn(u32, u64, *mut *const u64) -> u32,
    absent_lane: extern "C" fn(),
    active: extern "C" fn() -> u32,
    wait_until: extern "C" fn(Holds, *mut c_void),
    turn: extern "C" fn(u32),
    executed: extern "C" fn(u32),
}

type Holds = unsafe extern "C" fn(*mut c_void) -> bool;

pub(crate) static SERVICES: Services = Services {
    barrier,
    warp_exchange,
    absent_lane,
    active,
    wait_until,
    turn,
    executed: report::instruction_executed,
};

const WARP: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    AtBarrier,
    AtWarpExchange,
    AtCondition,
    AtTurn,
    Done,
}

struct Fiber {
    stack_pointer: Cell<*mut c_void>,
    state: Cell<State>,
    thread: Dim,
    lane: u32,
    warp: usize,
    participants: Cell<u32>,
    condition: Cell<Option<(Holds, *mut c_void)>>,
    turn: Cell<u32>,
}

#[derive(Default)]
struct Warp {
    slots: [[Cell<u64>; WARP]; 2],
    generation: Cell<usize>,
    arrived: Cell<u32>,
    alive: Cell<u32>,
}

/// Cells: the fibers and the loop that resumes them share it.
struct Block {
    fibers: Vec<Fiber>,
    warps: Vec<Warp>,
    current: Cell<usize>,
    resumer: Cell<*mut c_void>,
    body: KernelFn,
    arguments: *mut *mut c_void,
    position: *mut Position,
}

/// At most one, under the driver's lock.
static RUNNING: AtomicPtr<Block> = AtomicPtr::new(ptr::null_mut());

#[derive(Debug, Default)]
pub(crate) struct Fibers {
    stacks: Stacks,
}

impl Fibers {
    /// # Safety
    /// `body` must accept `arguments` and read its place from `position`, which nothing else may use meanwhile.
    pub(crate) unsafe fn run(
        &mut self,
        body: KernelFn,
        arguments: *mut *mut c_void,
        position: *mut Position,
    ) {
        // SAFETY: promised by the caller.
        let dim = unsafe { (*position).block_dim };
        let count = dim.count() as usize;
        self.stacks.provide(count);

        let fiber = |index: usize| {
            let (x, y) = (dim.x as usize, dim.y as usize);
            Fiber {
                stack_pointer: Cell::new(switch::prepare(self.stacks.top(index), main)),
                state: Cell::new(State::Ready),
                thread: Dim { x: (index % x) as u32, y: (index / x % y) as u32, z: (index / x / y) as u32 },
                lane: (index % WARP) as u32,
                warp: index / WARP,
                participants: Cell::new(0),
                condition: Cell::new(None),
                turn: Cell::new(0),
            }
        };
        let block = Block {
            fibers: (0..count).map(fiber).collect(),
            warps: (0..count.div_ceil(WARP)).map(|_| Warp::default()).collect(),
            current: Cell::new(0),
            resumer: Cell::new(ptr::null_mut()),
            body,
            arguments,
            position,
        };

        for fiber in &block.fibers {
            let alive = &block.warps[fiber.warp].alive;
            alive.set(alive.get() | 1 << fiber.lane);
        }
        RUNNING.store((&raw const block).cast_mut(), Ordering::Relaxed);
        block.run();
        RUNNING.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

impl Block {
    fn run(&self) {
        while self.fibers.iter().any(|fiber| fiber.state.get() != State::Done) {
            let mut moved = false;
            for (index, fiber) in self.fibers.iter().enumerate() {
                while fiber.state.get() == State::Ready {
                    self.resume(index);
                    moved = true;
                }
            }
            if !moved && !release_conditions(self.fibers.iter()) {
                self.release_waiting();
            }
        }
    }

    fn resume(&self, index: usize) {
        let fiber = &self.fibers[index];
        self.current.set(index);
        // SAFETY: the position is the running kernel's, see `Fibers::run`. `prepare` or the last switch left the stack
        // pointer, and the fiber switches back before this block ends.
        unsafe {
            (*self.position).thread = fiber.thread;
            switch(self.resumer.as_ptr(), fiber.stack_pointer.get());
        }
        self.end_turn(fiber.warp);
        if fiber.state.get() == State::Done {
            let warp = &self.warps[fiber.warp];
            warp.alive.set(warp.alive.get() & !(1 << fiber.lane));
            if warp.arrived.get() != 0 && warp.arrived.get() == warp.alive.get() {
                self.release_warp(fiber.warp);
            }
        }
    }

    /// Once no lane of the warp can go on, those at the first turn of the text do: so lanes that parted meet again.
    fn end_turn(&self, warp: usize) {
        let lanes = || self.fibers.iter().skip(warp * WARP).take(WARP);
        let at_turn = || lanes().filter(|lane| lane.state.get() == State::AtTurn);
        let Some(first) = at_turn().map(|lane| lane.turn.get()).min() else { return };
        if lanes().any(|lane| lane.state.get() == State::Ready) || release_conditions(lanes()) {
            return;
        }
        at_turn().filter(|lane| lane.turn.get() == first).for_each(|lane| lane.state.set(State::Ready));
    }

    /// With no fiber ready: ends exchanges that some lanes did not join; without any, opens the barrier.
    fn release_waiting(&self) {
        let mut released = false;
        for (index, warp) in self.warps.iter().enumerate().filter(|(_, warp)| warp.arrived.get() != 0) {
            let (came, alive) = (warp.arrived.get(), warp.alive.get());
            if came != alive {
                let circumstances = format!("lanes {came:#010x} of {alive:#010x} exchanged values");
                Fault::new(Finding::PartOfWarp, circumstances).report();
            }
            self.release_warp(index);
            released = true;
        }
        let count = |state| self.fibers.iter().filter(|fiber| fiber.state.get() == state).count();
        let stuck = count(State::AtCondition);
        if !released && stuck > 0 {
            let circumstances = format!(
                "{stuck} of {} threads wait for arrivals or bytes that never come, and {} stand at a barrier",
                self.fibers.len(),
                count(State::AtBarrier)
            );
            Fault::new(Finding::EndlessWait, circumstances).report();
        } else if !released {
            self.fibers
                .iter()
                .filter(|fiber| fiber.state.get() == State::AtBarrier)
                .for_each(|fiber| fiber.state.set(State::Ready));
        }
    }

    fn release_warp(&self, index: usize) {
        let warp = &self.warps[index];
        let came = warp.arrived.replace(0);
        warp.generation.set(warp.generation.get() + 1);
        for fiber in
            self.fibers.iter().skip(index * WARP).take(WARP).filter(|fiber| came >> fiber.lane & 1 == 1)
        {
            fiber.state.set(State::Ready);
            fiber.participants.set(came);
        }
    }

    fn suspend(&self, state: State) {
        let fiber = &self.fibers[self.current.get()];
        fiber.state.set(state);
        // SAFETY: this fiber was switched to by `resume`, which waits.
        unsafe { switch(fiber.stack_pointer.as_ptr(), self.resumer.get()) }
    }
}

fn release_conditions<'a>(fibers: impl Iterator<Item = &'a Fiber>) -> bool {
    let mut released = false;
    for fiber in fibers.filter(|fiber| fiber.state.get() == State::AtCondition) {
        let (holds, of) = fiber.condition.get().expect("set before the state");
        // SAFETY: promised by the kernel; the waiting thread's stack still holds what it needs.
        if unsafe { holds(of) } {
            fiber.state.set(State::Ready);
            released = true;
        }
    }
    released
}

fn running() -> &'static Block {
    // SAFETY: set while a block runs, and the block outlives its fibers.
    unsafe { &*RUNNING.load(Ordering::Relaxed) }
}

extern "C" fn main() -> ! {
    let block = running();
    // SAFETY: promised to `Fibers::run`.
    unsafe { (block.body)(block.arguments) }
    block.suspend(State::Done);
    unreachable!("a thread that has ended is not resumed")
}

extern "C" fn barrier() {
    running().suspend(State::AtBarrier);
}

/// Waits for the mask's lanes. Points `slots` to their values; returns those that arrived.
unsafe extern "C" fn warp_exchange(mask: u32, value: u64, slots: *mut *const u64) -> u32 {
    let block = running();
    let fiber = &block.fibers[block.current.get()];
    let warp = &block.warps[fiber.warp];
    let side = &warp.slots[warp.generation.get() % 2];
    side[fiber.lane as usize].set(value);
    warp.arrived.set(warp.arrived.get() | 1 << fiber.lane);
    if warp.arrived.get() == warp.alive.get() & mask {
        block.release_warp(fiber.warp);
    } else {
        block.suspend(State::AtWarpExchange);
    }
    // SAFETY: the kernel passes its own variable.
    unsafe { slots.write(side.as_ptr().cast()) };
    fiber.participants.get()
}

extern "C" fn absent_lane() {
    let block = running();
    let lane = block.fibers[block.current.get()].lane;
    let circumstances = format!("lane {lane} asked for the value of a lane that did not come");
    Fault::new(Finding::AbsentLane, circumstances).report();
}

extern "C" fn turn(place: u32) {
    let block = running();
    block.fibers[block.current.get()].turn.set(place);
    block.suspend(State::AtTurn);
}

/// `holds` is also called outside the thread.
extern "C" fn wait_until(holds: Holds, of: *mut c_void) {
    let block = running();
    block.fibers[block.current.get()].condition.set(Some((holds, of)));
    block.suspend(State::AtCondition);
}

extern "C" fn active() -> u32 {
    let block = running();
    block.warps[block.fibers[block.current.get()].warp].alive.get()
}

#[cfg(test)]
mod tests;
