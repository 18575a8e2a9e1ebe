//! Runs parts of tests under `mpirun`, in processes that start this very binary again, with nothing but loopback
//! between them and a limit on their time.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use exchange::launch;

const SCENARIO: &str = "EXCHANGE_TEST_SCENARIO";
const LIMIT: Duration = Duration::from_mins(2);

/// How a job has ended.
#[derive(Debug)]
pub struct End {
    /// Whether every rank ended well; none if the job had to be killed.
    pub success: Option<bool>,
    /// Output of the ranks and of `mpirun`.
    pub printed: String,
    pub took: Duration,
}

impl End {
    /// Reports of the ranks, sorted, since they arrive in any order.
    pub fn reports(&self) -> Vec<&str> {
        let mut reports: Vec<_> = self
            .printed
            .lines()
            .filter_map(|line| line.split_once("report> "))
            .map(|(_, text)| text)
            .collect();
        reports.sort_unstable();
        reports
    }
}

/// `mpirun`, if it is there. Otherwise the test says that it did not run, and fails where `EXCHANGE_REQUIRE_MPI=1`.
pub fn mpirun_or_not_run(test: &str) -> Option<(PathBuf, u32)> {
    let found = launch::find_mpirun(&std::env::var_os("PATH").unwrap_or_default());
    let found = found.and_then(|mpirun| {
        let output = Command::new(&mpirun).arg("--version").output().expect("mpirun runs");
        Ok((mpirun, launch::release(&String::from_utf8_lossy(&output.stdout))?))
    });
    let error = match found {
        Ok(found) => return Some(found),
        Err(error) => error,
    };
    let required = std::env::var("EXCHANGE_REQUIRE_MPI").is_ok_and(|value| value == "1");
    assert!(!required, "{test} has to run, but {error}");
    writeln!(std::io::stderr(), "NOT RUN: {test}: {error}").expect("standard error");
    None
}

/// Runs a scenario on `ranks` ranks, started as the crate says.
pub fn run(mpirun: &(PathBuf, u32), ranks: usize, scenario: &str) -> End {
    run_within(mpirun, ranks, scenario, &[], mpirun.1 >= 5)
}

/// As [`run`], without what lets ranks survive the loss of others.
pub fn run_mortal(mpirun: &(PathBuf, u32), ranks: usize, scenario: &str) -> End {
    run_within(mpirun, ranks, scenario, &[], false)
}

/// As [`run`], with a command in front that takes `mpirun` and its arguments.
pub fn run_within(
    (mpirun, release): &(PathBuf, u32),
    ranks: usize,
    scenario: &str,
    front: &[&str],
    survive: bool,
) -> End {
    let root = rustix::process::geteuid().is_root();
    let job = launch::Job {
        ranks,
        hosts: Vec::new(),
        interface: Some("lo".into()),
        survive,
        // As few as there may be: ranks must not starve each other.
        cores: 1,
        root,
        release: *release,
    };
    let binary = std::env::current_exe().expect("this test's own path");
    let arguments = ["over_mpi::runs_the_scenario_it_was_started_for", "--exact", "--ignored", "--nocapture"];
    let command = job.command(mpirun.clone(), binary.as_os_str(), &arguments.map(Into::into));
    let launch::Command { program, arguments, environment } = command.expect("a command");
    let front: Vec<_> = front.iter().map(Into::into).chain([program.into_os_string()]).collect();
    let folder = tempfile::tempdir().expect("a folder");
    // A file, because a pipe stays open as long as any process that has inherited it.
    let printed = folder.path().join("printed");
    let file = File::create(&printed).expect("a file");
    let mut child = Command::new(&front[0])
        .args(&front[1..])
        .args(arguments)
        .envs(environment)
        .env(SCENARIO, scenario)
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("the file once more"))
        .stderr(file)
        .process_group(0)
        .spawn()
        .expect("mpirun starts");
    let began = Instant::now();
    let mut status = None;
    while status.is_none() && began.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(10));
        status = child.try_wait().expect("a child to wait for");
    }
    let took = began.elapsed();
    if status.is_none() {
        // `mpirun` and its ranks: they are a group of their own.
        let group = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("killed");
    }
    child.wait().expect("a child that has ended or was killed");
    let printed = String::from_utf8_lossy(&std::fs::read(printed).expect("printed")).into_owned();
    End { success: status.map(|status| status.success()), printed, took }
}

/// The scenario this process was started for.
pub fn scenario() -> Option<String> {
    std::env::var(SCENARIO).ok()
}

/// Tells the parent something: one write, so that lines of several ranks do not mix.
pub fn report(text: &str) {
    std::io::stdout().write_all(format!("\nreport> {text}\n").as_bytes()).expect("standard output");
}
