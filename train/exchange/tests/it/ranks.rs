//! Runs scenarios under `mpirun` in processes of this test binary, over loopback, with a time limit.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use exchange::launch;
use suite::Need;

const SCENARIO: &str = "EXCHANGE_TEST_SCENARIO";
const LIMIT: Duration = Duration::from_mins(2);

#[derive(Debug)]
pub struct End {
    /// `None` if the job had to be killed.
    pub success: Option<bool>,
    pub printed: String,
}

impl End {
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

/// `train/exchange/tests/install-open-mpi-5` unpacks release 5 there.
const UNPACKED: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/open-mpi-5/installed");

pub struct Installation {
    mpirun: PathBuf,
    pub release: u32,
    unpacked: bool,
}

pub fn installations() -> Vec<Installation> {
    let here = [Need::Mpi.found(Installation::of_path()), Need::Mpi5.found(Installation::unpacked())];
    here.into_iter().flatten().collect()
}

impl Installation {
    pub fn of_path() -> Result<Self, String> {
        let (mpirun, release) = launch::installed().map_err(|error| error.to_string())?;
        Ok(Self { mpirun, release, unpacked: false })
    }

    pub fn unpacked() -> Result<Self, String> {
        let mpirun = PathBuf::from(UNPACKED).join("bin/mpirun");
        if !mpirun.is_file() {
            return Err("there is no Open MPI 5 in the target folder".to_owned());
        }
        let mut found = Self { mpirun, release: 0, unpacked: true };
        let output = found.command(found.mpirun.as_os_str()).arg("--version").output().expect("mpirun runs");
        let release = launch::release(&String::from_utf8_lossy(&output.stdout));
        found.release = release.map_err(|error| error.to_string())?;
        Ok(found)
    }

    fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        if self.unpacked {
            let path = env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{UNPACKED}/bin:{path}"));
            command.env("OPAL_PREFIX", UNPACKED).env("LD_LIBRARY_PATH", format!("{UNPACKED}/lib"));
        }
        command
    }

    pub fn run(&self, ranks: usize, scenario: &str) -> End {
        self.run_within(ranks, scenario, &[], self.release >= 5)
    }

    pub fn run_mortal(&self, ranks: usize, scenario: &str) -> End {
        self.run_within(ranks, scenario, &[], false)
    }

    pub fn run_within(&self, ranks: usize, scenario: &str, front: &[&str], survive: bool) -> End {
        let job = launch::Job {
            ranks,
            hosts: Vec::new(),
            interface: Some("lo".into()),
            survive,
            // Ranks must not starve each other.
            cores: 1,
            // The command in front may make the user root.
            root: rustix::process::geteuid().is_root() || !front.is_empty(),
            release: self.release,
        };

        let binary = env::current_exe().expect("this test's own path");
        let arguments =
            ["over_mpi::runs_the_scenario_it_was_started_for", "--exact", "--ignored", "--nocapture"];
        let command = job.command(self.mpirun.clone(), binary.as_os_str(), &arguments.map(Into::into));
        let launch::Command { program, arguments, environment } = command.expect("a command");
        let front: Vec<OsString> = front.iter().map(Into::into).chain([program.into_os_string()]).collect();
        let folder = tempfile::tempdir().expect("a folder");

        // A pipe stays open while any child process lives.
        let printed = folder.path().join("printed");
        let file = File::create(&printed).expect("a file");
        let mut child = self
            .command(&front[0])
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

        if status.is_none() {
            // `mpirun` and its ranks form a process group.
            let group = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("killed");
        }

        child.wait().expect("a child that has ended or was killed");
        let printed = String::from_utf8_lossy(&std::fs::read(printed).expect("printed")).into_owned();
        End { success: status.map(|status| status.success()), printed }
    }
}

pub fn scenario() -> Option<String> {
    env::var(SCENARIO).ok()
}

/// In one write: ranks do not mix lines.
pub fn report(text: &str) {
    std::io::stdout().write_all(format!("\nreport> {text}\n").as_bytes()).expect("standard output");
}
