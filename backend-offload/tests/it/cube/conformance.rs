//! Every operation gives the plain backend's results, at any budget, on any number of threads.

use super::{Machine, Plain, Spilling, Target, children, counted, install, promises};
use crate::child::{Child, Facts, Report};
use crate::operations::{Operation, operations};
use burn::backend::Autodiff;
use burn::tensor::backend::AutodiffBackend;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use suite::Size;

children! { "cube/operations plain" => plain, "cube/operations" => spilling }

promises! {
    stand_in { every_operation_equals_the_plain_backend_at_any_budget_from_several_threads: EveryInGate }
    vulkan {}
    full { every_operation_equals_the_plain_backend_at_any_budget_from_several_threads }
}

fn plain<T: Target>(parameters: &Facts) -> Facts {
    results::<Autodiff<Plain<T>>>(&T::device(), parameters)
}

fn spilling<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    let results = results::<Autodiff<Spilling<T>>>(&device, parameters);
    counted::<T>(&device, results)
}

fn results<B: AutodiffBackend>(device: &B::Device, parameters: &Facts) -> Facts {
    let (threads, left_out) = (parameters.value("threads"), parameters.find("left out"));
    let all: Vec<Vec<(&str, String)>> = std::thread::scope(|scope| {
        let start = |n: usize| {
            let mut list = operations::<B>();
            list.retain(|operation| left_out != Some(operation.name));
            // Compiling their kernels takes a minute.
            list = list.into_iter().step_by(suite::size().pick(3, 1, 1)).collect();
            let shift = n * list.len() / threads;
            list.rotate_left(shift);
            scope.spawn(move || list.into_iter().map(|o| (o.name, outcome(&o, device))).collect())
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        running.into_iter().map(|thread| thread.join().expect("outcomes are caught")).collect()
    });
    let mut facts = Facts::default();
    for (name, outcome) in all.iter().flatten() {
        let key = format!("operation {name}");
        let other = facts.find(&key).filter(|other| other != outcome);
        let outcome =
            other.map_or_else(|| outcome.clone(), |other| format!("{other}, on another thread {outcome}"));
        facts = facts.with(&key, outcome);
    }
    facts
}

fn outcome<B: AutodiffBackend>(operation: &Operation<B>, device: &B::Device) -> String {
    catch_unwind(AssertUnwindSafe(|| {
        let mut hasher = DefaultHasher::new();
        for value in (operation.run)(device) {
            (&value.name, value.data.shape.as_slice(), &value.data.bytes[..]).hash(&mut hasher);
        }
        format!("{:016x}", hasher.finish())
    }))
    .unwrap_or_else(|panic| format!("panic: {}", crate::operations::refusals::message(panic.as_ref())))
}

fn assert_same(plain: &Report, spilled: &Report) {
    let outcomes = |report: &Report| -> Vec<(String, String)> {
        let all = report.iter().filter(|(name, _)| name.starts_with("operation "));
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let expected = outcomes(plain);
    assert!(expected.len() > suite::size().pick(14, 40, 40), "the suite ran: {} operations", expected.len());
    let found = outcomes(spilled);
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(expected, found);
    }
    assert_eq!(expected.len(), found.len(), "operations that ran on both");
}

/// CUDA's driver refuses plain kernels for empty tensors.
fn adapted(machine: &Machine, child: Child) -> Child {
    if machine.is_vulkan() {
        return child;
    }
    child.with("left out", "no elements").environment("STAND_IN_CXXFLAGS", "-O0")
}

fn everything_managed(machine: &Machine, threads: usize, budget: &str) -> Child {
    // Without cuts of fusion, both backends run the same kernels.
    adapted(machine, machine.child("cube/operations"))
        .with("threads", threads)
        .with("budget", budget)
        .with("alone", true)
        .with("smallest", 1)
        .with("plain fusion", true)
}

fn every_operation_equals_the_plain_backend_at_any_budget_from_several_threads(machine: &Machine) {
    let plain = machine.run(adapted(machine, machine.child("cube/operations plain")).with("threads", 1));
    // Threads spin while CubeCL's queues are full: more take several times as long.
    let settings = match suite::size() {
        Size::Full if machine.is_thorough() => vec![(2, "unlimited"), (4, "1")],
        Size::Gate if machine.is_thorough() => vec![(2, "unlimited"), (2, "1")],
        _ => vec![(2, "1")],
    };
    for (threads, budget) in settings {
        let spilled = machine.run(everything_managed(machine, threads, budget));
        println!(
            "{threads} threads at {budget}: {} launches, {} evictions, {} restores",
            spilled.text("launches"),
            spilled.text("evictions"),
            spilled.text("restores")
        );
        assert_same(&plain, &spilled);
        assert_eq!(spilled.number("failures"), 0);
        if budget == "1" {
            assert!(spilled.number("evictions") > 100, "one byte keeps nothing on the device");
        }
    }
}
