//! Copies and reads that overlap with kernels, on CUDA's stand-in.

use super::Machine;
use crate::child::{Child, Report};
use crate::stand_in::{Schedules, run_and_report};

fn transformer(machine: &Machine) -> Child {
    let child = machine.child("cube/train").with("program", "transformer").with("steps", 6);
    child.environment("STAND_IN_KERNEL_US", 20).environment("STAND_IN_BANDWIDTH", "4e9")
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: trains for minutes"]
    fn overlapped_copies_shorten_a_step_and_give_the_same_bits() {
        let Some(machine) = Machine::eager("overlapped_copies_shorten_a_step_and_give_the_same_bits") else {
            return;
        };
        let unlimited = machine.run(transformer(&machine));
        let budget = unlimited.number("device peak") / 4;
        let run = |child: Child| -> (Report, f64) {
            let (report, stand_in) = run_and_report(child.with("budget", budget));
            assert_eq!(stand_in["findings"].to_string(), "{}");
            assert_eq!(report.text("fingerprint"), unlimited.text("fingerprint"));
            (report, stand_in["simulated_ms"].as_f64().expect("milliseconds"))
        };
        run(transformer(&machine));
        let (beside, overlapped) = run(transformer(&machine));
        let (in_line, serial) = run(transformer(&machine).environment("OFFLOAD_OVERLAP", 0));
        println!("{overlapped} ms, in line {serial} ms");
        assert!(beside.number("brought ahead") > 0 && in_line.number("brought ahead") == 0);
        assert!(overlapped < 0.9 * serial, "{overlapped} ms, in line {serial} ms");
    }

    #[test]
    #[ignore = "gate: trains three times in each order"]
    fn addresses_that_serve_again_at_once_and_memory_in_granules_change_no_bit() {
        let test = "addresses_that_serve_again_at_once_and_memory_in_granules_change_no_bit";
        for machine in Machine::stand_in(test, Schedules::Every) {
            let train = |scenario| machine.child(scenario).with("program", "mlp").with("steps", 6);
            let plain = machine.run(train("cube/train plain"));
            let spilling = || {
                let child = train("cube/train").with("plain fusion", true);
                child.environment("STAND_IN_REUSE", 1).environment("STAND_IN_GRANULE", "2M")
            };
            let unlimited = machine.run(spilling());
            let (peak, largest) = (unlimited.number("device peak"), unlimited.number("largest launch"));
            let budget = (peak / 2).max(largest + largest / 20);
            let tight = machine.run(spilling().with("budget", budget));
            assert!(tight.number("evictions") > 0 && tight.number("brought ahead") > 0, "{tight:?}");
            for report in [&unlimited, &tight] {
                assert_eq!(report.text("fingerprint"), plain.text("fingerprint"), "{machine:?}");
            }
        }
    }
}

#[test]
fn copies_overlap_although_a_threads_first_call_creates_no_tensor() {
    let test = "copies_overlap_although_a_threads_first_call_creates_no_tensor";
    let Some(machine) = Machine::eager(test) else { return };
    let train = || machine.child("cube/train").with("program", "mlp").with("steps", 6);
    let unlimited = machine.run(train());
    let budget = unlimited.number("device peak") * 3 / 4;
    for first in [None, Some("synchronise first")] {
        let child = train().with("budget", budget);
        let child = first.iter().fold(child, |child, name| child.with(name, 1));
        let report = machine.run(child);
        assert_eq!(report.text("fingerprint"), unlimited.text("fingerprint"));
        assert!(report.number("brought ahead") > 0, "{first:?}: nothing came ahead");
    }
}

fn reads(machine: &Machine) -> Child {
    let child = machine.child("cube/reads").with("budget", "unlimited");
    child.environment("STAND_IN_KERNEL_US", 40).environment("STAND_IN_BANDWIDTH", "4e9")
}

#[test]
fn kernels_do_not_wait_for_earlier_reads() {
    let Some(machine) = Machine::eager("kernels_do_not_wait_for_earlier_reads") else { return };
    let run = |child: Child| -> (u64, f64) {
        let (report, stand_in) = run_and_report(child);
        assert_eq!(stand_in["findings"].to_string(), "{}");
        (report.number("under way"), stand_in["simulated_ms"].as_f64().expect("milliseconds"))
    };
    for allocates in [false, true] {
        let child = || {
            let child = reads(&machine).with("lets go", 1);
            if allocates { child.with("allocates", 1) } else { child }
        };
        let (beside, overlapped) = run(child());
        let (in_line, serial) = run(child().environment("OFFLOAD_OVERLAP", 0));
        println!("{overlapped} ms, in line {serial} ms");
        assert_eq!((beside, in_line), (16, 0), "reads that were under way when they had begun");
        assert!(overlapped < 0.8 * serial, "{overlapped} ms, in line {serial} ms");
    }
    let small = || reads(&machine).with("lets go", 1).with("small", 1);
    assert_eq!((run(small()).0, run(small().environment("OFFLOAD_OVERLAP", 0)).0), (8, 0));
}

fn uploads(machine: &Machine) -> Child {
    let child = machine.child("cube/new weights").with("budget", "unlimited");
    child.environment("STAND_IN_KERNEL_US", 40).environment("STAND_IN_BANDWIDTH", "4e9")
}

#[test]
fn kernels_do_not_wait_for_weights_that_later_ones_use() {
    let Some(machine) = Machine::eager("kernels_do_not_wait_for_weights_that_later_ones_use") else { return };
    let run = |child: Child| -> f64 {
        let (_, stand_in) = run_and_report(child);
        assert_eq!(stand_in["findings"].to_string(), "{}");
        stand_in["simulated_ms"].as_f64().expect("milliseconds")
    };
    let (overlapped, serial) =
        (run(uploads(&machine)), run(uploads(&machine).environment("OFFLOAD_OVERLAP", 0)));
    println!("{overlapped} ms, in line {serial} ms");
    assert!(overlapped < 0.8 * serial, "{overlapped} ms, in line {serial} ms");
}

#[test]
fn memory_of_new_weights_becomes_their_host_copy() {
    let Some(machine) = Machine::eager("memory_of_new_weights_becomes_their_host_copy") else { return };
    let report = machine.run(machine.child("cube/new weights").with("budget", "5MiB").with("keeps", 1));
    assert!(report.number("restores") > 0, "some began on the host");
    assert_eq!(report.number("grew"), 0);
}

#[test]
fn a_missing_wait_for_new_weights_is_found() {
    let Some(machine) = Machine::eager("a_missing_wait_for_new_weights_is_found") else { return };
    let (_, stand_in) = run_and_report(uploads(&machine).with("out of order", 1));
    assert!(stand_in["findings"].to_string().contains("missing wait"), "{stand_in}");
}

#[test]
fn a_missing_wait_for_a_read_is_found() {
    let Some(machine) = Machine::eager("a_missing_wait_for_a_read_is_found") else { return };
    let (_, stand_in) = run_and_report(reads(&machine).with("out of order", 1));
    assert!(stand_in["findings"].to_string().contains("missing wait"), "{stand_in}");
}

#[test]
fn a_missing_wait_for_a_copy_is_found() {
    let Some(machine) = Machine::eager("a_missing_wait_for_a_copy_is_found") else { return };
    let child = |fault: u64| {
        let child = machine
            .child("cube/faults")
            .with("threads", 1)
            .with("budget", "8MiB")
            .with("out of order", fault);
        child.environment("STAND_IN_MODE", "lazy")
    };
    let (_, stand_in) = run_and_report(child(0));
    assert_eq!(stand_in["findings"].to_string(), "{}");
    let (_, stand_in) = run_and_report(child(1));
    assert!(stand_in["findings"].to_string().contains("missing wait"), "{stand_in}");
}
