//! Several ranks from one command: the same command under `mpirun`.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow};
use exchange::launch::{Job, Place, find_mpirun, hosts, place, release};
use runs::BadInput;

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
/// asked for ranks, or it is one of them.
pub(crate) fn launch(args: &RankArgs) -> anyhow::Result<Option<Ending>> {
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
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let command = job.command(mpirun, program.as_os_str(), &arguments).map_err(bad_input)?;
    let mut mpirun = Command::new(&command.program);
    mpirun.args(&command.arguments).envs(command.environment).stdin(Stdio::null());
    let status = attended(&mut mpirun).with_context(|| format!("running {}", command.program.display()))?;
    match status.code() {
        Some(code) => Ending::of_code(code).map(Some).ok_or_else(|| match code {
            2 => BadInput("the ranks could not begin; rank 0 says why above".to_owned()).into(),
            code => {
                anyhow!("the run of {ranks} ranks ended early, with exit code {code}; go on with --resume")
            }
        }),
        None => Err(anyhow!("the run of {ranks} ranks was ended: {status}; go on with --resume")),
    }
}

/// Runs `mpirun` apart from the terminal, which would make it end the ranks within a second. The first wish to stop is passed
/// on to them, who save a checkpoint; the second ends them.
#[cfg(unix)]
fn attended(mpirun: &mut Command) -> anyhow::Result<ExitStatus> {
    use std::os::unix::process::CommandExt;

    use rustix::process::{Pid, Signal, kill_process};

    let mut child = mpirun.process_group(0).spawn()?;
    let process = Pid::from_child(&child);
    let asked = AtomicBool::new(false);
    ctrlc::set_handler(move || {
        let again = asked.swap(true, Ordering::Relaxed);
        // It may have ended by itself.
        _ = kill_process(process, if again { Signal::TERM } else { Signal::USR1 });
    })
    .context("listening for signals")?;
    Ok(child.wait()?)
}

#[cfg(not(unix))]
fn attended(mpirun: &mut Command) -> anyhow::Result<ExitStatus> {
    Ok(mpirun.status()?)
}

#[cfg(unix)]
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}
