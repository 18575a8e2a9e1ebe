//! Runs parts of tests in separate processes.
//!
//! A process configures a device once, and owns its counters. So a test starts this binary again as a [`Child`], which
//! runs a [`Scenario`] and prints a [`Report`].

use backend_offload::Policy;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

const SCENARIO: &str = "OFFLOAD_TEST_SCENARIO";
const PARAMETERS: &str = "OFFLOAD_TEST_PARAMETERS";

const MARK: &str = "report> ";

#[cfg(feature = "cube")]
pub const HASTE: &str = "STAND_IN_HASTE";

const NEWLINE: &str = "\u{1f}";

/// The full suite runs many children with paranoid checks.
fn patience() -> Duration {
    suite::size().pick(Duration::from_mins(8), Duration::from_mins(8), Duration::from_mins(25))
}

#[derive(Clone)]
pub struct Scenario {
    pub name: &'static str,
    pub run: fn(&Facts) -> Facts,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts(BTreeMap<String, String>);

pub type Report = Facts;

impl Facts {
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        self.0.insert(name.to_owned(), value.to_string());
        self
    }

    #[cfg(feature = "router")]
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    pub fn text(&self, name: &str) -> &str {
        self.find(name).unwrap_or_else(|| panic!("no fact named {name:?} in {:?}", self.0.keys()))
    }

    pub fn find(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn value<T: FromStr>(&self, name: &str) -> T {
        let text = self.text(name);
        text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}"))
    }

    pub fn number(&self, name: &str) -> u64 {
        self.value(name)
    }

    pub fn policy(&self) -> Option<Policy> {
        self.find("policy").map(|name| match name {
            "planned" => Policy::Planned,
            "recency" => Policy::Recency,
            other => panic!("no policy {other:?}"),
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        self.iter().map(|(name, value)| format!("{name}={}", value.replace('\n', NEWLINE)))
    }

    fn read_line(&mut self, line: &str) {
        let (name, value) = line.split_once('=').expect("name=value");
        self.0.insert(name.to_owned(), value.replace(NEWLINE, "\n"));
    }
}

#[must_use]
#[derive(Clone)]
pub struct Child {
    scenario: &'static str,
    parameters: Facts,
    environment: Vec<(&'static str, String)>,
    directory: Option<PathBuf>,
}

impl Child {
    pub fn new(scenario: &'static str) -> Self {
        Self { scenario, parameters: Facts::default(), environment: Vec::new(), directory: None }
    }

    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        self.parameters = self.parameters.with(name, value);
        self
    }

    pub fn environment(mut self, name: &'static str, value: impl Display) -> Self {
        self.environment.push((name, value.to_string()));
        self
    }

    #[cfg_attr(not(feature = "cube"), expect(dead_code, reason = "only CubeCL reads a configuration file"))]
    pub fn directory(mut self, directory: PathBuf) -> Self {
        self.directory = Some(directory);
        self
    }

    /// Whether it trains a program in a folder where autotune has chosen no kernel.
    #[cfg(feature = "cuda")]
    pub fn is_untuned(&self) -> bool {
        let trains = ["cube/train plain", "cube/train", "cube/faults", "cube/stored model"];
        let trains = trains.contains(&self.scenario);
        let hastens = self.environment.iter().any(|(name, _)| *name == HASTE);
        trains && !hastens && self.directory.as_ref().is_some_and(|folder| !folder.join("autotune").exists())
    }

    /// # Panics
    /// If the scenario fails.
    pub fn run(self) -> Report {
        let parameters: Vec<_> = self.parameters.lines().collect();
        let here = PathBuf::from(".");
        let mut child = Command::new(std::env::current_exe().expect("this test's own path"))
            .current_dir(self.directory.as_ref().unwrap_or(&here))
            .args(["child::runs_the_scenario_it_was_started_for", "--exact", "--ignored", "--nocapture"])
            .env(SCENARIO, self.scenario)
            .env(PARAMETERS, parameters.join("\n"))
            .envs(self.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a child process");

        let printed = thread::spawn(reader(child.stdout.take().expect("piped")));
        let complaints = thread::spawn(reader(child.stderr.take().expect("piped")));
        let (started, patience) = (Instant::now(), patience());

        let status = loop {
            if let Some(status) = child.try_wait().expect("a child to wait for") {
                break Some(status);
            }
            if started.elapsed() > patience {
                child.kill().expect("a child to kill");
                child.wait().expect("a killed child ends");
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };

        let printed = printed.join().expect("the reader ends");
        let complaints = complaints.join().expect("the reader ends");
        assert!(
            status.is_some_and(|status| status.success()),
            "{} {parameters:?} ended with {status:?}\n{printed}\n{complaints}",
            self.scenario
        );

        let mut report = Report::default();
        // The test harness may begin a line.
        for line in printed.lines().filter_map(|line| line.split_once(MARK)) {
            report.read_line(line.1);
        }
        report
    }
}

fn reader(mut pipe: impl Read) -> impl FnOnce() -> String {
    move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a child's output");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[test]
#[ignore = "started by other tests, in processes of their own"]
fn runs_the_scenario_it_was_started_for() {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let mut parameters = Facts::default();
    let given = std::env::var(PARAMETERS).unwrap_or_default();
    given.lines().for_each(|line| parameters.read_line(line));
    let scenario = crate::scenarios().into_iter().find(|scenario| scenario.name == name);
    let report = (scenario.unwrap_or_else(|| panic!("no scenario {name:?}")).run)(&parameters);
    for line in report.lines() {
        println!("{MARK}{line}");
    }
}
