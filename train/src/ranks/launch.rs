//! Several ranks from one command: the same command under `mpirun`.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
#[cfg(unix)]
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
#[cfg(unix)]
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, anyhow};
use exchange::launch::{Job, LaunchError, Place, hosts, installed, place};
use runs::BadInput;
use runs::checkpoint::{Checkpoints, LastSave};
use runs::directory::RunDirectory;
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process};

use crate::exit::Ending;
#[cfg(unix)]
use crate::interrupt;

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct RankArgs {
    /// Train in this many processes, which share every step's micro-batches and end with the numbers of one. Needs Open MPI.
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<usize>,
    /// Hosts of the ranks, and how many run on each: `a:4,b:4`. By default all run on this machine.
    #[arg(long, value_name = "LIST", requires = "ranks")]
    pub(crate) hosts: Option<String>,
    /// The network interface between ranks. Their traffic is neither encrypted nor authenticated.
    #[arg(long, value_name = "NAME", requires = "ranks")]
    pub(crate) interface: Option<String>,
    /// Restart all ranks this many times after one dies, each time from the last checkpoint.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "ranks")]
    pub(crate) restarts: u32,
    /// End the run when another rank has not answered for this long: choose it above the time of a step, or of a round. While
    /// rank 0 samples or saves, the others wait for any time.
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rank_timeout: u64,
}

/// Seconds.
const PATIENCE: u64 = 1800;

impl RankArgs {
    pub(crate) fn most_on_a_host(&self, ranks: usize) -> anyhow::Result<usize> {
        let Some(text) = &self.hosts else { return Ok(ranks) };
        let hosts = hosts(text).map_err(|error| BadInput(error.to_string()))?;
        let most = hosts.iter().map(|host| host.slots).max();
        Ok(most.map_or(ranks, |most| most.min(ranks)))
    }

    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let changed = |value: u64, usual: u64| (value != usual && value > 0).then(|| value.to_string());
        [
            ("--ranks", self.ranks.map(|ranks| ranks.to_string())),
            ("--hosts", self.hosts.clone()),
            ("--interface", self.interface.clone()),
            ("--restarts", changed(u64::from(self.restarts), 0)),
            ("--rank-timeout", changed(self.rank_timeout, PATIENCE)),
        ]
        .into_iter()
        .filter_map(|(option, value)| Some((option, value?)))
    }
}

pub(super) fn found() -> anyhow::Result<Option<Place>> {
    let variables: BTreeMap<String, String> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Ok(place(&variables)?)
}

/// Starts one process per rank and waits. `None` without `--ranks`, or as a rank. A restart resumes the run that `find`
/// returns.
pub(crate) fn launch(
    args: &RankArgs,
    find: impl FnOnce() -> anyhow::Result<RunDirectory>,
) -> anyhow::Result<Option<Ending>> {
    let Some(ranks) = args.ranks else { return Ok(None) };
    if found()?.is_some() {
        return Ok(None);
    }

    let bad_input = |error: LaunchError| BadInput(error.to_string());
    let (mpirun, release) = installed().map_err(bad_input)?;
    let job = Job {
        ranks,
        hosts: args.hosts.as_deref().map(hosts).transpose().map_err(bad_input)?.unwrap_or_default(),
        interface: args.interface.clone(),
        survive: release >= 5,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        root: is_root(),
        release,
    };

    let program = env::current_exe().context("finding this program")?;
    let mut arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let mut restart = None;

    if args.restarts > 0 {
        let run = find()?;
        // A new run keeps its name in restarts.
        if run.from.is_none() {
            arguments = with(arguments, &["--out"], &[OsStr::new("--out"), run.path.as_os_str()]);
        }
        restart = Some(Restart::of(run)?);
    }

    let attendant = Attendant::new()?;
    for left in (0..=args.restarts).rev() {
        let command = job.command(mpirun.clone(), program.as_os_str(), &arguments).map_err(bad_input)?;
        let mut mpirun = Command::new(&command.program);
        mpirun.args(&command.arguments).envs(command.environment).stdin(Stdio::null());
        let status = attendant.run(&mut mpirun);
        let status = status.with_context(|| format!("running {}", command.program.display()))?;
        let Some(status) = status else {
            return Err(anyhow!("stopped before the ranks were started again; resume with --resume"));
        };
        match status.code() {
            Some(2) => {
                return Err(BadInput("the ranks could not start; rank 0 says why above".to_owned()).into());
            }
            Some(code) if let Some(ending) = Ending::from_exit_code(code) => return Ok(Some(ending)),
            _ if left == 0 || attendant.was_asked() => {
                return Err(anyhow!("the run of {ranks} ranks ended early: {status}; resume with --resume"));
            }
            _ => eprintln!(
                "the run of {ranks} ranks ended early: {status}; it resumes from its last checkpoint"
            ),
        }
        if let Some(restart) = &restart {
            arguments = restart.arguments(arguments)?;
        }
    }
    unreachable!("the last restart has returned")
}

struct Restart {
    run: RunDirectory,
    /// The run's last save before this command.
    before: Option<LastSave>,
}

impl Restart {
    fn of(run: RunDirectory) -> anyhow::Result<Self> {
        let before = Checkpoints::in_run(&run.path).last_save()?;
        Ok(Self { run, before })
    }

    fn arguments(&self, arguments: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
        let now = Checkpoints::in_run(&self.run.path).last_save()?;
        let begins_elsewhere = self.run.from.is_some() || self.run.pretrained.is_some();
        if begins_elsewhere && now.is_none() {
            return Err(anyhow!(
                "the run ended before its first checkpoint; begin it again in another --out"
            ));
        }
        if self.run.from.is_some() && now == self.before {
            // Nothing saved since the start, which may have resumed an earlier checkpoint.
            return Ok(arguments);
        }
        let path = self.run.path.as_os_str();
        let auto = ["--out".as_ref(), path, "--resume".as_ref(), "auto".as_ref()];
        let mut replaced = vec!["--from", "--adapter", "--resume", "--out"];
        // The weights brought a model and a vocabulary, which the run's own configuration has.
        replaced.extend(self.run.pretrained.is_some().then_some("--config"));
        Ok(with(arguments, &replaced, &auto))
    }
}

fn with(arguments: Vec<OsString>, options: &[&str], added: &[&OsStr]) -> Vec<OsString> {
    let mut left = Vec::with_capacity(arguments.len() + added.len());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let is = |option: &&str| text.strip_prefix(*option).is_some_and(|rest| rest.starts_with('='));
        if options.iter().any(|option| text == *option) {
            arguments.next();
        } else if !options.iter().any(is) {
            left.push(argument);
        }
    }
    left.extend(added.iter().map(|&added| added.to_owned()));
    left
}

/// Runs `mpirun` apart from the terminal, which would end the ranks within a second. The first request to stop makes
/// them save; the second ends them.
#[cfg(unix)]
struct Attendant {
    asked: Arc<AtomicBool>,
    process: Arc<Mutex<Option<Pid>>>,
}

#[cfg(unix)]
impl Attendant {
    fn new() -> anyhow::Result<Self> {
        let attendant = Self { asked: Arc::default(), process: Arc::default() };
        let (asked, process) = (Arc::clone(&attendant.asked), Arc::clone(&attendant.process));
        interrupt::on_request(move || {
            let again = asked.swap(true, Ordering::Relaxed);
            if !again {
                eprintln!("\nstopping all ranks after this step; once more to stop at once");
            }
            let signal = if again { Signal::TERM } else { Signal::USR1 };
            if let Some(process) = *process.lock().unwrap_or_else(PoisonError::into_inner) {
                // The process may have ended.
                _ = kill_process(process, signal);
            }
        })
        .context("listening for signals")?;
        Ok(attendant)
    }

    fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// `None` if asked to stop before the start.
    fn run(&self, mpirun: &mut Command) -> std::io::Result<Option<ExitStatus>> {
        let process = || self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = {
            // The lock makes a signal wait for the child.
            let mut running = process();
            if self.was_asked() {
                return Ok(None);
            }
            let child = mpirun.process_group(0).spawn()?;
            *running = Some(Pid::from_child(&child));
            child
        };
        let status = child.wait();
        *process() = None;
        status.map(Some)
    }
}

#[cfg(not(unix))]
struct Attendant;

#[cfg(not(unix))]
impl Attendant {
    #[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
    fn new() -> anyhow::Result<Self> {
        Ok(Self)
    }

    fn was_asked(&self) -> bool {
        false
    }

    fn run(&self, mpirun: &mut Command) -> std::io::Result<Option<ExitStatus>> {
        mpirun.status().map(Some)
    }
}

#[cfg(unix)]
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::fs;

    use runs::config::Config;

    use super::*;

    /// The first save after going back may have the step of the one that was the latest.
    #[test]
    fn a_restart_resumes_a_save_of_the_same_step_as_the_one_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoints = Checkpoints::in_run(folder.path());
        let save = |step| {
            let saved = checkpoints.save(step, 0, |folder| Ok(fs::write(folder.join("state.json"), "{}")?));
            saved.expect("nothing hinders")
        };
        let earlier = save(100);
        save(200);
        let config = Config::load("toy", &[]).expect("a preset");
        let mut run = RunDirectory::new(folder.path().to_owned(), config).expect("UTF-8");
        run.from = Some(Checkpoints::open(&earlier.path).expect("it is whole"));

        let restart = Restart::of(run).expect("readable");
        let again = || restart.arguments(vec!["--resume".into(), "earlier".into()]).expect("readable");
        assert_eq!(again(), ["--resume", "earlier"], "nothing was saved");
        save(200);
        assert_eq!(again()[2..], ["--resume", "auto"]);
    }

    #[test]
    fn an_option_is_replaced_with_its_value() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let added = words("--resume auto");
        let added: Vec<&OsStr> = added.iter().map(OsString::as_os_str).collect();
        let left = with(words("run --out a --set x=--out --out=b --outer c --ranks 2"), &["--out"], &added);
        assert_eq!(left, words("run --set x=--out --outer c --ranks 2 --resume auto"));
    }
}
