//! This machine's facts.

use std::{fs, path::Path, thread};

use xtask::invocation::Invocation;

use super::bytes::Bytes;

pub(crate) struct Machine {
    pub(crate) gpu: Option<String>,
    pub(crate) evidence: String,
    pub(crate) processor: String,
    pub(crate) facts: Vec<(&'static str, String)>,
}

impl Machine {
    pub(crate) fn probe() -> Self {
        let smi = ask("nvidia-smi", "--query-gpu=name,memory.total,driver_version --format=csv,noheader");
        let processor =
            field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown processor".into());
        let mut facts = vec![
            ("processor", processor.clone()),
            ("cores", thread::available_parallelism().map_or_else(|_| "unknown".into(), |n| n.to_string())),
            ("memory", memory(&read("/proc/meminfo"), &read("/sys/fs/cgroup/memory.max"))),
        ];
        let (gpu, evidence) = gpu(smi.as_deref(), information().as_deref());
        let smi = smi.as_deref().and_then(first_gpu);
        if let Some([name, bytes, driver]) = smi {
            facts.extend([
                ("gpu", name.to_owned()),
                ("gpu memory", bytes.to_owned()),
                ("driver", driver.to_owned()),
            ]);
        } else {
            facts.push(("gpu", gpu.clone().unwrap_or_else(|| "none".into())));
        }
        facts.push(("system", ask("uname", "-sr").unwrap_or_default()));
        facts.push(("load before", load()));
        Self { gpu, evidence, processor, facts }
    }
}

/// Processes running or waiting to run, over the last minute.
pub(crate) fn load() -> String {
    read("/proc/loadavg").split_whitespace().next().unwrap_or("unknown").to_owned()
}

fn ask(program: &str, arguments: &str) -> Option<String> {
    let asked = Invocation::new(program).arguments(arguments.split_whitespace()).output(Path::new("."));
    asked.ok().map(|answer| answer.trim().to_owned())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Containers often lack `nvidia-smi`.
fn information() -> Option<String> {
    let gpu = fs::read_dir("/proc/driver/nvidia/gpus").ok()?.next()?.ok()?;
    fs::read_to_string(gpu.path().join("information")).ok()
}

fn gpu(smi: Option<&str>, information: Option<&str>) -> (Option<String>, String) {
    if let Some([name, ..]) = smi.and_then(first_gpu) {
        return (Some(name.to_owned()), format!("nvidia-smi finds a GPU, {name}"));
    }
    if let Some(information) = information {
        let name = field(information, "Model").unwrap_or_else(|| "NVIDIA GPU".to_owned());
        return (Some(name.clone()), format!("/proc/driver/nvidia names a GPU, {name}"));
    }
    (None, "neither nvidia-smi nor /proc/driver/nvidia finds a GPU".to_owned())
}

fn first_gpu(smi: &str) -> Option<[&str; 3]> {
    let mut fields = smi.lines().next()?.split(',').map(str::trim);
    Some([fields.next()?, fields.next()?, fields.next()?])
}

fn field(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value)
}

/// The control group's limit, if lower.
fn memory(meminfo: &str, group: &str) -> String {
    let total =
        field(meminfo, "MemTotal").and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    let Some(total) = total.map(|kibibytes| kibibytes * 1024) else { return "unknown".to_owned() };
    match group.trim().parse::<u64>() {
        Ok(limit) if limit < total => format!("{} of {}", Bytes(limit), Bytes(total)),
        _ => Bytes(total).to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn cpu_machine() -> Machine {
        Machine {
            gpu: None,
            evidence: String::new(),
            processor: "Some CPU".to_owned(),
            facts: vec![("processor", "Some CPU".to_owned()), ("cores", "2".to_owned())],
        }
    }

    #[test]
    fn a_gpu_is_found_with_and_without_nvidia_smi() {
        let smi = "NVIDIA H200, 143771 MiB, 570.1\nNVIDIA H200, 143771 MiB, 570.1";
        assert_eq!(first_gpu(smi), Some(["NVIDIA H200", "143771 MiB", "570.1"]));
        let (name, evidence) = gpu(Some(smi), None);
        assert_eq!((name.as_deref(), evidence.contains("nvidia-smi")), (Some("NVIDIA H200"), true));
        let (name, evidence) = gpu(None, Some("Model: \t\t NVIDIA L4\nIRQ:  5\n"));
        assert_eq!((name.as_deref(), evidence.contains("/proc/driver/nvidia")), (Some("NVIDIA L4"), true));
    }

    #[test]
    fn without_a_gpu_the_evidence_names_both_sources() {
        for silent in [None, Some(""), Some("No devices were found")] {
            let (name, evidence) = gpu(silent, None);
            assert_eq!(name, None);
            assert!(evidence.contains("neither nvidia-smi nor /proc/driver/nvidia"), "{evidence}");
        }
    }

    #[test]
    fn memory_is_limited_by_the_control_group() {
        let meminfo = "MemFree: 1 kB\nMemTotal:       25165824 kB\n";
        assert_eq!(memory(meminfo, "max\n"), "24.0 GiB");
        assert_eq!(memory(meminfo, "8589934592\n"), "8.00 GiB of 24.0 GiB");
        assert_eq!(memory("", "max"), "unknown");
    }
}
