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
        let plain = machine.child("cube/train plain").with("program", "mlp").with("steps", 1);
        let (_, plain) = run_and_report(plain);
        let unlimited = machine.run(training(&machine, "mlp"));
        let tight = || training(&machine, "mlp").with("budget", half(&unlimited));
        let run = |child: Child| {
            let (report, stand_in) = run_and_report(child);
            assert_eq!(stand_in["findings"].to_string(), "{}");
            assert_eq!(report.text("fingerprint"), unlimited.text("fingerprint"));
            assert!(report.number("evictions") > 0 && report.number("brought ahead") > 0, "{report:?}");
            stand_in
        };

        let staged = run(tight().environment("OFFLOAD_PINNED_BUDGET", LOCKED));
        assert_eq!(number(&staged, "other_hosts") as u64, 2, "a thread for each direction");
        let refused = run(tight().environment("STAND_IN_PINNED", plain["peak_pinned_bytes"].to_string()));
        assert!(number(&refused, "refused_pinned_allocations") > 0.0);
        assert_eq!(number(&refused, "other_hosts") as u64, 0);
        assert!(number(&refused, "copies_pageable") > number(&staged, "copies_pageable"));
    }
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

    /// Of the launching thread: waits in copies, and all its time.
    fn milliseconds(stand_in: &Value) -> [f64; 2] {
        let in_copies = CALLS.iter().map(|call| stand_in["waits"][call]["ms"].as_f64().unwrap_or(0.0));
        [in_copies.sum(), number(stand_in, "host_ms")]
    }

    #[test]
    #[ignore = "gate: trains a deep network"]
    fn copies_of_ordinary_memory_hold_up_no_launch() {
        let Some(machine) = Machine::eager("copies_of_ordinary_memory_hold_up_no_launch") else { return };
        let child = || {
            let child = training(&machine, "mlp").with("size", "deep").environment("STAND_IN_RACES", 0);
            child.environment("STAND_IN_CARD", "4090").environment("STAND_IN_KERNEL_US", 200)
        };
        let unlimited = machine.run(child());
        let run = |child: Child| {
            let (report, stand_in) = run_and_report(child.with("budget", half(&unlimited)));
            assert_eq!(report.text("fingerprint"), unlimited.text("fingerprint"));
            assert!(report.number("left ahead") > 0 && report.number("brought ahead") > 0, "{report:?}");
            milliseconds(&stand_in)
        };
        let (locked, ordinary) = (run(child()), run(child().environment("OFFLOAD_PINNED_BUDGET", LOCKED)));
        println!("locked {locked:?}, ordinary {ordinary:?}");
        assert!(ordinary[0] <= locked[0] + 1.0 && ordinary[1] <= 1.03 * locked[1]);
    }
}
