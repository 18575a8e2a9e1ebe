//! Scenarios in separate processes: settings are read once and most findings are fatal. The child is this test binary;
//! `SCENARIO` names the function.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, ExitStatus, Output},
    sync::atomic::{AtomicUsize, Ordering},
};

use suite::Need;

use crate::{devices, failures, findings, host, instructions, kernels, memory, options, order, tensor_maps};

const SCENARIO: &str = "SCENARIO";

pub(crate) type Scenario = (&'static str, fn());

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
    /// A line of JSON; empty if none was written.
    pub(crate) report: String,
}

impl Ended {
    pub(crate) fn messages(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.starts_with("stand-in: ")).collect()
    }

    #[track_caller]
    pub(crate) fn passes(&self) {
        assert!(self.status.success(), "{}", self.stderr);
        assert_eq!(self.messages(), [""; 0]);
        assert!(self.report.contains(r#""findings":{}"#), "{}", self.report);
    }

    #[track_caller]
    pub(crate) fn ends_with(&self, finding: &str) -> &str {
        assert!(!self.status.success(), "{finding} was not found: {}", self.stderr);
        let line = self.messages().last().copied().unwrap_or_default();
        assert!(line.starts_with(&format!("stand-in: {finding}: ")), "{finding}: {}", self.stderr);
        assert!(self.report.contains(&format!("\"{finding}\":1")), "{finding}: {}", self.report);
        line
    }

    pub(crate) fn executed(&self, instruction: &str) -> u64 {
        let (_, instructions) = self.report.split_once("\"instructions\":{").expect("a report");
        let (instructions, _) = instructions.split_once('}').expect("a report");
        let of = instructions.split_once(&format!("\"{instruction}\":"));
        of.map_or(0, |(_, rest)| rest.split(',').next().unwrap().parse().expect(instruction))
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let (_, rest) = self.report.split_once(&format!("\"{name}\":")).expect(name);
        rest.split([',', '}']).next().unwrap().parse().expect(name)
    }
}

pub(crate) fn run(scenario: &str, options: &[(&str, &str)]) -> Ended {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let report = folder().join(format!("report-{}-{count}.json", std::process::id()));
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["child::runs_the_scenario_it_was_started_for", "--exact", "--ignored", "--nocapture"])
        .env(SCENARIO, scenario)
        .env("STAND_IN_CACHE", folder().join("kernels"))
        .env("STAND_IN_REPORT", &report);
    for (name, value) in options {
        command.env(format!("STAND_IN_{name}"), value);
    }
    let Output { status, stderr, .. } = command.output().unwrap();
    let written = fs::read_to_string(&report).unwrap_or_default();
    _ = fs::remove_file(report);
    Ended { status, stderr: String::from_utf8_lossy(&stderr).into_owned(), report: written.trim().to_owned() }
}

/// Kept between runs: kernels are compiled once.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

pub(crate) fn compiler_found() -> bool {
    let started = Command::new("g++").arg("--version").output();
    Need::StandIn.found(started.map_err(|error| format!("g++ could not be started: {error}"))).is_some()
}

#[test]
#[ignore = "started by other tests, in a process of its own"]
fn runs_the_scenario_it_was_started_for() {
    let Ok(name) = env::var(SCENARIO) else { return };
    let mut all = [
        devices::SCENARIOS,
        failures::SCENARIOS,
        findings::SCENARIOS,
        host::SCENARIOS,
        instructions::SCENARIOS,
        kernels::SCENARIOS,
        memory::SCENARIOS,
        options::SCENARIOS,
        order::SCENARIOS,
        tensor_maps::SCENARIOS,
    ]
    .into_iter()
    .flatten();
    let (_, scenario) = all.find(|(known, _)| *known == name).expect("a scenario of this name");
    scenario();
}
