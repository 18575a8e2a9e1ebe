//! Scenarios of child processes, each on its own device.

use crate::child::Facts;
use crate::folders;
use crate::operations::{Operation, Value, operations};
use crate::programs::{Size, program};
use backend_offload::{Event, Faults, Offload, OffloadConfig, Offloadable, Oversized, Stats};
use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

pub fn install<B: Offloadable>(facts: &Facts, device: &B::Device) {
    let budget = |name| facts.find(name).map(|text| text.parse().expect("a budget"));
    let count = |name| facts.find(name).map_or(0, |text| text.parse().expect("a count"));
    let mut config = OffloadConfig::new().faults(Faults {
        refuse_allocation_every: count("refuse every"),
        refuse_allocations_after: count("refuse after"),
        break_copy_out_every: count("break copies every"),
        break_copy_in_every: count("break uploads every"),
        panic_in_launch_every: count("panic every"),
        break_disk_every: crate::disk::fault(facts),
        ..Faults::default()
    });

    if let Some(budget) = budget("budget") {
        config = config.device_budget(budget);
    }
    if let Some(budget) = budget("host budget") {
        config = config.host_budget(budget);
    }
    if let Some(budget) = budget("disk") {
        config = config.disk(folders::target(), budget);
    }
    if facts.find("smallest block").is_some() {
        config = config.smallest_block(facts.number("smallest block"));
    }
    if let Some(policy) = facts.policy() {
        config = config.policy(policy);
    }
    if let Some(path) = facts.find("trace") {
        config = config.trace(path);
    }

    if facts.find("dry").is_some() {
        config = config.dry_run(true);
    }
    if facts.find("alone").is_some() {
        config = config.oversized(Oversized::RunAlone);
    }
    if facts.find("watch").is_some() {
        config = config.watch_runtime();
    }
    if facts.find("paranoid").is_some() {
        config = config.paranoid(true);
    }

    config.install::<B>(device).expect("a device that has not started");
}

pub fn report(stats: &Stats) -> Facts {
    let disk = Facts::default();
    let disk = if stats.disk.budget.is_some_and(|budget| budget > 0) {
        disk.with("spilled", stats.spilled)
            .with("written ahead", stats.written_ahead)
            .with("loaded", stats.loaded)
            .with("loaded ahead", stats.loaded_ahead)
            .with("bytes to disk", stats.bytes_to_disk)
            .with("bytes from disk", stats.bytes_from_disk)
    } else {
        disk
    };
    disk.with("in use", stats.device.in_use)
        .with("reserved", stats.device.reserved)
        .with("peak", stats.device.peak)
        .with("peak reserved", stats.device.peak_reserved)
        .with("host in use", stats.host.in_use)
        .with("host peak", stats.host.peak)
        .with("launches", stats.launches)
        .with("allocations", stats.allocations)
        .with("evictions", stats.evictions)
        .with("clean drops", stats.clean_drops)
        .with("restores", stats.restores)
        .with("bytes out", stats.bytes_out)
        .with("bytes in", stats.bytes_in)
        .with("largest launch", stats.largest_launch)
        .with("over budget", stats.over_budget)
        .with("device refusals", stats.device_refusals)
        .with("predicted", stats.predicted)
        .with("failures", stats.failures)
}

pub fn train<B: Offloadable>(facts: &Facts) -> Facts
where
    Offload<B>: Backend<Device = B::Device>,
{
    let device = B::Device::default();
    install::<B>(facts, &device);

    let size = facts.find("size").map_or(Size::Usual, |name| name.parse().expect("a size"));
    let program = program::<Autodiff<Offload<B>>>(facts.text("program"));
    let threads: usize = facts.find("threads").map_or(1, |count| count.parse().expect("a count"));
    let steps = facts.value("steps");
    let once = || catch(|| (program.train)(&device, size, steps, 1).fingerprint());

    let trained: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(once)).collect();
        running.into_iter().map(|thread| thread.join().expect("panics are caught")).collect()
    });

    drop_abandoned_graphs::<Autodiff<Offload<B>>>(&device);
    backend_offload::mark_step::<B>(&device);

    let mut report = report(&backend_offload::stats::<B>(&device));
    report = report.with("peak found", backend_offload::runtime_peaks::<B>(&device).in_use);
    report = report.and(decisions(&backend_offload::events::<B>(&device)));

    for result in trained {
        let (name, value) = match result {
            Ok(fingerprint) => ("fingerprint", fingerprint.to_string()),
            Err(error) => ("error", error),
        };
        assert!(report.find(name).is_none_or(|other| other == value), "threads disagree on the {name}");
        report = report.with(name, value);
    }
    report
}

fn decisions(events: &[Event]) -> Facts {
    let mut counts = BTreeMap::new();
    // FNV-1a: no compiler may change the committed digest.
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for event in events {
        let text = format!("{event:?}");
        let kind = text.split([' ', '(']).next().unwrap_or_default().to_owned();
        *counts.entry(kind).or_insert(0u64) += 1;
        for byte in text.bytes().chain([b'\n']) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    let facts = Facts::default().with("event digest", format!("{digest:016x}"));
    counts.into_iter().fold(facts, |facts, (kind, count)| facts.with(&format!("events {kind}"), count))
}

pub fn operate<B: Offloadable>(facts: &Facts) -> Facts
where
    Offload<B>: Backend<Device = B::Device>,
{
    let device = B::Device::default();
    install::<B>(facts, &device);
    let threads: usize = facts.value("threads");

    let found: Vec<Vec<(&str, String)>> = thread::scope(|scope| {
        let run = |n: usize| {
            let device = &device;
            scope.spawn(move || {
                let mut list = operations::<Autodiff<Offload<B>>>();
                let start = n * list.len() / threads;
                list.rotate_left(start);
                list.iter().map(|operation| (operation.name, outcome(operation, device))).collect()
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().map(|thread| thread.join().expect("outcomes are caught")).collect()
    });

    drop_abandoned_graphs::<Autodiff<Offload<B>>>(&device);
    let mut facts = report(&backend_offload::stats::<B>(&device));
    for (thread, outcomes) in found.iter().enumerate() {
        for (name, outcome) in outcomes {
            facts = facts.with(&format!("thread {thread}: {name}"), outcome);
        }
    }
    facts
}

/// Autodiff keeps a panicked operation's graph until a backward pass.
fn drop_abandoned_graphs<B: AutodiffBackend>(device: &B::Device) {
    Tensor::<B, 1>::ones([1], device).require_grad().backward();
}

pub fn outcome<B: Backend>(operation: &Operation<B>, device: &B::Device) -> String {
    match catch(|| (operation.run)(device)) {
        Ok(values) => fingerprint(&values).to_string(),
        Err(message) => format!("panic: {message}"),
    }
}

fn fingerprint(values: &[Value]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for value in values {
        value.name.hash(&mut hasher);
        value.data.bytes.hash(&mut hasher);
    }
    hasher.finish()
}

pub fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| crate::operations::refusals::message(&*panic))
}
