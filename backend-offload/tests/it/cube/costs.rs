//! Driver costs of a settled step besides kernels and copies, counted by CUDA's stand-in.
//!
//! Two runs differ by some settled steps, and their counts by those steps'.

use super::Machine;
use crate::child::Child;
use crate::stand_in::run_and_report;

const STEPS: u64 = 6;

fn transformer(machine: &Machine, steps: u64) -> Child {
    let child = machine.child("cube/train").with("program", "transformer").with("size", "deep");
    child.with("steps", steps).environment("STAND_IN_CARD", "4090").environment("STAND_IN_RACES", 0)
}

#[derive(Debug)]
struct Costs {
    launches: f64,
    waits: f64,
    waited_ms: f64,
    events: f64,
    page_locks: f64,
    page_unlocks: f64,
    trims: f64,
}

impl Costs {
    fn of(train: impl Fn(u64) -> Child) -> Self {
        let reports = [STEPS, 2 * STEPS].map(|steps| run_and_report(train(steps)).1);
        let each = |name: &str| {
            let [short, long] = reports.each_ref().map(|report| report[name].as_f64().expect(name));
            (long - short) / STEPS as f64
        };
        Self {
            launches: each("kernels"),
            waits: each("host_waits"),
            waited_ms: each("host_waited_ms"),
            events: each("events_created"),
            page_locks: each("pinned_allocations"),
            page_unlocks: each("pinned_frees"),
            trims: each("trims"),
        }
    }
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: trains a deep network five times"]
    fn a_settled_step_under_pressure_locks_no_pages_creates_no_events_and_rarely_waits() {
        let test = "a_settled_step_under_pressure_locks_no_pages_creates_no_events_and_rarely_waits";
        let Some(machine) = Machine::eager(test) else { return };
        let free = machine.run(transformer(&machine, STEPS));
        let whole = Costs::of(|steps| transformer(&machine, steps));
        println!("unlimited: {whole:?}");
        for share in [2, 4] {
            let budget = free.number("device peak") / share;
            let tight = Costs::of(|steps| transformer(&machine, steps).with("budget", budget));
            println!("1/{share}: {tight:?}");
            assert_eq!((tight.page_locks, tight.page_unlocks), (0.0, 0.0), "{tight:?}");
            // The runtime creates events of its own, and waits for some.
            assert!(
                tight.events <= whole.events + tight.launches / 100.0,
                "{tight:?}, without a limit {whole:?}"
            );
            assert!(
                tight.waits <= whole.waits + tight.launches / 20.0,
                "{tight:?}, without a limit {whole:?}"
            );
            let waited = whole.waited_ms + 1.0;
            assert!(tight.waited_ms <= waited && tight.trims <= tight.launches / 100.0, "{tight:?}");
        }
    }
}
