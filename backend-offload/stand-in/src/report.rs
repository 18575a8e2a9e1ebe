//! Counters, written as one line of JSON at exit.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::OpenOptions,
    io::Write as _,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    findings::Finding,
    settings::{Settings, settings},
};

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) device: DeviceMemoryUse,
    pub(crate) pinned: PinnedMemoryUse,
    pub(crate) copies: CopiesByKind,
    pub(crate) kernels: KernelCounts,
    pub(crate) host: HostCounts,
    findings: BTreeMap<Finding, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct DeviceMemoryUse {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) refused_allocations: u64,
    pub(crate) unmapped_bytes: u64,
    pub(crate) trims: u64,
    /// Peak of the fullest device.
    pub(crate) peak_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct PinnedMemoryUse {
    pub(crate) allocations: Amount,
    pub(crate) refused: u64,
    pub(crate) frees: u64,
    pub(crate) peak_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct CopiesByKind {
    pub(crate) to_device: Amount,
    pub(crate) to_host: Amount,
    pub(crate) within_device: Amount,
    /// Copies that failed on request.
    pub(crate) failed: u64,
    pub(crate) pageable: Amount,
    /// Copies of unwritten bytes into pinned memory.
    pub(crate) unwritten_to_pinned: Amount,
}

#[derive(Debug, Default)]
pub(crate) struct KernelCounts {
    pub(crate) run: u64,
    pub(crate) compiled: u64,
    pub(crate) compile_seconds: f64,
    pub(crate) run_seconds: f64,
}

#[derive(Debug, Default)]
pub(crate) struct HostCounts {
    calls: BTreeMap<&'static str, u64>,
    waits: BTreeMap<&'static str, Waits>,
    /// Of other hosts.
    other_waits: Waits,
    pub(crate) other_hosts: u64,
    pub(crate) collector_waits: u64,
    /// End of the last work.
    pub(crate) simulated_ms: f64,
    /// Time after the last call.
    pub(crate) host_ms: f64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Waits {
    count: u64,
    seconds: f64,
}

impl HostCounts {
    pub(crate) fn called(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }

    pub(crate) fn waited(&mut self, call: &'static str, seconds: f64, shared: bool) {
        let waits = if shared { self.waits.entry(call).or_default() } else { &mut self.other_waits };
        waits.count += 1;
        waits.seconds += seconds;
    }

    fn total(&self) -> Waits {
        self.waits.values().fold(Waits::default(), |sum, waits| Waits {
            count: sum.count + waits.count,
            seconds: sum.seconds + waits.seconds,
        })
    }
}

/// In the order of `stand_in_instruction` of the device headers.
const INSTRUCTIONS: [&str; 10] = [
    "mma",
    "wmma",
    "ldmatrix",
    "stmatrix",
    "cp.async",
    "cp.async.bulk",
    "tensor load",
    "tensor load im2col",
    "tensor store",
    "elect",
];

static EXECUTED: [AtomicU64; INSTRUCTIONS.len()] = [const { AtomicU64::new(0) }; INSTRUCTIONS.len()];

pub(crate) extern "C" fn instruction_executed(instruction: u32) {
    EXECUTED[instruction as usize].fetch_add(1, Ordering::Relaxed);
}

static COUNTERS: Mutex<Option<Counters>> = Mutex::new(None);

/// Its own lock permits reports from inside a kernel.
pub(crate) fn count(update: impl FnOnce(&mut Counters)) {
    update(counters().get_or_insert_default());
}

pub(crate) fn count_finding(finding: Finding) -> u64 {
    let mut count = 0;
    self::count(|counters| {
        let entry = counters.findings.entry(finding).or_default();
        *entry += 1;
        count = *entry;
    });
    count
}

fn counters() -> MutexGuard<'static, Option<Counters>> {
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write() {
    let Some(path) = &settings().report else { return };
    let line = counters().get_or_insert_default().json(settings());
    if path == Path::new("-") {
        eprintln!("{line}");
        return;
    }
    let written =
        OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| writeln!(file, "{line}"));
    if let Err(error) = written {
        eprintln!("stand-in: the report {} could not be written: {error}", path.display());
    }
}

impl Counters {
    fn json(&self, settings: &Settings) -> String {
        let Self { device, pinned, copies, kernels, host, findings } = self;
        let directions = [&copies.to_device, &copies.to_host, &copies.within_device];
        let waits = host.total();
        let order = &settings.order;
        let mut line = format!("{{\"mode\":\"{}\",\"seed\":{}", order.mode.name(), order.seed);

        for (name, number) in [
            ("allocations", device.allocations),
            ("frees", device.frees),
            ("refused_allocations", device.refused_allocations),
            ("unmapped_bytes", device.unmapped_bytes),
            ("copies", directions.iter().map(|copies| copies.count).sum()),
            ("copies_to_device", copies.to_device.count),
            ("copies_to_host", copies.to_host.count),
            ("copies_within_device", copies.within_device.count),
            ("copies_pageable", copies.pageable.count),
            ("bytes", directions.iter().map(|copies| copies.bytes).sum()),
            ("bytes_to_device", copies.to_device.bytes),
            ("bytes_to_host", copies.to_host.bytes),
            ("bytes_within_device", copies.within_device.bytes),
            ("bytes_pageable", copies.pageable.bytes),
            ("copies_unwritten_to_pinned", copies.unwritten_to_pinned.count),
            ("kernels", kernels.run),
            ("compiled", kernels.compiled),
            ("peak_device_bytes", device.peak_bytes),
            ("peak_pinned_bytes", pinned.peak_bytes),
            ("failed_copies", copies.failed),
            ("trims", device.trims),
            ("pinned_allocations", pinned.allocations.count),
            ("pinned_bytes", pinned.allocations.bytes),
            ("refused_pinned_allocations", pinned.refused),
            ("pinned_frees", pinned.frees),
            ("events_created", host.calls.get("cuEventCreate").copied().unwrap_or_default()),
            ("host_waits", waits.count),
            ("collector_waits", host.collector_waits),
            ("other_hosts", host.other_hosts),
            ("other_waits", host.other_waits.count),
        ] {
            _ = write!(line, ",\"{name}\":{number}");
        }
        for (name, number) in [
            ("compile_seconds", kernels.compile_seconds),
            ("run_seconds", kernels.run_seconds),
            ("simulated_ms", host.simulated_ms),
            ("host_ms", host.host_ms),
            ("host_waited_ms", waits.seconds * 1e3),
            ("other_waited_ms", host.other_waits.seconds * 1e3),
        ] {
            _ = write!(line, ",\"{name}\":{number:.3}");
        }

        let calls = host.calls.iter().map(|(call, count)| (*call, count.to_string()));
        let each = |waits: &Waits| format!("{{\"count\":{},\"ms\":{:.3}}}", waits.count, waits.seconds * 1e3);
        let waits = host.waits.iter().map(|(call, waits)| (*call, each(waits)));
        let findings = findings.iter().map(|(finding, count)| (finding.name(), count.to_string()));
        let executed = INSTRUCTIONS.iter().zip(&EXECUTED);
        let executed = executed.map(|(name, count)| (*name, count.load(Ordering::Relaxed)));
        let executed =
            executed.filter(|(_, count)| *count > 0).map(|(name, count)| (name, count.to_string()));
        _ = write!(
            line,
            ",\"calls\":{},\"waits\":{},\"instructions\":{},\"findings\":{}}}",
            object(calls),
            object(waits),
            object(executed),
            object(findings)
        );
        line
    }
}

fn object<'a>(members: impl Iterator<Item = (&'a str, String)>) -> String {
    let members: Vec<String> = members.map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_one_json_object_with_counters_and_findings() {
        let settings = Settings::parse([("STAND_IN_CACHE".to_owned(), "c".to_owned())]).unwrap();
        let mut counters = Counters::default();
        counters.device.allocations = 2;
        counters.copies.to_device.add(5);
        counters.copies.to_host.add(7);
        counters.findings.insert(Finding::MissingWait, 3);
        counters.host.called("cuEventCreate");
        counters.host.waited("cuEventSynchronize", 1.5e-3, true);
        counters.host.waited("cuStreamSynchronize", 1e-3, true);
        counters.host.waited("cuStreamSynchronize", 4e-3, false);
        let line = counters.json(&settings);
        assert!(line.starts_with(r#"{"mode":"eager","seed":1,"allocations":2,"#), "{line}");
        assert!(line.contains(r#""copies":2,"#) && line.contains(r#""bytes":12,"#), "{line}");
        assert!(line.contains(r#""host_waits":2,"#) && line.contains(r#""host_waited_ms":2.500,"#), "{line}");
        assert!(line.contains(r#","calls":{"cuEventCreate":1},"#), "{line}");
        assert!(line.contains(r#","other_waited_ms":4.000,"#), "{line}");
        assert!(line.contains(r#","waits":{"cuEventSynchronize":{"count":1,"ms":1.500},"#), "{line}");
        assert!(line.ends_with(r#","findings":{"missing wait":3}}"#), "{line}");
    }
}
