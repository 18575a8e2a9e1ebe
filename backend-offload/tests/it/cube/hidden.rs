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

/// A step of the program, whose operations are all one floating-point operation long.
fn recorded(file: &Path) -> (Recording, usize) {
    let bytes = std::fs::read(file).expect("a recording");
    std::fs::remove_file(file).expect("it was there");
    let whole = Recording::from_bytes(&bytes).expect("a recording");
    let mut step = whole.repeating().expect("a step that repeats");
    let mut count = 0;
    for event in &mut step.events {
        if let Event::Operation { flops, .. } = event {
            *flops = 1;
            count += 1;
        }
    }
    (step, count)
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

/// Trains the program in a half and in a quarter of its memory, where at least these shares of the copy time that could be hidden are.
fn hides_its_copies(test: &str, program: &str, shares: [f64; 2]) {
    let Some(machine) = Machine::stand_in(test).into_iter().next() else { return };
    let file = stand_in::folder_of(test).join(format!("{}.trace", std::process::id()));
    let free = training(&machine, program).with("marked", true).environment("OFFLOAD_TRACE", file.display());
    let (unlimited, free) = run_and_watch(free, SETTLED);
    let (kernels, (step, operations)) = (Times::of(&free).kernels, recorded(&file));
    let (peak, largest) = (unlimited.number("device peak"), unlimited.number("largest launch"));
    let found = [2, 4].map(|part| {
        let budget = (peak / part).max(largest + largest / 20);
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
    for (hidden, share) in found.into_iter().zip(shares) {
        assert!(
            hidden >= share,
            "{program}: {found:?} of the copy time that could be is hidden, not {shares:?}"
        );
    }
}

#[test]
fn an_mlp_hides_its_copies() {
    hides_its_copies("an_mlp_hides_its_copies", "mlp", [0.0, 0.0]);
}

#[test]
fn a_convolutional_net_hides_its_copies() {
    hides_its_copies("a_convolutional_net_hides_its_copies", "conv", [0.0, 0.0]);
}

#[test]
fn a_recurrent_net_hides_its_copies() {
    hides_its_copies("a_recurrent_net_hides_its_copies", "recurrent", [0.0, 0.0]);
}

#[test]
fn a_transformer_hides_its_copies() {
    hides_its_copies("a_transformer_hides_its_copies", "transformer", [0.0, 0.0]);
}

#[test]
fn a_tied_transformer_hides_its_copies() {
    hides_its_copies("a_tied_transformer_hides_its_copies", "tied transformer", [0.0, 0.0]);
}
