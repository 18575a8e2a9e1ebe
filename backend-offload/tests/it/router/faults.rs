//! A faulty device: identical bits or one clear error, never a wrong value.

use super::{Child, OPERATE, one_byte, outcomes, training};
use crate::child::{Facts, Scenario};
use crate::disk;
use burn_flex::{Flex, FlexDevice};
use std::collections::HashMap;

pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario { name: "router: failing disk", run: tensors }]
}

const CLEAR: &[&str] = &[
    "was refused device memory by the driver",
    "copying them out failed (a copy broken on purpose)",
    "an upload broken on purpose",
    "a launch broken on purpose",
    "whose budget is used up",
];

fn is_clear(message: &str) -> bool {
    CLEAR.iter().any(|clear| message.contains(clear))
}

fn every_operation_is_right_or_reports_why(fault: &str, every: u64) -> u64 {
    let free = Child::new(OPERATE).with("threads", 1).run();
    let expected: HashMap<&str, &str> = outcomes(&free).collect();
    let mut failed = 0;
    for threads in [1, 8] {
        let faulty = one_byte(threads).with(fault, every).run();
        for (operation, outcome) in outcomes(&faulty) {
            if let Some(message) = outcome.strip_prefix("panic: ") {
                assert!(is_clear(message), "{operation} with {threads} threads: {message}");
                failed += 1;
            } else if operation != "wrong programs" {
                assert_eq!(outcome, expected[operation], "{operation} with {threads} threads");
            }
        }
        assert_eq!(faulty.number("in use") + faulty.number("host in use"), 0, "nothing stays behind");
    }
    failed
}

#[test]
fn occasionally_refused_memory_is_requested_again() {
    assert_eq!(every_operation_is_right_or_reports_why("refuse every", 7), 0);
}

#[test]
fn permanently_refused_memory_fails_clearly_on_the_requesting_thread() {
    assert!(every_operation_is_right_or_reports_why("refuse after", 400) > 0);
}

#[test]
fn failed_copies_leave_every_value_right() {
    every_operation_is_right_or_reports_why("break copies every", 5);
}

#[test]
fn failed_uploads_leave_every_other_value_right() {
    assert!(every_operation_is_right_or_reports_why("break uploads every", 50) > 0);
}

#[test]
fn backend_panics_lose_only_the_result_being_computed() {
    assert!(every_operation_is_right_or_reports_why("panic every", 50) > 0);
}

#[test]
fn training_under_occasional_refusals_gives_the_same_bits() {
    let free = training("tied transformer", 5).run();
    let budget = free.number("peak") / 2;
    let refused = training("tied transformer", 5).with("budget", budget).with("refuse every", 10).run();
    assert_eq!(refused.number("fingerprint"), free.number("fingerprint"));
    assert!(refused.number("device refusals") > 0);
}

#[test]
fn training_under_failed_copies_gives_the_same_bits_or_an_error() {
    let free = training("transformer", 3).run();
    let budget = free.number("peak") / 2;
    for every in [2, 30] {
        let broken =
            training("transformer", 3).with("budget", budget).with("break copies every", every).run();
        match broken.find("error") {
            Some(error) => assert!(is_clear(error), "{error}"),
            None => assert_eq!(broken.number("fingerprint"), free.number("fingerprint")),
        }
        assert_eq!(broken.number("in use") + broken.number("host in use"), 0);
    }
}

#[test]
fn training_reports_a_full_host() {
    let free = training("transformer", 2).run();
    let budget = free.number("peak") / 2;
    let full = training("transformer", 2).with("budget", budget).with("host budget", "256KiB").run();
    let error = full.text("error");
    assert!(error.contains("raise the host budget"), "{error}");
    assert_eq!(full.number("in use") + full.number("host in use"), 0);
}

fn tensors(facts: &Facts) -> Facts {
    disk::tensors::<Flex>(facts, &FlexDevice)
}

#[test]
fn occasional_disk_failures_are_reported_and_lose_nothing() {
    disk::values_are_right_or_the_failure_is_reported(&[0, 1, 2, 3, 4], |fault| {
        Child::new("router: failing disk").with("disk fault", fault).with("every", 3).run()
    });
}

#[test]
fn training_above_a_failing_disk_gives_the_same_bits_or_an_error() {
    let free = training("transformer", 3).run();
    let budget = free.number("peak") / 2;
    let tight = || training("transformer", 3).with("budget", budget);
    let host = tight().run().number("host peak") / 4;

    for (name, _, reason) in disk::FAULTS {
        for every in [1, 40] {
            let above = tight().with("host budget", host).with("disk", "64MiB");
            let broken = above.with("disk fault", name).with("every", every).run();
            match broken.find("error") {
                Some(error) => assert!(
                    error.contains(" of the file on the disk at ") && error.contains(reason),
                    "{error}"
                ),
                None => {
                    assert_eq!(broken.number("fingerprint"), free.number("fingerprint"), "{name}, {every}");
                }
            }
            assert!(every > 1 || broken.find("error").is_some(), "{name}: nothing works there");
            assert_eq!(broken.number("in use") + broken.number("host in use"), 0, "{name}, {every}");
        }
    }
}
