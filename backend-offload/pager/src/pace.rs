//! The pace: time that a step takes on a machine, however its bytes are moved.
//!
//! A step takes as long as its operations, and as long as the least bytes of either direction. It takes longer still where many
//! blocks are used or made within little arithmetic. From the end of one operation to the beginning of another, whatever contents the
//! operations from the one to the other use beyond a budget's worth have to come onto the device, and whatever these make beyond a
//! budget's worth has to leave; operands of the two are there in any case. An optimizer's step uses everything there is; a forward pass
//! makes what the backward pass wants; two large operations in a row leave no room for what only one of them uses. Stretches that do
//! not overlap add up.

use crate::bound::{Program, bound, disk_bound};
use crate::recording::{Event, Recording};
use crate::timeline::Machine;
use std::collections::BTreeSet;

/// Stretches begin and end at so many operations of a step at most.
const PLACES: usize = 512;

/// Rounds of a step: one to begin with, those that are looked at, and one that uses what they leave.
const ROUNDS: usize = 4;

/// Rounds that are looked at.
const LOOKED_AT: usize = ROUNDS - 2;

/// The machine and the uses by which the least time of a recorded step is found, under whatever budget.
#[derive(Debug)]
pub struct Pace<'r> {
    recording: &'r Recording,
    machine: Machine,
    /// Time of all operations before each place and of those up to its own, over the rounds that are looked at. The last place is the
    /// operation after them.
    spent: Vec<[f64; 2]>,
    /// Bytes of a place's operands, and those with contents from before it that are used after it up to a later one, by the first place
    /// and how many places later the other is.
    used: Vec<Vec<u64>>,
    /// Bytes of a place's operands, and those that are written from an earlier one on and held at this one, by this and how many
    /// places earlier the other is.
    made: Vec<Vec<u64>>,
    /// Bytes that the program reads in a step.
    read: u64,
}

impl<'r> Pace<'r> {
    /// The pace of one step that repeats, on a machine.
    pub fn of(recording: &'r Recording, machine: Machine) -> Self {
        let program = Program::unrolled(recording, ROUNDS);
        let (begin, end) = (program.steps[0], program.steps[LOOKED_AT]);
        let operands = |operation: usize| -> u64 {
            program.operations[operation].iter().map(|block| program.blocks[*block].bytes).sum()
        };
        let takes = |operation: usize| {
            let flops = program.flops[operation] as f64;
            (flops / machine.flops).max(operands(operation) as f64 / machine.memory)
        };
        // Beside the first operation of each part of a step, that of the most bytes: it leaves the least room.
        let length = (end - begin) / LOOKED_AT;
        let parts = length.min(PLACES / 2);
        let part = |n: usize| begin + n * length / parts..begin + (n + 1) * length / parts;
        let largest = |n: usize| part(n).max_by_key(|operation| operands(*operation));
        let places: BTreeSet<usize> =
            (0..LOOKED_AT * parts).flat_map(|n| [Some(part(n).start), largest(n)]).flatten().collect();
        let round = places.len() / LOOKED_AT;
        // The last stretch ends where the next round begins.
        let places: Vec<usize> = places.into_iter().chain([end]).collect();
        let mut spent: Vec<[f64; 2]> = Vec::new();
        let mut after = begin;
        for place in &places {
            let before = spent.last().map_or(0.0, |last| last[1]) + (after..*place).map(takes).sum::<f64>();
            spent.push([before, before + takes(*place)]);
            after = place + 1;
        }
        let used = (0..places.len()).map(|first| {
            let is_defined = |block: usize, _| program.blocks[block].is_defined_before(places[first]);
            let further = places[first..].windows(2).take(round).map(|pair| pair[0] + 1..pair[1] + 1);
            program.growing(places[first], further, &is_defined)
        });
        let made = (0..places.len()).map(|last| {
            let is_made =
                |block: usize, operation| program.blocks[block].is_made_for(operation, places[last]);
            let further = places[..=last].windows(2).rev().take(round).map(|pair| pair[0]..pair[1]);
            program.growing(places[last], further, &is_made)
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
        self.spent.last().map_or(0.0, |[before, _]| *before) / LOOKED_AT as f64
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
        // The most that stretches up to each place, none over another, take beyond their arithmetic.
        let mut beyond = vec![0.0f64; self.spent.len()];
        for last in 1..self.spent.len() {
            beyond[last] = beyond[last - 1];
            for (n, made) in self.made[last].iter().enumerate() {
                let first = last - n - 1;
                let used = self.used[first][n];
                let moves = used.max(*made).saturating_sub(budget) as f64 / self.machine.link;
                let ([begin, _], [_, end]) = (self.spent[last], self.spent[first]);
                beyond[last] = beyond[last].max(beyond[first] + (moves - (begin - end)).max(0.0));
            }
        }
        let waits = beyond.last().copied().unwrap_or_default() / LOOKED_AT as f64;
        link.max(self.arithmetic() + waits)
    }
}
