//! The pace: time that a step takes on a machine, however its bytes are moved.
//!
//! A step takes as long as its operations, and as long as the least bytes of either direction. It takes longer still where many
//! blocks are used within little arithmetic: in any stretch of operations, whatever contents it uses beyond a budget's worth
//! have to come onto the device during the stretch. An optimizer's step is such a stretch, since it uses everything there is.
//! Stretches that do not overlap add up.

use crate::bound::{Program, bound, disk_bound};
use crate::recording::{Event, Recording};
use crate::timeline::Machine;

/// Stretches begin and end at so many places of a step.
const PLACES: usize = 128;

/// Rounds of a step: one to begin with, and those that are looked at.
const ROUNDS: usize = 3;

/// The machine and the uses by which the least time of a recorded step is found, under whatever budget.
#[derive(Debug)]
pub struct Pace<'r> {
    recording: &'r Recording,
    machine: Machine,
    /// Time of all operations before each place, over two rounds.
    spent: Vec<f64>,
    /// Bytes with contents that are used between two places, by the first one and how many places later the other is.
    used: Vec<Vec<u64>>,
    /// Bytes that the program reads in a step.
    read: u64,
}

impl<'r> Pace<'r> {
    /// The pace of one step that repeats, on a machine.
    pub fn of(recording: &'r Recording, machine: Machine) -> Self {
        let program = Program::unrolled(recording, ROUNDS);
        let (begin, end) = (program.steps[0], program.steps[ROUNDS - 1]);
        let length = (end - begin) / (ROUNDS - 1);
        let place = |n: usize| begin + n * length / PLACES;
        let places = (ROUNDS - 1) * PLACES;
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
        let mut seen = vec![usize::MAX; program.blocks.len()];
        let used = (0..places).map(|first| {
            let mut bytes = 0;
            let last = places.min(first + PLACES);
            let sums = (first..last).map(|n| {
                for block in program.operations[place(n)..place(n + 1)].iter().flatten() {
                    if std::mem::replace(&mut seen[*block], first) != first {
                        let block = &program.blocks[*block];
                        bytes += if block.is_defined_before(place(first)) { block.bytes } else { 0 };
                    }
                }
                bytes
            });
            sums.collect()
        });
        let used = used.collect();
        let read = recording
            .events
            .iter()
            .map(|event| if let Event::Read { bytes, .. } = event { *bytes } else { 0 });
        Self { recording, machine, spent, used, read: read.sum() }
    }

    /// Seconds of arithmetic in a step.
    pub fn arithmetic(&self) -> f64 {
        self.spent[self.spent.len() - 1] / (ROUNDS - 1) as f64
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
        for first in 0..self.used.len() {
            let before = beyond[first];
            beyond[first + 1] = beyond[first + 1].max(before);
            for (n, used) in self.used[first].iter().enumerate() {
                let last = first + n + 1;
                let comes = used.saturating_sub(budget) as f64 / self.machine.link;
                let waits = comes - (self.spent[last] - self.spent[first]);
                beyond[last] = beyond[last].max(before + waits.max(0.0));
            }
        }
        let waits = beyond[beyond.len() - 1] / (ROUNDS - 1) as f64;
        link.max(self.arithmetic() + waits)
    }
}
