//! The pace: the least time that a step takes on a machine, however its bytes are moved
//! (`no_step_takes_less_than_the_least`).
//!
//! A step takes as long as its operations, and as long as the least bytes of either direction. It takes longer still
//! where many blocks are used or made within little arithmetic. Between two operations these contents come onto the
//! device: made before the first, used after it and at the second at the latest, and without room during the first.
//! These contents leave: made by the first or after it, kept, and without room during the second. A block takes its
//! whole room before it comes and until it has left. An optimizer's step uses all blocks; a forward pass makes the
//! blocks that the backward pass uses; two large operations in a row leave no room for blocks that only one of them
//! uses. Stretches that do not overlap add up.
//!
//! A step of 16,384 tokens takes at most 1.10 times its longest part (operations, copies in, copies out). At 25 % of its
//! memory it takes 1.20 times (`steps_of_16k_tokens_take_little_longer_than_the_longest_of_their_parts`). `pace.csv` has
//! the numbers.

use crate::bound::{Program, bound, disk_bound};
use crate::timeline::Machine;
use pager::{Event, Recording};
use std::collections::BTreeSet;

/// Stretches begin and end at any operation of a step that has no more than this.
const ONE_BY_ONE: usize = 2048;

/// In longer steps they begin and end at two operations of as many parts.
const PARTS: usize = 256;

/// Rounds of a step: one to begin with, those that are looked at, and one that uses what they leave.
const ROUNDS: usize = 4;

/// Rounds that are looked at.
const LOOKED_AT: usize = ROUNDS - 2;

/// The machine and the uses by which the least time of a recorded step is found, under whatever budget.
#[derive(Debug)]
pub struct Pace<'r> {
    recording: &'r Recording,
    machine: Machine,
    program: Program,
    /// Operations at which stretches begin and end, over the rounds that are looked at. The last is the operation after them.
    places: Vec<usize>,
    /// Time of all operations before each place and of those up to its own.
    spent: Vec<[f64; 2]>,
    /// Bytes that the program reads in a step.
    read: u64,
}

impl<'r> Pace<'r> {
    /// The pace of one step that repeats, or of the second and the third of a program's marked ones, on a machine.
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
        // The first operation of each part of a step, and the one of the most bytes: it leaves the least room.
        let length = (end - begin) / LOOKED_AT;
        let parts = if length > ONE_BY_ONE { PARTS } else { length };
        let part = |n: usize| begin + n * length / parts..begin + (n + 1) * length / parts;
        let largest = |n: usize| part(n).max_by_key(|operation| operands(*operation));
        let places: BTreeSet<usize> =
            (0..LOOKED_AT * parts).flat_map(|n| [Some(part(n).start), largest(n)]).flatten().collect();
        // The last stretch ends where the next round begins.
        let places: Vec<usize> = places.into_iter().chain([end]).collect();
        let mut spent: Vec<[f64; 2]> = Vec::new();
        let mut after = begin;
        for place in &places {
            let before = spent.last().map_or(0.0, |last| last[1]) + (after..*place).map(takes).sum::<f64>();
            spent.push([before, before + takes(*place)]);
            after = place + 1;
        }
        // Of a program that was recorded from its beginning, the same rounds.
        let rounds = recording.events.split(|event| *event == Event::Step);
        let (skipped, taken) = if recording.repeats() { (0, 1) } else { (1, LOOKED_AT) };
        let reads = rounds.skip(skipped).take(taken).flatten();
        let reads = reads.map(|event| if let Event::Read { bytes, .. } = event { *bytes } else { 0 });
        let read = reads.sum::<u64>() / taken as u64;
        Self { recording, machine, program, places, spent, read }
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
        let (coming, leaving) = (self.coming(budget), self.leaving(budget));
        // The most that stretches up to each place, none over another, take beyond their arithmetic.
        let mut beyond = vec![0.0f64; self.spent.len()];
        for last in 1..self.spent.len() {
            beyond[last] = beyond[last - 1];
            for (n, leaves) in leaving[last].iter().enumerate() {
                let first = last - n - 1;
                let moves = coming[first][n].max(*leaves) as f64 / self.machine.link;
                let ([begin, _], [_, end]) = (self.spent[last], self.spent[first]);
                beyond[last] = beyond[last].max(beyond[first] + (moves - (begin - end)).max(0.0));
            }
        }
        let waits = beyond.last().copied().unwrap_or_default() / LOOKED_AT as f64;
        link.max(self.arithmetic() + waits)
    }

    /// Bytes with contents from before a place that come between it and a later one, by the first and how many places later the
    /// other is.
    fn coming(&self, budget: u64) -> Vec<Vec<u64>> {
        let Self { program, places, .. } = self;
        let each = places.iter().enumerate().map(|(first, place)| {
            let is_defined = |block: usize, _| program.blocks[block].is_defined_before(*place);
            let further = places[first..].windows(2).take(self.round()).map(|pair| pair[0] + 1..pair[1] + 1);
            program.without_place((*place, budget), further, &is_defined)
        });
        each.collect()
    }

    /// Bytes that are written from an earlier place on, held at a later one and leave between the two, by the later and how many places
    /// earlier the other is.
    fn leaving(&self, budget: u64) -> Vec<Vec<u64>> {
        let Self { program, places, .. } = self;
        let each = places.iter().enumerate().map(|(last, place)| {
            let is_made = |block: usize, operation| program.blocks[block].is_made_for(operation, *place);
            let further = places[..=last].windows(2).rev().take(self.round()).map(|pair| pair[0]..pair[1]);
            program.without_place((*place, budget), further, &is_made)
        });
        each.collect()
    }

    /// Places in a round.
    fn round(&self) -> usize {
        self.places.len() / LOOKED_AT
    }
}
