//! Things go wrong on purpose: either nobody notices, or the one who asked is told.

use super::{Plain, Spilling, run, vulkan};
use crate::child::{Child, Facts, Report, Scenario};
use crate::operations::refusals::message;
use crate::programs::{Size, program};
use backend_offload::{Faults, OffloadConfig, stats};
use burn::backend::Autodiff;
use burn::prelude::*;
use cubecl_wgpu::WgpuDevice;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario { name: "vulkan/faults", run: suffer }]
}

const STEPS: usize = 4;

/// Trains on every thread under the faults asked for; each thread reports its fingerprint or what it was told.
fn suffer(parameters: &Facts) -> Facts {
    let device = WgpuDevice::default();
    let number = |name| parameters.find(name).map_or(0, |text| text.parse().expect("a number"));
    let faults = Faults {
        refuse_allocation_every: number("refuse every"),
        refuse_allocations_after: number("refuse after"),
        break_copy_out_every: number("break copies"),
        panic_in_launch_every: number("panic"),
    };
    let budget = parameters.text("budget").parse().expect("a budget");
    let mut config = OffloadConfig::new().device_budget(budget).max_bindings(8).faults(faults);
    if let Some(host) = parameters.find("host") {
        config = config.host_budget(host.parse().expect("a budget"));
    }
    config.install::<Plain>(&device).expect("installs");

    let train = program::<Autodiff<Spilling>>("mlp").train;
    let outcome = || {
        let trained = catch_unwind(AssertUnwindSafe(|| train(&WgpuDevice::default(), Size::Usual, STEPS, 1)));
        trained.map_or_else(
            |panic| format!("told: {}", message(panic.as_ref())),
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
    // After everything that happened, a small operation works and gives the right value.
    let small = catch_unwind(AssertUnwindSafe(|| {
        let ones = Tensor::<Spilling, 2>::ones([64, 64], &device);
        ones.sum().into_scalar()
    }));
    let stats = stats::<Plain>(&device);
    facts
        .with("small", small.is_ok_and(|sum| sum.to_bits() == 4096f32.to_bits()))
        .with("refusals", stats.device_refusals)
        .with("evictions", stats.evictions)
        .with("failures", stats.failures)
}

fn child(threads: u64, budget: &str) -> Child {
    Child::new("vulkan/faults").with("threads", threads).with("budget", budget)
}

fn outcomes(report: &Report) -> Vec<&str> {
    report.iter().filter(|(name, _)| name.starts_with("thread ")).map(|(_, outcome)| outcome).collect()
}

fn fault_free() -> String {
    run(child(1, "unlimited")).text("thread 0").to_owned()
}

/// Faults that can be worked around change nothing.
fn assert_recovered(fault: Child, right: &str) -> Report {
    let report = run(fault);
    for outcome in outcomes(&report) {
        assert_eq!(outcome, right);
    }
    assert!(report.value::<bool>("small"));
    assert_eq!(report.number("failures"), 0);
    report
}

/// Faults that cannot are told; whoever is told nothing has the right values.
fn assert_told(fault: Child, right: &str, what: &str) {
    let report = run(fault);
    let mut told = 0;
    for outcome in outcomes(&report) {
        if let Some(text) = outcome.strip_prefix("told: ") {
            assert!(text.contains(what), "{text}");
            told += 1;
        } else {
            assert_eq!(outcome, right, "a thread that was told nothing");
        }
    }
    assert!(told > 0, "somebody is told: {report:?}");
}

const TIGHT: &str = "7MiB";

#[test]
fn refused_allocations_are_worked_around() {
    if !vulkan("refused allocations") {
        return;
    }
    let right = fault_free();
    for threads in [1, 8] {
        let report = assert_recovered(child(threads, TIGHT).with("refuse every", 7), &right);
        assert!(report.number("refusals") > 0);
        assert_recovered(child(threads, "unlimited").with("refuse every", 7), &right);
    }
}

#[test]
fn copies_that_fail_now_and_then_are_worked_around() {
    if !vulkan("failing copies") {
        return;
    }
    let right = fault_free();
    for threads in [1, 8] {
        let report = assert_recovered(child(threads, TIGHT).with("break copies", 5), &right);
        assert!(report.number("evictions") > 0);
    }
}

#[test]
fn a_device_that_refuses_for_good_is_told() {
    if !vulkan("a refusing device") {
        return;
    }
    let right = fault_free();
    for threads in [1, 8] {
        assert_told(child(threads, "unlimited").with("refuse after", 40), &right, "refused device memory");
    }
}

#[test]
fn a_host_that_fills_up_mid_step_is_told() {
    if !vulkan("a full host") {
        return;
    }
    let right = fault_free();
    for threads in [1, 8] {
        assert_told(child(threads, TIGHT).with("host", "128KiB"), &right, "host");
    }
}

#[test]
fn copies_that_always_fail_are_told() {
    if !vulkan("always failing copies") {
        return;
    }
    let right = fault_free();
    for threads in [1, 8] {
        assert_told(child(threads, TIGHT).with("break copies", 1), &right, "copying them out failed");
    }
}

#[test]
fn a_panic_inside_the_runtime_is_told() {
    if !vulkan("a panicking runtime") {
        return;
    }
    let right = fault_free();
    for threads in [1, 8] {
        assert_told(child(threads, TIGHT).with("panic", 50), &right, "panicked");
    }
}
