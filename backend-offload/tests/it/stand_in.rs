//! The stand-in for the CUDA driver, and its schedules for tests.
//!
//! Built by `cargo xtask test` or `cargo xtask stand-in`. Any finding of the stand-in fails the test.

use crate::child::{Child, HASTE, Report};
use crate::folders;
use std::fmt;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use suite::{Need, Size};

#[derive(Debug, Clone, Copy)]
pub enum Schedule {
    /// The race detector reports unordered accesses.
    Eager,
    Lazy,
    Random(u64),
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eager => f.write_str("eager"),
            Self::Lazy => f.write_str("lazy"),
            Self::Random(seed) => write!(f, "random {seed}"),
        }
    }
}

impl Schedule {
    pub fn apply(self, child: Child) -> Child {
        let child = child.with("schedule", self);
        match self {
            Self::Eager => child.environment("STAND_IN_MODE", "eager").environment("STAND_IN_RACES", 1),
            Self::Lazy => child.environment("STAND_IN_MODE", "lazy"),
            Self::Random(seed) => {
                child.environment("STAND_IN_MODE", "random").environment("STAND_IN_SEED", seed)
            }
        }
    }
}

/// Schedules of a promise, eager first. All but `One` run every schedule in the full suite.
#[derive(Debug, Clone, Copy)]
pub enum Schedules {
    /// Eager and a seed; in the gate also lazy.
    Every,
    /// Eager; in the gate as `Every`: compiles many kernels.
    EveryInGate,
    /// Eager; in the gate also a seed: many processes.
    Few,
    /// Eager: takes minutes.
    OneOrEvery,
    /// Eager: the order of queued work does not matter.
    One,
}

impl Schedules {
    pub fn list(self) -> Vec<Schedule> {
        use Schedule::{Eager, Lazy, Random};
        let size = suite::size();
        match (self, size) {
            (Self::One, _)
            | (Self::OneOrEvery, Size::Quick | Size::Gate)
            | (Self::Few | Self::EveryInGate, Size::Quick) => vec![Eager],
            (Self::Every, Size::Quick) | (Self::Few, Size::Gate) => vec![Eager, Random(1)],
            (Self::Every | Self::EveryInGate, Size::Gate) => vec![Eager, Lazy, Random(1)],
            (Self::Every | Self::EveryInGate | Self::Few | Self::OneOrEvery, Size::Full) => {
                [Eager, Lazy].into_iter().chain(suite::schedule_seeds().map(Random)).collect()
            }
        }
    }
}

const BUILT: &str = "SPILLWAY_STAND_IN";

pub fn installation() -> &'static Result<PathBuf, String> {
    static INSTALLATION: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    INSTALLATION.get_or_init(|| {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err("the stand-in for CUDA runs on x86-64 Linux only".to_owned());
        }
        if let Some(built) = std::env::var_os(BUILT) {
            return Ok(PathBuf::from(built));
        }
        let built = Command::new(env!("CARGO"))
            .args(["xtask", "stand-in"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .map_err(|error| format!("`cargo xtask stand-in` cannot be started: {error}"))?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr);
            return Err(format!("`cargo xtask stand-in` failed: {}", said.trim()));
        }
        Ok(PathBuf::from(String::from_utf8_lossy(&built.stdout).trim()))
    })
}

pub fn is_available() -> bool {
    Need::StandIn.found(installation().as_ref()).is_some()
}

/// # Panics
/// If the child fails or the stand-in reports a finding.
pub fn run(child: Child) -> Report {
    let (report, stand_in) = run_and_report(child);
    assert_eq!(stand_in["findings"].to_string(), "{}", "the stand-in found something in {report:?}");
    report
}

pub fn run_and_report(child: Child) -> (Report, serde_json::Value) {
    let installation = installation().as_ref().expect("asked for before");
    let child = child
        .environment("CUDA_PATH", installation.display())
        .environment("LD_LIBRARY_PATH", installation.join("lib").display())
        .environment("STAND_IN_CACHE", installation.join("kernels").display())
        .environment("STAND_IN_DEVICES", 2);
    if child.is_untuned() {
        // Autotune chooses without emulating each sample. Values are wrong, so the program may fail.
        let untuned = child.clone().environment(HASTE, 16);
        _ = catch_unwind(|| untuned.run());
    }
    let (report, text) = with_file(child, "STAND_IN_REPORT", Child::run);
    (report, serde_json::from_str(&text).expect("a report in JSON"))
}

fn with_file(child: Child, variable: &'static str, run: impl FnOnce(Child) -> Report) -> (Report, String) {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = folders::target().join(format!("stand-in-{}-{number}", std::process::id()));
    let report = run(child.environment(variable, file.display()));
    let text = std::fs::read_to_string(&file).expect("the stand-in writes it by the end");
    let _left = std::fs::remove_file(&file);
    (report, text)
}

/// In simulated seconds.
#[derive(Debug)]
pub struct Work {
    pub stream: u64,
    /// `to device`, `to host` or `compute`.
    pub kind: String,
    pub name: String,
    pub bytes: u64,
    pub takes: f64,
    pub ends: f64,
}

#[derive(Debug)]
pub struct Steps {
    pub seconds: f64,
    pub work: Vec<Work>,
}

/// The only copy of this size: it ends a step.
const LOSS: u64 = 4;

pub fn run_and_watch(child: Child, steps: usize) -> (Report, Steps) {
    let (report, text) = with_file(child, "STAND_IN_TRACE", run);
    let mut work: Vec<Work> = text.lines().map(work).collect();
    let is_end = |work: &Work| work.kind == "to host" && work.bytes == LOSS;
    let ends: Vec<usize> = (0..work.len()).filter(|n| is_end(&work[*n])).collect();
    let [first, .., last] = ends[ends.len() - steps - 1..] else { panic!("a loss of each step") };
    let seconds = work[last].ends - work[first].ends;
    (report, Steps { seconds, work: work.drain(first + 1..=last).collect() })
}

fn work(line: &str) -> Work {
    let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
    let text = |name: &str| line[name].as_str().expect("a text").to_owned();
    let seconds = |name: &str| line[name].as_f64().expect("microseconds") * 1e-6;
    let number = |name: &str| line[name].as_u64().expect("a number");
    Work {
        stream: number("stream"),
        kind: text("kind"),
        name: text("name"),
        bytes: number("bytes"),
        takes: seconds("end_us") - seconds("start_us"),
        ends: seconds("end_us"),
    }
}
