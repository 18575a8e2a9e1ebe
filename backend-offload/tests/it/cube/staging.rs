//! Copies of ordinary host memory, on CUDA's stand-in.

use super::Machine;
use crate::child::{Child, Report};
use crate::stand_in::{Schedules, run_and_report};
use serde_json::Value;

const LOCKED: &str = "2MiB";

fn training(machine: &Machine, program: &str) -> Child {
    machine.child("cube/train").with("program", program).with("steps", 4)
}

fn half(unlimited: &Report) -> u64 {
    let (peak, largest) = (unlimited.number("device peak"), unlimited.number("largest launch"));
    (peak / 2).max(largest + largest / 20)
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().expect(name)
}

#[test]
fn copies_of_ordinary_memory_change_no_bit_also_if_the_driver_refuses_to_stage_them() {
    let test = "copies_of_ordinary_memory_change_no_bit_also_if_the_driver_refuses_to_stage_them";
    for machine in Machine::stand_in(test, Schedules::Every) {
        let (unlimited, own) = run_and_report(training(&machine, "mlp"));
        let tight = || training(&machine, "mlp").with("budget", half(&unlimited));
        let run = |child: Child| {
            let (report, stand_in) = run_and_report(child);
            println!("{stand_in}");
            assert_eq!(stand_in["findings"].to_string(), "{}");
            assert_eq!(report.text("fingerprint"), unlimited.text("fingerprint"));
            assert!(report.number("evictions") > 0 && report.number("brought ahead") > 0, "{report:?}");
            stand_in
        };

        let staged = run(tight().environment("OFFLOAD_PINNED_BUDGET", LOCKED));
        assert_eq!(number(&staged, "other_hosts") as u64, 2, "a thread for each direction");
        let refused = run(tight().environment("STAND_IN_PINNED", own["peak_pinned_bytes"].to_string()));
        assert!(number(&refused, "refused_pinned_allocations") > 0.0);
        assert_eq!(number(&refused, "other_hosts") as u64, 0);
        assert!(number(&refused, "copies_pageable") > number(&staged, "copies_pageable"));
    }
}

#[test]
fn a_failed_copy_of_ordinary_memory_is_worked_around_or_reported() {
    let test = "a_failed_copy_of_ordinary_memory_is_worked_around_or_reported";
    let Some(machine) = Machine::eager(test) else { return };
    let child = |budget: &str| machine.child("cube/faults").with("threads", 1).with("budget", budget);
    let right = machine.run(child("unlimited")).text("thread 0").to_owned();
    let tight = || child("7MiB").environment("OFFLOAD_PINNED_BUDGET", LOCKED);
    let (_, whole) = run_and_report(tight());
    let copies = number(&whole, "copies") as u64;
    let mut failed = 0;
    for share in 2..8 {
        let (report, stand_in) =
            run_and_report(tight().environment("STAND_IN_FAIL_COPY_AFTER", copies * share / 8));
        let outcome = report.text("thread 0");
        println!("{share}: {outcome}");
        assert!(outcome == right || outcome.starts_with("error: "), "{outcome}");
        failed += number(&stand_in, "failed_copies") as u64;
    }
    assert!(failed > 0);
}

#[test]
fn page_locked_copies_start_no_thread_and_lock_no_buffer() {
    let Some(machine) = Machine::eager("page_locked_copies_start_no_thread_and_lock_no_buffer") else {
        return;
    };
    let unlimited = machine.run(training(&machine, "mlp"));
    let run = |child: Child| {
        let (report, stand_in) = run_and_report(child.with("budget", half(&unlimited)));
        assert!(report.number("evictions") > 0);
        stand_in
    };
    let locked = run(training(&machine, "mlp"));
    let ample = run(training(&machine, "mlp").environment("OFFLOAD_PINNED_BUDGET", "1GiB"));
    for stand_in in [&locked, &ample] {
        assert_eq!(number(stand_in, "other_hosts") as u64, 0);
    }
    assert_eq!(ample["pinned_bytes"], locked["pinned_bytes"]);
}

mod gate {
    use super::*;

    const CALLS: [&str; 2] = ["cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"];

    #[derive(Debug)]
    struct Waits {
        in_copies: f64,
        all: f64,
        simulated: f64,
    }

    impl Waits {
        fn of(stand_in: &Value) -> Self {
            let in_copies = CALLS.iter().map(|call| stand_in["waits"][call]["ms"].as_f64().unwrap_or(0.0));
            Self {
                in_copies: in_copies.sum(),
                all: number(stand_in, "host_waited_ms"),
                simulated: number(stand_in, "simulated_ms"),
            }
        }
    }

    #[test]
    #[ignore = "gate: trains a deep network"]
    fn copies_of_ordinary_memory_hold_up_no_launch() {
        let Some(machine) = Machine::eager("copies_of_ordinary_memory_hold_up_no_launch") else { return };
        let child = || {
            let child =
                training(&machine, "transformer").with("size", "deep").environment("STAND_IN_RACES", 0);
            child.environment("STAND_IN_CARD", "4090").environment("STAND_IN_KERNEL_US", 200)
        };
        let unlimited = machine.run(child());
        let run = |child: Child| {
            let (report, stand_in) = run_and_report(child.with("budget", half(&unlimited)));
            assert_eq!(report.text("fingerprint"), unlimited.text("fingerprint"));
            assert!(report.number("left ahead") > 0 && report.number("brought ahead") > 0, "{report:?}");
            println!("{report:?}\n{stand_in}");
            Waits::of(&stand_in)
        };
        let locked = run(child());
        let ordinary = run(child().environment("OFFLOAD_PINNED_BUDGET", LOCKED));
        println!("{locked:?}\n{ordinary:?}");
        assert!(ordinary.in_copies <= locked.in_copies + 1.0);
        assert!(ordinary.all <= 1.05 * locked.all + 1.0);
        assert!(ordinary.simulated <= 1.05 * locked.simulated);
    }
}
