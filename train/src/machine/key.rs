//! A measurement's key: the machine, program, device and work for which its speeds hold.
//!
//! A measurement holds only for an equal key (`a_measurement_holds_for_its_own_machine_program_device_and_work`). Path,
//! size and modification time of its file identify the program.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::UNIX_EPOCH;
use std::{env, fs};

use models::Compute;
use runs::config::Config;
use runs::device::Place;
use runs::threads;
use serde::{Deserialize, Serialize};

/// Sides of the measured square matrices, and bytes copied there and back, if memory allows. A larger side is tried
/// only if the smaller was fast.
const ON_A_GPU: (&[usize], usize) = (&[256, 1024, 4096], 64 << 20);
const ON_THE_CPU: (&[usize], usize) = (&[384, 1024], 0);

const VARIABLES: [&str; 6] = ["CUBECL_", "CUDA_", "MESA_", "OFFLOAD_", "VK_", "WGPU_"];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    machine: Host,
    program: Program,
    device: Device,
    pub(super) work: Work,
    variables: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    processor: Option<String>,
    memory: Option<u64>,
    threads: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    path: String,
    version: String,
    bytes: u64,
    /// Nanoseconds since 1970.
    written: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    name: String,
    model: Option<String>,
    memory: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Work {
    pub(super) compute: Compute,
    tf32: bool,
    pub(super) sides: Vec<usize>,
    pub(super) copied: usize,
    pub(super) disk: Option<String>,
}

impl Key {
    /// `None` if the program's file cannot be found.
    pub(super) fn new(place: &Place, work: Work) -> Option<Self> {
        let is_named = |name: &str| VARIABLES.iter().any(|beginning| name.starts_with(beginning));
        let variables = env::vars_os().map(|(name, value)| [name, value]);
        let variables = variables.map(|texts| texts.map(|text| text.to_string_lossy().into_owned()));
        Some(Self {
            machine: Host::this(),
            program: Program::this()?,
            device: Device {
                name: place.name.clone(),
                model: place.model.clone(),
                memory: place.memory.map(|memory| memory.total),
            },
            work,
            variables: variables
                .filter(|[name, _]| is_named(name))
                .map(|[name, value]| (name, value))
                .collect(),
        })
    }
}

impl Host {
    fn this() -> Self {
        let read = |path: &str, name: &str| value(BufReader::new(File::open(path).ok()?), name);
        let processor = read("/proc/cpuinfo", "model name").or_else(|| env::var("PROCESSOR_IDENTIFIER").ok());
        let memory = read("/proc/meminfo", "MemTotal");
        let kib = memory.and_then(|memory| memory.split_whitespace().next()?.parse::<u64>().ok());
        Self { processor, memory: kib.map(|kib| kib * 1024), threads: threads::count() }
    }
}

/// The first value of `name` in lines of names and values. Stops there: the kernel asks each core for its line.
fn value(table: impl BufRead, name: &str) -> Option<String> {
    table.lines().map_while(Result::ok).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    })
}

impl Program {
    fn this() -> Option<Self> {
        let path = env::current_exe().ok()?;
        let file = fs::metadata(&path).ok()?;
        let written = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self {
            path: path.to_string_lossy().into_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            bytes: file.len(),
            written: written.as_nanos() as u64,
        })
    }
}

impl Work {
    /// The work that plans a run of `config`, reduced to fit on the device.
    pub(super) fn new(place: &Place, config: &Config) -> Self {
        let room = place.budget.unwrap_or(u64::MAX);
        let (sides, copied) = if place.shares_host { ON_THE_CPU } else { ON_A_GPU };
        let most = ((room / 32) as f64).sqrt() as usize;
        let mut sides: Vec<usize> = sides.iter().map(|side| (*side).min(most).max(16)).collect();
        sides.dedup();
        Self {
            compute: config.model.compute,
            tf32: config.train.tf32,
            sides,
            copied: (copied as u64).min(room / 4) as usize,
            disk: config.memory.disk.as_deref().map(file_system),
        }
    }
}

/// Mount point and device number of `folder`'s file system; the folder may not exist.
#[cfg(unix)]
fn file_system(folder: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let number = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
    let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let there = path.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or(path);
    let own = number(&there);
    let mount = there.ancestors().take_while(|path| number(path) == own).last().unwrap_or(&there);
    format!("{} (device {})", mount.display(), own.unwrap_or_default())
}

#[cfg(not(unix))]
fn file_system(folder: &Path) -> String {
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).display().to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::machine) fn keys() -> (Key, Vec<Key>) {
        let place = Place {
            name: "CUDA device 0".to_owned(),
            kind: "CUDA with 24.00 GiB".to_owned(),
            model: Some("a card".to_owned()),
            memory: None,
            budget: Some(1 << 30),
            shares_host: false,
        };
        let config = Config::load("toy", &[]).expect("a preset");
        let key = Key::new(&place, Work::new(&place, &config)).expect("a test is a file");

        let changes: [fn(&mut Key); 12] = [
            |key| key.machine.processor = Some("another".to_owned()),
            |key| key.machine.memory = Some(1),
            |key| key.machine.threads += 1,
            |key| key.program.path.push('2'),
            |key| key.program.version.push('2'),
            |key| key.program.bytes += 1,
            |key| key.program.written += 1,
            |key| key.device.model = Some("another".to_owned()),
            |key| key.work.compute = Compute::Bf16,
            |key| key.work.sides = vec![16],
            |key| key.work.disk = Some("/".to_owned()),
            |key| _ = key.variables.insert("OFFLOAD_PARANOID".to_owned(), "1".to_owned()),
        ];

        let others = changes.into_iter().map(|change| {
            let mut other = key.clone();
            change(&mut other);
            other
        });
        (key.clone(), others.collect())
    }

    #[test]
    fn the_first_processor_and_the_memory_are_read_from_proc() {
        let text = "processor\t: 0\nmodel name\t: A processor: 2.0 GHz\nprocessor\t: 1\nmodel name\t: B\n";
        assert_eq!(value(text.as_bytes(), "model name").as_deref(), Some("A processor: 2.0 GHz"));
        assert_eq!(
            value("MemTotal:       16000000 kB\n".as_bytes(), "MemTotal").as_deref(),
            Some("16000000 kB")
        );
        assert_eq!(value(text.as_bytes(), "model"), None);
    }

    #[test]
    fn measured_work_fits_the_devices_budget() {
        let config = Config::load("toy", &[]).expect("a preset");
        let sides = |budget: Option<u64>, shares_host: bool| {
            let place = Place {
                name: String::new(),
                kind: String::new(),
                model: None,
                memory: None,
                budget,
                shares_host,
            };
            let work = Work::new(&place, &config);
            (work.sides, work.copied)
        };

        assert_eq!(sides(None, true), (vec![384, 1024], 0));
        assert_eq!(sides(None, false), (vec![256, 1024, 4096], 64 << 20));
        assert_eq!(sides(Some(1 << 20), true), (vec![181], 0));
        assert_eq!(sides(Some(16 << 20), false), (vec![256, 724], 4 << 20));
        assert_eq!(sides(Some(0), false), (vec![16], 0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn existing_and_absent_folders_of_one_file_system_share_a_measurement() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = file_system(folder.path());
        assert_eq!(file_system(&folder.path().join("absent/below")), own);
        assert_ne!(file_system(Path::new("/proc")), own);
    }
}
