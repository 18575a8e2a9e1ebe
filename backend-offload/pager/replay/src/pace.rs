//! The least time of a step on a machine, however its bytes move (`no_step_takes_less_than_the_least`).
//!
//! A step takes at least as long as its operations, and as the fewest bytes of either direction. It also waits where
//! little arithmetic uses or makes many blocks: those without room during an operation come after it, or leave before.
//! Waits of disjoint ranges add up.
//!
//! A step of 16,384 tokens takes at most 1.10 times its longest part (operations, copies in, copies out); at 25 % of
//! its memory, 1.20 times (`steps_of_16k_tokens_take_little_longer_than_the_longest_of_their_parts`).

use crate::bound::{Program, bound, disk_bound};
use crate::timeline::Machine;
use pager::{Event, Recording};
use std::collections::BTreeSet;

/// Up to this many operations, ranges begin and end anywhere.
const ONE_BY_ONE: usize = 2048;

/// Parts of longer steps; each adds two possible ends.
const PARTS: usize = 256;

/// Rounds of a step: a first, those measured, a successor.
const ROUNDS: usize = 4;

const LOOKED_AT: usize = ROUNDS - 2;

/// The least time of a recorded step on a machine.
#[derive(Debug)]
pub struct Pace<'r> {
    recording: &'r Recording,
    machine: Machine,
    program: Program,
    /// Operations where ranges begin and end: those of the measured rounds, and the next.
    places: Vec<usize>,
    /// Time of all operations before each place, without and with its own.
    spent: Vec<[f64; 2]>,
    read: u64,
}

impl<'r> Pace<'r> {
    /// The pace of a repeated step, or of a program's second and third marked steps.
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
        // Each part's first operation, and its largest, which leaves the least room.
        let length = (end - begin) / LOOKED_AT;
        let parts = if length > ONE_BY_ONE { PARTS } else { length };
        let part = |n: usize| begin + n * length / parts..begin + (n + 1) * length / parts;
        let largest = |n: usize| part(n).max_by_key(|operation| operands(*operation));
        let places: BTreeSet<usize> =
            (0..LOOKED_AT * parts).flat_map(|n| [Some(part(n).start), largest(n)]).flatten().collect();
        let places: Vec<usize> = places.into_iter().chain([end]).collect();
        let mut spent: Vec<[f64; 2]> = Vec::new();
        let mut after = begin;
        for place in &places {
            let before = spent.last().map_or(0.0, |last| last[1]) + (after..*place).map(takes).sum::<f64>();
            spent.push([before, before + takes(*place)]);
            after = place + 1;
        }
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

    /// The least seconds of a step with `budget` bytes of device, `host` bytes of host and a disk.
    pub fn least_above_a_disk(&self, budget: u64, host: u64) -> f64 {
        let moved = disk_bound(self.recording, budget.saturating_add(host), ROUNDS)[ROUNDS - 1];
        self.least(budget).max(moved.total() as f64 / self.machine.disk)
    }

    /// The least seconds of a step, with `budget` bytes of device.
    pub fn least(&self, budget: u64) -> f64 {
        let moved = bound(self.recording, budget, ROUNDS)[ROUNDS - 1];
        let link = moved.bytes_in.max(moved.bytes_out + self.read) as f64 / self.machine.link;
        let (coming, leaving) = (self.coming(budget), self.leaving(budget));
        // The longest wait of disjoint ranges up to each place.
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

    /// Bytes with earlier contents that must come between two places, by first place and distance.
    fn coming(&self, budget: u64) -> Vec<Vec<u64>> {
        let Self { program, places, .. } = self;
        let each = places.iter().enumerate().map(|(first, place)| {
            let is_defined = |block: usize, _| program.blocks[block].is_defined_before(*place);
            let further = places[first..].windows(2).take(self.round()).map(|pair| pair[0] + 1..pair[1] + 1);
            program.without_place((*place, budget), further, &is_defined)
        });
        each.collect()
    }

    /// Bytes written from one place on, held at another, that must leave in between; by later place and distance.
    fn leaving(&self, budget: u64) -> Vec<Vec<u64>> {
        let Self { program, places, .. } = self;
        let each = places.iter().enumerate().map(|(last, place)| {
            let is_made = |block: usize, operation| program.blocks[block].is_made_for(operation, *place);
            let further = places[..=last].windows(2).rev().take(self.round()).map(|pair| pair[0]..pair[1]);
            program.without_place((*place, budget), further, &is_made)
        });
        each.collect()
    }

    fn round(&self) -> usize {
        self.places.len() / LOOKED_AT
    }
}
