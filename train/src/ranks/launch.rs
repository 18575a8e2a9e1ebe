//! Several ranks from one command: the same command under `mpirun`.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
#[cfg(unix)]
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
#[cfg(unix)]
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, anyhow};
use exchange::launch::{Job, Place, find_mpirun, hosts, place, release};
use runs::BadInput;
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process};

use crate::exit::Ending;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RankArgs {
    /// Train in this many processes, which share every step's micro-batches and end with the numbers of one. Needs Open MPI.
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<usize>,
    /// Where they run, and how many on each: `a:4,b:4`. By default all on this machine.
    #[arg(long, value_name = "LIST", requires = "ranks")]
    pub(crate) hosts: Option<String>,
    /// The network interface that ranks talk over. What they say is neither encrypted nor authenticated.
    #[arg(long, value_name = "NAME", requires = "ranks")]
    pub(crate) interface: Option<String>,
    /// When a rank dies, start all again this many times, each time from the last checkpoint.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "ranks")]
    pub(crate) restarts: u32,
    /// End the run when another rank was not heard of for this long. An evaluation or a checkpoint takes its time, too.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rank_timeout: u64,
}

/// This process's place among those that a launcher has started.
pub(super) fn found() -> anyhow::Result<Option<Place>> {
    let variables: BTreeMap<String, String> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Ok(place(&variables)?)
}

/// Starts this program again, once a rank, and waits for how the run ends. `None` where this process is to train itself: nobody
/// asked for ranks, or it is one of them. `out` is the directory of a run that begins, to be gone on with after a restart.
pub(crate) fn launch(
    args: &RankArgs,
    out: impl FnOnce() -> anyhow::Result<Option<PathBuf>>,
) -> anyhow::Result<Option<Ending>> {
    let Some(ranks) = args.ranks else { return Ok(None) };
    if found()?.is_some() {
        return Ok(None);
    }
    let bad_input = |error: exchange::launch::LaunchError| BadInput(error.to_string());
    let mpirun = find_mpirun(&env::var_os("PATH").unwrap_or_default()).map_err(bad_input)?;
    let version = Command::new(&mpirun).arg("--version").output();
    let version = version.with_context(|| format!("running {}", mpirun.display()))?.stdout;
    let job = Job {
        ranks,
        hosts: args.hosts.as_deref().map(hosts).transpose().map_err(bad_input)?.unwrap_or_default(),
        interface: args.interface.clone(),
        survive: false,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        root: is_root(),
        release: release(&String::from_utf8_lossy(&version)).map_err(bad_input)?,
    };
    let program = env::current_exe().context("finding this program")?;
    let mut arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let out = if args.restarts > 0 { out()? } else { None };
    if let Some(out) = &out {
        arguments = without(arguments, "--out");
        arguments.extend(["--out".into(), out.clone().into_os_string()]);
    }
    let attendant = Attendant::new()?;
    for restart in 0..=args.restarts {
        let command = job.command(mpirun.clone(), program.as_os_str(), &arguments).map_err(bad_input)?;
        let mut mpirun = Command::new(&command.program);
        mpirun.args(&command.arguments).envs(command.environment).stdin(Stdio::null());
        let status = attendant.run(&mut mpirun);
        let status = status.with_context(|| format!("running {}", command.program.display()))?;
        match status.code() {
            Some(2) => {
                return Err(BadInput("the ranks could not begin; rank 0 says why above".to_owned()).into());
            }
            Some(code) if let Some(ending) = Ending::of_code(code) => return Ok(Some(ending)),
            _ if restart == args.restarts || attendant.was_asked() => {
                return Err(anyhow!("the run of {ranks} ranks ended early: {status}; go on with --resume"));
            }
            _ => eprintln!(
                "the run of {ranks} ranks ended early: {status}; it goes on from its last checkpoint"
            ),
        }
        if let Some(out) = out.as_ref().filter(|_| restart == 0) {
            let own = without(arguments.clone(), "--from");
            if own.len() < arguments.len() && !out.join("checkpoints/latest").exists() {
                return Err(anyhow!(
                    "the run ended before its first checkpoint; begin it again in another --out"
                ));
            }
            arguments = own;
            arguments.extend(["--resume".into(), "auto".into()]);
        }
    }
    unreachable!("the last restart has returned")
}

/// The arguments but for an option and its value.
fn without(arguments: Vec<OsString>, option: &str) -> Vec<OsString> {
    let joined = format!("{option}=");
    let mut left = Vec::with_capacity(arguments.len());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if argument == option {
            arguments.next();
        } else if !argument.to_string_lossy().starts_with(&joined) {
            left.push(argument);
        }
    }
    left
}

/// Runs `mpirun` apart from the terminal, which would make it end the ranks within a second. The first wish to stop is passed
/// on to them, who save a checkpoint; the second ends them.
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
        ctrlc::set_handler(move || {
            let again = asked.swap(true, Ordering::Relaxed);
            if !again {
                eprintln!("\nstopping all ranks after this step; once more to stop at once");
            }
            let signal = if again { Signal::TERM } else { Signal::USR1 };
            if let Some(process) = *process.lock().unwrap_or_else(PoisonError::into_inner) {
                // It may have ended by itself.
                _ = kill_process(process, signal);
            }
        })
        .context("listening for signals")?;
        Ok(attendant)
    }

    fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    fn run(&self, mpirun: &mut Command) -> std::io::Result<ExitStatus> {
        let mut child = mpirun.process_group(0).spawn()?;
        let running = |process| *self.process.lock().unwrap_or_else(PoisonError::into_inner) = process;
        running(Some(Pid::from_child(&child)));
        let status = child.wait();
        running(None);
        status
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

    fn run(&self, mpirun: &mut Command) -> std::io::Result<ExitStatus> {
        mpirun.status()
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
    use super::*;

    #[test]
    fn an_option_goes_with_its_value() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let left = without(words("run --out a --set x=--out --out=b --ranks 2"), "--out");
        assert_eq!(left, words("run --set x=--out --ranks 2"));
    }
}
