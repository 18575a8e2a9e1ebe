//! Counters, written as one line of JSON at exit.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::OpenOptions,
    io::Write as _,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    findings::Finding,
    settings::{Settings, settings},
};

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Copies {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Copies {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) refused_allocations: u64,
    pub(crate) unmapped_bytes: u64,
    pub(crate) to_device: Copies,
    pub(crate) to_host: Copies,
    pub(crate) within_device: Copies,
    /// Of all copies, those with pageable host memory.
    pub(crate) pageable: Copies,
    /// Of all copies, those that move unwritten bytes into pinned memory.
    pub(crate) unwritten_to_pinned: Copies,
    pub(crate) kernels: u64,
    pub(crate) compiled: u64,
    /// Of the fullest device.
    pub(crate) peak_device_bytes: u64,
    pub(crate) peak_pinned_bytes: u64,
    pub(crate) compile_seconds: f64,
    pub(crate) run_seconds: f64,
    pub(crate) simulated_ms: f64,
    findings: BTreeMap<Finding, u64>,
}

static COUNTERS: Mutex<Option<Counters>> = Mutex::new(None);

/// Has its own lock, so that a fault inside a kernel can be reported.
pub(crate) fn count(update: impl FnOnce(&mut Counters)) {
    update(counters().get_or_insert_default());
}

/// Returns the number of this kind so far.
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
        let directions = [&self.to_device, &self.to_host, &self.within_device];
        let mut line =
            format!("{{\"mode\":\"{}\",\"seed\":{}", settings.order.mode.name(), settings.order.seed);

        for (name, number) in [
            ("allocations", self.allocations),
            ("frees", self.frees),
            ("refused_allocations", self.refused_allocations),
            ("unmapped_bytes", self.unmapped_bytes),
            ("copies", directions.iter().map(|copies| copies.count).sum()),
            ("copies_to_device", self.to_device.count),
            ("copies_to_host", self.to_host.count),
            ("copies_within_device", self.within_device.count),
            ("copies_pageable", self.pageable.count),
            ("bytes", directions.iter().map(|copies| copies.bytes).sum()),
            ("bytes_to_device", self.to_device.bytes),
            ("bytes_to_host", self.to_host.bytes),
            ("bytes_within_device", self.within_device.bytes),
            ("bytes_pageable", self.pageable.bytes),
            ("copies_unwritten_to_pinned", self.unwritten_to_pinned.count),
            ("kernels", self.kernels),
            ("compiled", self.compiled),
            ("peak_device_bytes", self.peak_device_bytes),
            ("peak_pinned_bytes", self.peak_pinned_bytes),
        ] {
            _ = write!(line, ",\"{name}\":{number}");
        }
        for (name, number) in [
            ("compile_seconds", self.compile_seconds),
            ("run_seconds", self.run_seconds),
            ("simulated_ms", self.simulated_ms),
        ] {
            _ = write!(line, ",\"{name}\":{number:.3}");
        }

        let findings: Vec<String> =
            self.findings.iter().map(|(finding, count)| format!("\"{}\":{count}", finding.name())).collect();
        _ = write!(line, ",\"findings\":{{{}}}}}", findings.join(","));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_one_json_object_with_counters_and_findings() {
        let settings = Settings::parse([("STAND_IN_CACHE".to_owned(), "c".to_owned())]).unwrap();
        let mut counters = Counters { allocations: 2, ..Counters::default() };
        counters.to_device.add(5);
        counters.to_host.add(7);
        counters.findings.insert(Finding::MissingWait, 3);
        let line = counters.json(&settings);
        assert!(line.starts_with(r#"{"mode":"eager","seed":1,"allocations":2,"#), "{line}");
        assert!(line.contains(r#""copies":2,"#) && line.contains(r#""bytes":12,"#), "{line}");
        assert!(line.ends_with(r#","findings":{"missing wait":3}}"#), "{line}");
    }
}
