//! Every operation does what it does on the plain backend, at any budget and from any number of threads.

use super::{Plain, Spilling, counted, install, run, vulkan};
use crate::child::{Child, Facts, Report, Scenario};
use crate::operations::{Operation, operations};
use burn::backend::Autodiff;
use burn::tensor::backend::AutodiffBackend;
use cubecl_wgpu::WgpuDevice;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "vulkan/operations plain", run: plain },
        Scenario { name: "vulkan/operations", run: spilling },
    ]
}

fn plain(parameters: &Facts) -> Facts {
    results::<Autodiff<Plain>>(&WgpuDevice::default(), parameters.value("threads"))
}

fn spilling(parameters: &Facts) -> Facts {
    let device = WgpuDevice::default();
    install(parameters, &device);
    let results = results::<Autodiff<Spilling>>(&device, parameters.value("threads"));
    counted(&device, results)
}

/// What every operation gives on each of `threads` threads at once: a fingerprint of its values, or what it
/// panicked with. Threads that disagree are reported as such.
fn results<B: AutodiffBackend>(device: &B::Device, threads: usize) -> Facts {
    let all: Vec<Vec<(&str, String)>> = std::thread::scope(|scope| {
        let start = |n: usize| {
            let mut list = operations::<B>();
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
        let agreed = facts.find(&key).is_none_or(|other| other == outcome);
        facts = facts.with(&key, if agreed { outcome.clone() } else { "threads disagree".to_owned() });
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
    assert!(expected.len() > 40, "the suite ran: {} operations", expected.len());
    for (expected, found) in expected.iter().zip(outcomes(spilled)) {
        assert_eq!(*expected, found);
    }
}

fn everything_managed(threads: usize, budget: &str) -> Child {
    // The plain backend's fusion is not cut; neither is ours here, so that both run the same kernels.
    Child::new("vulkan/operations")
        .with("threads", threads)
        .with("budget", budget)
        .with("alone", true)
        .with("smallest", 1)
        .with("bindings", u32::MAX)
}

#[test]
fn every_operation_equals_the_plain_backend_at_any_budget_from_eight_threads() {
    if !vulkan("conformance") {
        return;
    }
    let plain = run(Child::new("vulkan/operations plain").with("threads", 1));
    for (threads, budget) in [(8, "unlimited"), (8, "1")] {
        let spilled = run(everything_managed(threads, budget));
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
