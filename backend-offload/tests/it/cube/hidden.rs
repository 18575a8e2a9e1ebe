//! How much of the copying of settled training steps is hidden behind the device's work, on the simulated clock of the stand-in
//! for CUDA.
//!
//! The bound on a step's time is the pager's own ([`Pace`]), of the very program and on a machine as fast as the stand-in: what
//! copies take beyond it nobody could hide. Copies of the busier direction take half as long as the kernels, so that hardly any is
//! beyond it.

use super::Machine;
use crate::child::Child;
use crate::stand_in::{self, Steps, Work, run_and_watch};
use pager::{Elapsed, Event, Limit, Pace, Policy, Recording, Replay, bound};
use std::collections::BTreeSet;
use std::path::Path;

const STEPS: usize = 8;

/// Steps that are looked at, the last ones: what stays on the device at the end of one may leave in the next.
const SETTLED: usize = 3;

/// Rounds of a replay until it is as it stays.
const ROUNDS: usize = 6;

/// A call costs two microseconds on the stand-in's clock, and a launch takes several, all of which is to matter little.
const KERNEL_US: u32 = 200;

/// Recordings that are made until one has two steps alike: maps of the autodiff's let some operations come in another order.
const ATTEMPTS: usize = 10;

/// Buffers from this size on are moved by default.
const SMALLEST: u64 = 64 << 10;

/// Simulated seconds of one step.
struct Times {
    step: f64,
    /// Kernels, and the copies in line with them: a launch's own bytes and the program's, as on the plain runtime.
    kernels: f64,
    out: f64,
    back: f64,
}

impl Times {
    fn of(steps: &Steps) -> Self {
        let launches = steps.work.iter().filter(|work| work.kind == "compute");
        let computing: BTreeSet<u64> = launches.map(|work| work.stream).collect();
        let each = |kind: Option<&str>| {
            let is_part = |work: &&Work| {
                let moves = !computing.contains(&work.stream);
                kind.map_or(!moves, |kind| moves && work.kind == kind)
            };
            steps.work.iter().filter(is_part).map(|work| work.takes).sum::<f64>() / SETTLED as f64
        };
        Self {
            step: steps.seconds / SETTLED as f64,
            kernels: each(None),
            out: each(Some("to host")),
            back: each(Some("to device")),
        }
    }

    /// Share of the copy time that is hidden, of what could be, where no step takes less than `least`.
    fn hidden(&self, least: f64) -> f64 {
        let serial = self.kernels + self.out + self.back;
        (serial - self.step) / (serial - least)
    }
}

fn training(machine: &Machine, program: &str) -> Child {
    let child = machine.child("cube/train").with("program", program).with("steps", STEPS);
    child.environment("STAND_IN_KERNEL_US", KERNEL_US)
}

/// A step of the program, whose operations are all one floating-point operation long, and how many they are, if two steps were
/// alike. All buffers are recorded, so that every launch is an operation; those too small to be moved by default have no bytes.
fn recorded(file: &Path) -> Option<(Recording, usize)> {
    let bytes = std::fs::read(file).expect("a recording");
    std::fs::remove_file(file).expect("it was there");
    let whole = dropped_at_once(Recording::from_bytes(&bytes).expect("a recording"));
    let mut step = whole.repeating().ok()?;
    let mut count = 0;
    for event in &mut step.events {
        match event {
            Event::Operation { flops, .. } => (*flops, count) = (1, count + 1),
            Event::Born { bytes, .. } if *bytes < SMALLEST => *bytes = 0,
            _ => {}
        }
    }
    Some((step, count))
}

/// The program, if it dropped each block right after its last use: maps of the autodiff's drop theirs in another order in every step.
/// It then needs no more memory at any time, so that what is least for it is no more than what is least for the program.
fn dropped_at_once(mut whole: Recording) -> Recording {
    let (mut last_uses, mut dropped) = (Vec::new(), BTreeSet::new());
    for (n, event) in whole.events.iter().enumerate() {
        match *event {
            Event::Born { .. } => last_uses.push(n),
            Event::Operation { first, count, .. } => {
                whole.operands[first..first + count].iter().for_each(|operand| last_uses[operand.block] = n);
            }
            Event::Written(block) | Event::WrittenInTier(block) | Event::Read { block, .. } => {
                last_uses[block] = n;
            }
            Event::Freed(block) => _ = dropped.insert(block),
            Event::Step | Event::Begin | Event::Carried { .. } => {}
        }
    }
    let mut drops = vec![Vec::new(); whole.events.len()];
    for block in dropped {
        drops[last_uses[block]].push(Event::Freed(block));
    }
    let events = std::mem::take(&mut whole.events).into_iter().zip(drops);
    whole.events = events
        .flat_map(|(event, drops)| {
            let event = Some(event).filter(|event| !matches!(event, Event::Freed(_)));
            event.into_iter().chain(drops)
        })
        .collect();
    whole
}

/// Share that the pager's own simulation of the program hides.
fn replayed(step: &Recording, budget: u64, machine: pager::Machine, least: f64) -> f64 {
    let replay = Replay::new(step, Limit::bytes(budget), Policy::Planned).on(machine);
    let replay = replay.run(ROUNDS).expect("every operation fits");
    let settled = &replay.elapsed()[ROUNDS - SETTLED..];
    let each = |part: fn(&Elapsed) -> f64| settled.iter().map(part).sum::<f64>() / SETTLED as f64;
    let times = Times {
        step: each(|elapsed| elapsed.step),
        kernels: each(|elapsed| elapsed.arithmetic),
        out: each(|elapsed| elapsed.out),
        back: each(|elapsed| elapsed.back),
    };
    times.hidden(least)
}

/// Trains the program in a half and in a quarter of its memory, or the least it can have, where at least these shares of the copy time
/// that could be hidden are.
fn hides_its_copies(test: &str, program: &str, shares: &[f64]) {
    let Some(machine) = Machine::stand_in(test).into_iter().next() else { return };
    let file = stand_in::folder_of(test).join(format!("{}.trace", std::process::id()));
    let attempts = (0..ATTEMPTS).find_map(|_| {
        let free = training(&machine, program).with("marked", true).with("smallest", 1);
        let (unlimited, free) = run_and_watch(free.environment("OFFLOAD_TRACE", file.display()), SETTLED);
        recorded(&file).map(|step| (unlimited, Times::of(&free).kernels, step))
    });
    let (unlimited, kernels, (step, operations)) = attempts.expect("a step that repeats");
    let replay = Replay::new(&step, Limit::NONE, Policy::Planned).run(1).expect("no budget is too small");
    let (peak, largest) = (replay.pager().ledger().resident_peak(), unlimited.number("largest launch"));
    let budgets = BTreeSet::from([2, 4].map(|part| (peak / part).max(largest + largest / 20)));
    let found = budgets.into_iter().rev().map(|budget| {
        let moved = bound(&step, budget, ROUNDS)[ROUNDS - 1];
        let link = 2.0 * moved.bytes_in.max(moved.bytes_out) as f64 / kernels;
        let speeds =
            pager::Machine { link, flops: operations as f64 / kernels, ..pager::Machine::INSTANT };
        let least = Pace::of(&step, speeds).least(budget);
        let tight = training(&machine, program).with("budget", budget);
        let (report, steps) = run_and_watch(tight.environment("STAND_IN_BANDWIDTH", link), SETTLED);
        assert_eq!(report.text("fingerprint"), unlimited.text("fingerprint"), "{program} at {budget}");
        let times = Times::of(&steps);
        let hidden = times.hidden(least);
        let milliseconds = [times.step, least, times.kernels, times.out, times.back].map(|time| 1e3 * time);
        println!(
            "{program}: {budget} of {peak} bytes: hidden {hidden:.3}, by the pager alone {:.3}; step, least, kernels, out, back in ms: \
             {milliseconds:.2?}",
            replayed(&step, budget, speeds, least)
        );
        hidden
    });
    let found: Vec<f64> = found.collect();
    assert_eq!(found.len(), shares.len(), "{program}: budgets");
    let holds = found.iter().zip(shares).all(|(hidden, share)| (*share..1.0).contains(hidden));
    assert!(holds, "{program}: {found:?} of the copy time that could be is hidden, not {shares:?}");
}

// One launch of these two takes most of either budget. What it wants comes, and what it leaves goes, while there is room for nothing else.

#[test]
fn an_mlp_hides_its_copies() {
    hides_its_copies("an_mlp_hides_its_copies", "mlp", &[0.71]);
}

#[test]
fn a_convolutional_net_hides_its_copies() {
    hides_its_copies("a_convolutional_net_hides_its_copies", "conv", &[0.52]);
}

#[test]
fn a_recurrent_net_hides_its_copies() {
    hides_its_copies("a_recurrent_net_hides_its_copies", "recurrent", &[0.86, 0.79]);
}

#[test]
fn a_tied_transformer_hides_its_copies() {
    hides_its_copies("a_tied_transformer_hides_its_copies", "tied transformer", &[0.92, 0.86]);
}
