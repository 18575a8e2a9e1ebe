//! The share of copy time hidden behind kernels, on the stand-in's simulated clock.
//!
//! [`Pace`] bounds a step's time from below. Copies in the busier direction take half the kernels' time.

use super::Machine;
use crate::child::Child;
use crate::folders;
use crate::stand_in::{Steps, Work, run_and_watch};
use pager::{Event, Limit, Policy, Recording};
use pager_replay::{Elapsed, Machine as Speeds, Pace, Replay, bound};
use std::collections::BTreeSet;
use std::path::Path;

const STEPS: usize = 8;

/// Measured steps: one may leave blocks that the next evicts.
const SETTLED: usize = 3;

const KERNEL_US: u32 = 200;

const SMALLEST: u64 = 64 << 10;

/// Simulated seconds of one step.
struct Times {
    step: f64,
    kernels: f64,
    out: f64,
    back: f64,
}

impl Times {
    fn from_steps(steps: &Steps) -> Self {
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

    fn hidden(&self, least: f64) -> f64 {
        let serial = self.kernels + self.out + self.back;
        (serial - self.step) / (serial - least)
    }
}

fn training(machine: &Machine, program: &str) -> Child {
    let child =
        machine.child("cube/train").with("program", program).with("size", "deep").with("steps", STEPS);
    child.environment("STAND_IN_KERNEL_US", KERNEL_US)
}

fn recorded(file: &Path) -> Recording {
    let bytes = std::fs::read(file).expect("a recording");
    let mut whole = dropped_at_once(Recording::from_bytes(&bytes).expect("a recording"));
    let reads = whole.operands.iter().filter(|operand| !operand.written).count();
    assert!(reads > whole.operands.len() / 4, "{reads} of {} operands are only read", whole.operands.len());
    for event in &mut whole.events {
        match event {
            Event::Operation { flops, .. } => *flops = 1,
            Event::Born { bytes, .. } if *bytes < SMALLEST => *bytes = 0,
            _ => {}
        }
    }
    whole
}

/// Autodiff's maps change only their order.
fn operations(whole: &Recording) -> usize {
    let steps: Vec<_> = whole.events.split(|event| *event == Event::Step).collect();
    let is_operation = |event: &&Event| matches!(event, Event::Operation { .. });
    steps[STEPS - SETTLED].iter().filter(is_operation).count()
}

/// Autodiff's maps vary the order of drops.
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

fn replayed(whole: &Recording, budget: u64, machine: Speeds, least: f64) -> f64 {
    let replay = Replay::new(whole, Limit::bytes(budget), Policy::Planned).on(machine);
    let replay = replay.run(1).expect("every operation fits");
    let settled = &replay.elapsed()[STEPS - SETTLED..STEPS];
    let each = |part: fn(&Elapsed) -> f64| settled.iter().map(part).sum::<f64>() / SETTLED as f64;
    let times = Times {
        step: each(|elapsed| elapsed.step),
        kernels: each(|elapsed| elapsed.arithmetic),
        out: each(|elapsed| elapsed.out),
        back: each(|elapsed| elapsed.back),
    };
    times.hidden(least)
}

/// In the gate and in the full suite.
const HIDDEN: [f64; 2] = [0.85, 0.9];

fn hides_its_copies(test: &str, program: &str) {
    let Some(machine) = Machine::eager(test) else { return };
    let recording = folders::fresh(folders::SETTINGS);
    let file = recording.path().join("steps.trace");
    let free = training(&machine, program).with("marked", true).with("smallest", 1);
    let (unlimited, free) = run_and_watch(free.environment("OFFLOAD_TRACE", file.display()), SETTLED);

    let (whole, kernels) = (recorded(&file), Times::from_steps(&free).kernels);
    let replay = Replay::new(&whole, Limit::NONE, Policy::Planned).run(1).expect("no budget is too small");
    let (peak, largest) = (replay.pager().ledger().resident_peak(), unlimited.number("largest launch"));
    assert!(largest * 4 < peak, "{program}: a launch needs {largest} of {peak} bytes");

    for budget in [peak / 2, peak / 4, largest + largest / 20] {
        let moved = bound(&whole, budget, 1)[STEPS - SETTLED];
        let link = 2.0 * moved.bytes_in.max(moved.bytes_out) as f64 / kernels;
        let speeds = Speeds { link, flops: operations(&whole) as f64 / kernels, ..Speeds::INSTANT };
        let least = Pace::of(&whole, speeds).least(budget);
        let tight = training(&machine, program).with("budget", budget);
        let (report, steps) = run_and_watch(tight.environment("STAND_IN_BANDWIDTH", link), SETTLED);
        assert_eq!(report.text("fingerprint"), unlimited.text("fingerprint"), "{program} at {budget}");

        let times = Times::from_steps(&steps);
        let hidden = times.hidden(least);
        let milliseconds = [times.step, least, times.kernels, times.out, times.back].map(|time| 1e3 * time);
        println!(
            "{program}: {budget} of {peak} bytes: hidden {hidden:.3}, by the pager alone {:.3}; step, least, kernels, out, back in ms: \
             {milliseconds:.2?}",
            replayed(&whole, budget, speeds, least)
        );

        let [gate, full] = HIDDEN;
        let holds = (suite::size().pick(gate, gate, full)..1.0).contains(&hidden);
        assert!(holds, "{program} in {budget} bytes: {hidden:.3} of the copy time is hidden");
    }
}

mod gate {
    use super::hides_its_copies;

    #[test]
    #[ignore = "gate: trains deep networks"]
    fn a_deep_mlp_hides_its_copies() {
        hides_its_copies("a_deep_mlp_hides_its_copies", "mlp");
    }

    #[test]
    #[ignore = "gate: trains deep networks"]
    fn a_deep_transformer_hides_its_copies() {
        hides_its_copies("a_deep_transformer_hides_its_copies", "transformer");
    }
}

mod full {
    use super::hides_its_copies;

    #[test]
    #[ignore = "full: trains deep networks"]
    fn a_deep_convolutional_net_hides_its_copies() {
        hides_its_copies("a_deep_convolutional_net_hides_its_copies", "conv");
    }

    #[test]
    #[ignore = "full: trains deep networks"]
    fn a_deep_recurrent_net_hides_its_copies() {
        hides_its_copies("a_deep_recurrent_net_hides_its_copies", "recurrent");
    }

    #[test]
    #[ignore = "full: trains deep networks"]
    fn a_deep_tied_transformer_hides_its_copies() {
        hides_its_copies("a_deep_tied_transformer_hides_its_copies", "tied transformer");
    }
}
