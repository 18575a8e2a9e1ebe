//! Driver costs of a settled step besides kernels and copies, counted by CUDA's stand-in and by the library.
//!
//! Two runs differ by some settled steps, and their counts by those steps'.

use super::Machine;
use crate::child::{Child, Report};
use crate::stand_in::run_and_report;
use serde_json::Value;

/// The first steps take memory that later ones use again.
const STEPS: [u64; 2] = [3, 9];

/// Launches per trim, at least. A slice of another size serves a block only after it went back to the driver.
const BETWEEN_TRIMS: f64 = 6.0;

fn training(machine: &Machine, program: &str, steps: u64) -> Child {
    let child = machine.child("cube/train").with("program", program).with("size", "deep");
    child.with("steps", steps).environment("STAND_IN_CARD", "4090").environment("STAND_IN_RACES", 0)
}

/// One of `parts`, but at least the floor.
fn part(unlimited: &Report, parts: u64) -> u64 {
    let largest = unlimited.number("largest launch");
    (unlimited.number("device peak") / parts).max(largest + largest / 20)
}

#[derive(Debug)]
struct Costs {
    launches: f64,
    waits: f64,
    waited_ms: f64,
    events: f64,
    page_locks: f64,
    trims: f64,
}

impl Costs {
    /// With the longer run's report.
    fn of(train: impl Fn(u64) -> Child) -> (Self, Report) {
        let [short, long] = STEPS.map(|steps| run_and_report(train(steps)));
        let steps = (STEPS[1] - STEPS[0]) as f64;
        let counted = |name: &str| {
            let count = |(_, stand_in): &(Report, Value)| stand_in[name].as_f64().expect(name);
            (count(&long) - count(&short)) / steps
        };
        // The stand-in's own count is of the pool below the runtime's, which only the program trims.
        let trims = |(report, _): &(Report, Value)| report.number("trims") as f64;

        let costs = Self {
            launches: counted("kernels"),
            waits: counted("host_waits"),
            waited_ms: counted("host_waited_ms"),
            events: counted("events_created"),
            page_locks: counted("pinned_allocations"),
            trims: (trims(&long) - trims(&short)) / steps,
        };
        (costs, long.0)
    }

    /// The runtime waits for some events of its own.
    fn assert_rarely_waits(&self, launches_a_wait: f64, without: &Self, what: &str) {
        let most = without.waits + self.launches / launches_a_wait;
        assert!(self.waits <= most, "{what}: {self:?}, without {without:?}");
        assert!(self.waited_ms <= without.waited_ms + 1.0, "{what}: {self:?}, without {without:?}");
    }
}

fn settles(program: &str) {
    let Some(machine) = Machine::eager(&format!("costs-{program}")) else { return };
    let unlimited = machine.run(training(&machine, program, STEPS[1]));
    let (whole, _) = Costs::of(|steps| training(&machine, program, steps));
    println!("{program}, unlimited: {whole:?}");
    for parts in [2, 4] {
        let budget = part(&unlimited, parts);
        let (tight, _) = Costs::of(|steps| training(&machine, program, steps).with("budget", budget));
        let what = format!("{program} in 1/{parts}");
        println!("{what}: {tight:?}");
        // Threads decide what is under way at once: one slab more may be needed in all these steps. What is unlocked in
        // every step is locked in every step; at its end a program unlocks idle slabs beyond its peak.
        assert!(tight.page_locks < 0.2, "{what}: {tight:?}");
        assert!(tight.events <= whole.events + tight.launches / 100.0, "{what}: {tight:?}, whole {whole:?}");
        assert!(tight.trims * BETWEEN_TRIMS <= tight.launches, "{what}: {tight:?}");
        tight.assert_rarely_waits(20.0, &whole, &what);
    }
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: trains a deep network seven times"]
    fn a_settled_step_under_pressure_locks_no_pages_creates_no_events_and_rarely_waits() {
        settles("transformer");
    }

    #[test]
    #[ignore = "gate: trains a deep network seven times"]
    fn a_settled_step_above_a_disk_hardly_waits_more_than_without_one() {
        let test = "a_settled_step_above_a_disk_hardly_waits_more_than_without_one";
        let Some(machine) = Machine::eager(test) else { return };
        let unlimited = machine.run(training(&machine, "mlp", STEPS[1]));
        let tight = |steps| training(&machine, "mlp", steps).with("budget", part(&unlimited, 2));
        let (without, roomy) = Costs::of(tight);
        let host = roomy.number("host peak") / 2;
        let (above, spilling) = Costs::of(|steps| tight(steps).with("host", host).with("disk", "256MiB"));
        println!("without a disk: {without:?}\nabove one: {above:?}, {spilling:?}");
        assert_eq!(spilling.text("fingerprint"), unlimited.text("fingerprint"));
        assert!(spilling.number("spilled") > 0 && spilling.number("loaded") > 0, "{spilling:?}");
        // An upload may be waited for when its bytes on the host make room.
        above.assert_rarely_waits(10.0, &without, "above a disk");
    }
}

mod full {
    use super::settles;

    #[test]
    #[ignore = "full: trains deep networks"]
    fn every_programs_settled_step_under_pressure_locks_no_pages_creates_no_events_and_rarely_waits() {
        for program in ["mlp", "conv", "normalised", "recurrent", "tied transformer"] {
            settles(program);
        }
    }
}
