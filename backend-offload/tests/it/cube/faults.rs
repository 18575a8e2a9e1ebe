//! Injected faults: unchanged results, or an error for the caller.

use super::{Machine, Plain, Spilling, Target, children, promises};
use crate::child::{Child, Facts, Report};
use crate::disk;
use crate::folders;
use crate::operations::refusals::message;
use crate::programs::{Size, program};
use backend_offload::{Faults, OffloadConfig, stats};
use burn::backend::Autodiff;
use burn::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

children! { "cube/faults" => train_under_faults, "cube/failing disk" => tensors }

promises! {
    stand_in {
        failed_uploads_are_reported_and_damage_no_block: Few,
        refused_allocations_are_worked_around: Few,
        a_driver_out_of_memory_is_worked_around_or_reported: Few,
        occasional_copy_failures_are_worked_around: Few,
        a_device_that_always_refuses_is_reported: Few,
        a_host_that_fills_up_mid_step_is_reported: Few,
        occasional_disk_failures_are_reported_and_lose_nothing: Few,
        copies_that_always_fail_are_reported: Few,
        a_panic_inside_the_runtime_is_reported: Few,
    }
    gate { training_above_a_failing_disk_gives_the_same_bits_or_an_error: OneOrEvery }
    vulkan {
        refused_allocations_are_worked_around,
        a_device_that_always_refuses_is_reported,
    }
    full {
        occasional_copy_failures_are_worked_around,
        failed_uploads_are_reported_and_damage_no_block,
        a_host_that_fills_up_mid_step_is_reported,
        occasional_disk_failures_are_reported_and_lose_nothing,
        training_above_a_failing_disk_gives_the_same_bits_or_an_error,
        copies_that_always_fail_are_reported,
        a_panic_inside_the_runtime_is_reported,
    }
}

const STEPS: usize = 4;

fn train_under_faults<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    let number = |name| parameters.find(name).map_or(0, |text| text.parse().expect("a number"));
    let faults = Faults {
        refuse_allocation_every: number("refuse every"),
        refuse_allocations_after: number("refuse after"),
        break_copy_out_every: number("break copies"),
        break_copy_in_every: number("break uploads"),
        break_disk_every: disk::fault(parameters),
        panic_in_launch_every: number("panic"),
        copies_out_of_order: number("out of order") > 0,
    };
    let budget = parameters.text("budget").parse().expect("a budget");
    let mut config = OffloadConfig::new().device_budget(budget).max_bindings(8).faults(faults);
    if let Some(host) = parameters.find("host") {
        config = config.host_budget(host.parse().expect("a budget"));
    }
    if let Some(disk) = parameters.find("disk") {
        config = config.disk(folders::target(), disk.parse().expect("a budget"));
    }
    config.install::<Plain<T>>(&device).expect("installs");

    let train = program::<Autodiff<Spilling<T>>>("mlp").train;
    let outcome = || {
        let trained = catch_unwind(AssertUnwindSafe(|| train(&T::device(), Size::Usual, STEPS, 1)));
        trained.map_or_else(
            |panic| format!("error: {}", message(panic.as_ref())),
            |run| format!("{:016x}", run.fingerprint()),
        )
    };
    let outcomes: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..number("threads")).map(|_| scope.spawn(outcome)).collect();
        running.into_iter().map(|thread| thread.join().expect("caught")).collect()
    });
    let mut facts = Facts::default();
    for (n, outcome) in outcomes.into_iter().enumerate() {
        facts = facts.with(&format!("thread {n}"), outcome);
    }

    let small = catch_unwind(AssertUnwindSafe(|| {
        let ones = Tensor::<Spilling<T>, 2>::ones([64, 64], &device);
        ones.sum().into_scalar().elem::<f32>()
    }));
    let stats = stats::<Plain<T>>(&device);
    facts
        .with("small", small.is_ok_and(|sum| sum.to_bits() == 4096f32.to_bits()))
        .with("refusals", stats.device_refusals)
        .with("evictions", stats.evictions)
        .with("failures", stats.failures)
}

fn child(machine: &Machine, threads: u64, budget: &str) -> Child {
    machine.child("cube/faults").with("threads", threads).with("budget", budget)
}

fn outcomes(report: &Report) -> Vec<&str> {
    report.iter().filter(|(name, _)| name.starts_with("thread ")).map(|(_, outcome)| outcome).collect()
}

fn fault_free(machine: &Machine) -> String {
    machine.run(child(machine, 1, "unlimited")).text("thread 0").to_owned()
}

fn thread_counts(machine: &Machine) -> &'static [u64] {
    // Many threads on few processors mostly wait for queues.
    if machine.is_thorough() { suite::size().pick(&[1], &[1, 8], &[1, 8]) } else { &[2] }
}

fn assert_recovered(machine: &Machine, fault: Child, right: &str) -> Report {
    let report = machine.run(fault);
    for outcome in outcomes(&report) {
        assert_eq!(outcome, right);
    }
    assert!(report.value::<bool>("small"));
    assert_eq!(report.number("failures"), 0);
    report
}

fn assert_reported(machine: &Machine, fault: Child, right: &str, what: &str) {
    let report = machine.run(fault);
    let mut reported = 0;
    for outcome in outcomes(&report) {
        if let Some(text) = outcome.strip_prefix("error: ") {
            assert!(text.contains(what), "{text}");
            reported += 1;
        } else {
            assert_eq!(outcome, right, "a thread without an error");
        }
    }
    assert!(reported > 0, "a thread reports it: {report:?}");
}

const TIGHT: &str = "7MiB";

fn refused_allocations_are_worked_around(machine: &Machine) {
    let right = fault_free(machine);
    for &threads in thread_counts(machine) {
        let report =
            assert_recovered(machine, child(machine, threads, TIGHT).with("refuse every", 7), &right);
        assert!(report.number("refusals") > 0);
        assert_recovered(machine, child(machine, threads, "unlimited").with("refuse every", 7), &right);
    }
}

/// Vulkan's driver cannot refuse.
#[cfg(feature = "cuda")]
fn a_driver_out_of_memory_is_worked_around_or_reported(machine: &Machine) {
    let right = fault_free(machine);
    let within = |bytes: u64| child(machine, 1, "unlimited").environment("STAND_IN_VRAM", bytes);
    let report = assert_recovered(machine, within(9 << 20), &right);
    assert!(report.number("refusals") > 0 && report.number("evictions") > 0, "{report:?}");
    assert_reported(machine, within(4 << 20), &right, "refused device memory");
}

fn occasional_copy_failures_are_worked_around(machine: &Machine) {
    let right = fault_free(machine);
    for &threads in thread_counts(machine) {
        let report =
            assert_recovered(machine, child(machine, threads, TIGHT).with("break copies", 5), &right);
        assert!(report.number("evictions") > 0);
    }
}

fn a_device_that_always_refuses_is_reported(machine: &Machine) {
    let right = fault_free(machine);
    for &threads in thread_counts(machine) {
        assert_reported(
            machine,
            child(machine, threads, "unlimited").with("refuse after", 40),
            &right,
            "refused device memory",
        );
    }
}

fn a_host_that_fills_up_mid_step_is_reported(machine: &Machine) {
    let right = fault_free(machine);
    for &threads in thread_counts(machine) {
        assert_reported(machine, child(machine, threads, TIGHT).with("host", "128KiB"), &right, "host");
    }
}

fn tensors<T: Target>(parameters: &Facts) -> Facts {
    disk::tensors::<Plain<T>>(parameters, &T::device())
}

fn occasional_disk_failures_are_reported_and_lose_nothing(machine: &Machine) {
    let faults: &[usize] = if machine.is_thorough() { &[0, 1, 2, 3, 4] } else { &[2, 4] };
    disk::values_are_right_or_the_failure_is_reported(faults, |fault| {
        machine.run(machine.child("cube/failing disk").with("disk fault", fault).with("every", 3))
    });
}

fn training_above_a_failing_disk_gives_the_same_bits_or_an_error(machine: &Machine) {
    let right = fault_free(machine);
    for (n, every) in [(2, 5), (4, 1)] {
        let (name, _, reason) = disk::FAULTS[n];
        // One thread's spills fit this host.
        let fault = child(machine, 2, TIGHT).with("host", "2MiB").with("disk", "256MiB");
        assert_reported(machine, fault.with("disk fault", name).with("every", every), &right, reason);
    }
}

fn copies_that_always_fail_are_reported(machine: &Machine) {
    let right = fault_free(machine);
    for &threads in thread_counts(machine) {
        assert_reported(
            machine,
            child(machine, threads, TIGHT).with("break copies", 1),
            &right,
            "copying them out failed",
        );
    }
}

fn a_panic_inside_the_runtime_is_reported(machine: &Machine) {
    let right = fault_free(machine);
    for &threads in thread_counts(machine) {
        assert_reported(machine, child(machine, threads, TIGHT).with("panic", 50), &right, "panicked");
    }
}

fn failed_uploads_are_reported_and_damage_no_block(machine: &Machine) {
    let right = fault_free(machine);
    for &threads in thread_counts(machine) {
        let fault = child(machine, threads, TIGHT).with("break uploads", 6);
        assert_reported(machine, fault, &right, "the upload failed");
    }
}
