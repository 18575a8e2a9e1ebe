//! The pace: time that a step takes on a machine, however its bytes are moved.
//!
//! A step takes as long as its operations, and as long as the least bytes of either direction. It takes longer still where many
//! blocks are used or made within little arithmetic: in any stretch of operations, whatever contents it uses beyond a budget's worth
//! have to come onto the device during the stretch, and whatever it makes beyond a budget's worth has to leave. An optimizer's step
//! uses everything there is; a forward pass makes what the backward pass wants. Stretches that do not overlap add up.

use crate::bound::{Program, bound, disk_bound};
use crate::recording::{Event, Recording};
use crate::timeline::Machine;

/// Stretches begin and end at so many places of a step.
const PLACES: usize = 128;

/// Rounds of a step: one to begin with, those that are looked at, and one that uses what they leave.
const ROUNDS: usize = 4;

/// Rounds that are looked at.
const LOOKED_AT: usize = ROUNDS - 2;

/// The machine and the uses by which the least time of a recorded step is found, under whatever budget.
#[derive(Debug)]
pub struct Pace<'r> {
    recording: &'r Recording,
    machine: Machine,
    /// Time of all operations before each place, over the rounds that are looked at.
    spent: Vec<f64>,
    /// Bytes with contents from before a place that are used between it and a later one, and those of the operands there, by the
    /// first place and how many places later the other is.
    used: Vec<Vec<u64>>,
    /// Bytes that are written between two places and held at the second, and those of the operands there, by that and how many places
    /// earlier the other is.
    made: Vec<Vec<u64>>,
    /// Bytes that the program reads in a step.
    read: u64,
}

impl<'r> Pace<'r> {
    /// The pace of one step that repeats, on a machine.
    pub fn of(recording: &'r Recording, machine: Machine) -> Self {
        let program = Program::unrolled(recording, ROUNDS);
        let (begin, end) = (program.steps[0], program.steps[LOOKED_AT]);
        let length = (end - begin) / LOOKED_AT;
        let place = |n: usize| begin + n * length / PLACES;
        let places = LOOKED_AT * PLACES;
        let takes = |operation: usize| {
            let bytes: u64 = program.operations[operation].iter().map(|n| program.blocks[*n].bytes).sum();
            let flops = program.flops[operation] as f64;
            (flops / machine.flops).max(bytes as f64 / machine.memory)
        };
        let mut spent = vec![0.0];
        for n in 0..places {
            let stretch: f64 = (place(n)..place(n + 1)).map(takes).sum();
            spent.push(spent[n] + stretch);
        }
        let used = (0..places).map(|first| {
            let is_defined = |block: usize, _| program.blocks[block].is_defined_before(place(first));
            let further = (first..places.min(first + PLACES)).map(|n| place(n)..place(n + 1));
            program.growing(place(first), further, &is_defined)
        });
        let made = (0..=places).map(|last| {
            let is_made = |block: usize, operation| program.blocks[block].is_made_for(operation, place(last));
            let further = (last.saturating_sub(PLACES)..last).rev().map(|n| place(n)..place(n + 1));
            program.growing(place(last), further, &is_made)
        });
        let read = recording
            .events
            .iter()
            .map(|event| if let Event::Read { bytes, .. } = event { *bytes } else { 0 });
        let (used, made) = (used.collect(), made.collect());
        Self { recording, machine, spent, used, made, read: read.sum() }
    }

    /// Seconds of arithmetic in a step.
    pub fn arithmetic(&self) -> f64 {
        self.spent[self.spent.len() - 1] / LOOKED_AT as f64
    }

    /// Seconds that a step takes at least, with a device of `budget` bytes and a host of `host` bytes above a disk.
    pub fn least_above_a_disk(&self, budget: u64, host: u64) -> f64 {
        let moved = disk_bound(self.recording, budget.saturating_add(host), ROUNDS)[ROUNDS - 1];
        self.least(budget).max(moved.total() as f64 / self.machine.disk)
    }

    /// Seconds that a step takes at least, with a device of `budget` bytes.
    pub fn least(&self, budget: u64) -> f64 {
        let moved = bound(self.recording, budget, ROUNDS)[ROUNDS - 1];
        let link = moved.bytes_in.max(moved.bytes_out + self.read) as f64 / self.machine.link;
        // The most that stretches before each place, none over another, take beyond their arithmetic.
        let mut beyond = vec![0.0f64; self.spent.len()];
        for last in 1..self.spent.len() {
            beyond[last] = beyond[last - 1];
            for (n, made) in self.made[last].iter().enumerate() {
                let first = last - n - 1;
                let used = self.used[first][n];
                let moves = used.max(*made).saturating_sub(budget) as f64 / self.machine.link;
                let waits = moves - (self.spent[last] - self.spent[first]);
                beyond[last] = beyond[last].max(beyond[first] + waits.max(0.0));
            }
        }
        let waits = beyond[beyond.len() - 1] / LOOKED_AT as f64;
        link.max(self.arithmetic() + waits)
    }
}
