//! Recorded steps of 16,384 tokens on a machine with a link of 25 GB/s in each direction and 80 TFLOP/s: the time they take.
//!
//! `PAGER_WRITE_GOLDEN=1` writes the tables anew.

use crate::steps::{assert_on_record, recorded};
use pager::{Elapsed, Limit, Machine, Pace, Policy, Recording, Replay};
use std::fmt::Write;

const ROUNDS: usize = 5;

const GPU: Machine = Machine { link: 25e9, memory: 1000e9, flops: 80e12, host: f64::INFINITY };

fn played(step: &Recording, budget: u64, machine: Machine) -> Vec<Elapsed> {
    let replay = Replay::new(step, Limit::bytes(budget), Policy::Planned).on(machine);
    replay.run(ROUNDS).expect("every operation fits").elapsed().to_vec()
}

/// Time of a step over the longest of its operations and its copies in either direction.
fn of_the_longest(elapsed: &Elapsed) -> f64 {
    elapsed.step / elapsed.arithmetic.max(elapsed.out).max(elapsed.back)
}

#[test]
fn probe() {
    let mut table = String::new();
    for name in std::env::var("PROBE").unwrap_or_default().split(',').filter(|name| !name.is_empty()) {
        let began = std::time::Instant::now();
        let (step, peak) = recorded(name);
        eprintln!("{name} {} events {} {:?}", peak, step.events.len(), began.elapsed());
        for memory in [f64::INFINITY, 1000e9] {
            let machine = Machine { memory, ..GPU };
            let pace = Pace::of(&step, machine);
            eprintln!("arithmetic {} {:?}", pace.arithmetic(), began.elapsed());
            for share in [75, 50, 25] {
                let budget = peak * share / 100;
                let rounds = played(&step, budget, machine);
                let least = pace.least(budget);
                writeln!(
                    table,
                    "{name} {share} mem {memory:e} ratios {:?} step {:?} least {least:.4} arith {:.4} in {:.4} out {:.4}",
                    rounds.iter().map(|e| (of_the_longest(e) * 1e3).round() / 1e3).collect::<Vec<_>>(),
                    rounds.iter().map(|e| (e.step * 1e4).round() / 1e4).collect::<Vec<_>>(),
                    rounds[ROUNDS - 1].arithmetic,
                    rounds[ROUNDS - 1].back,
                    rounds[ROUNDS - 1].out,
                )
                .expect("a string");
                eprintln!("{:?} {}", began.elapsed(), table.lines().last().unwrap_or_default());
            }
        }
    }
    let _ = assert_on_record;
}
