//! Runs crate `exchange`'s measuring program, alone or as ranks.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use exchange::launch::{self, Job};

use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

use crate::{process, records::bytes::Bytes};

use super::{
    cards::Card,
    sample::{self, Link, Sample},
};

const NAME: &str = "rates";

pub(super) const MPIRUN: &str = "mpirun";

const LIMIT: Duration = Duration::from_mins(10);

/// Nothing leaves this machine.
const LOOPBACK: &str = if cfg!(target_os = "macos") { "lo0" } else { "lo" };

#[derive(Debug, Clone)]
pub(super) struct Workload {
    pub(super) sizes: Vec<Bytes>,
    pub(super) turns: u16,
    /// Of simulated hosts.
    pub(super) card: Option<Card>,
}

impl Workload {
    fn arguments(&self) -> [String; 2] {
        let sizes: Vec<_> = self.sizes.iter().map(|bytes| bytes.0.to_string()).collect();
        [sizes.join(","), self.turns.to_string()]
    }

    fn command(&self, program: impl Into<String>) -> Vec<String> {
        [program.into()].into_iter().chain(self.arguments()).collect()
    }
}

pub(super) struct Launcher {
    pub(super) mpirun: PathBuf,
    release: u32,
    is_root: bool,
    cores: usize,
}

impl Launcher {
    pub(super) fn find() -> Result<Self> {
        let (mpirun, release) = launch::installed()?;
        let user = Invocation::new("id").arguments(["-u"]).output(Path::new("."))?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { mpirun, release, is_root: user.trim() == "0", cores })
    }

    pub(super) fn start(
        &self,
        link: Link,
        ranks: usize,
        mpirun: &Path,
        program: &[String],
    ) -> Result<Invocation> {
        let [name, arguments @ ..] = program else { bail!("there is no program to start") };
        let job = Job {
            ranks,
            hosts: Vec::new(),
            interface: Some(LOOPBACK.to_owned()),
            survive: false,
            cores: self.cores,
            root: self.is_root,
            release: self.release,
        };
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let command = job.command(mpirun.to_owned(), OsStr::new(name), &arguments)?;
        let words = command.arguments.iter().map(|word| word.to_string_lossy());
        let ranks = Invocation::new(command.program.to_string_lossy()).arguments(words);
        let layer = [("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", self.transport(link))];
        let layer = if link == Link::None { &[][..] } else { &layer[..] };
        let set = layer.iter().copied().chain(command.environment);
        Ok(set.fold(ranks, |ranks, (name, value)| ranks.environment(name, value)))
    }

    /// Open MPI defaults to shared memory.
    fn transport(&self, link: Link) -> &'static str {
        match link {
            Link::SharedMemory if self.release < 5 => "self,vader",
            Link::SharedMemory => "self,sm",
            Link::Tcp | Link::Cards | Link::None => "self,tcp",
        }
    }
}

/// Commands for the record, without folders.
pub(super) fn shown(launcher: &Launcher, worlds: &[usize], workload: &Workload) -> Result<Vec<String>> {
    let alone = Invocation::new(NAME).arguments(workload.arguments()).to_string();
    let mut lines = vec![alone];
    for link in super::LINKS {
        for &ranks in worlds {
            lines.push(launcher.start(link, ranks, Path::new(MPIRUN), &workload.command(NAME))?.to_string());
        }
    }
    let hosts = workload.card.iter().flat_map(|card| worlds.iter().map(move |hosts| (card, *hosts)));
    lines.extend(hosts.map(|(card, hosts)| card.shown(hosts, &workload.command(NAME))));
    Ok(lines)
}

pub(super) struct Program {
    binary: PathBuf,
    pub(super) commit: String,
    scratch: PathBuf,
}

impl Program {
    pub(super) fn build(profile: &str) -> Result<Self> {
        let commit = workspace::commit()?;
        let build = Invocation::cargo("build --package exchange --example").arguments([NAME]);
        build.arguments(["--profile", profile]).run(workspace::root())?;
        let target = Workspace::read()?.target;
        let folder = if profile == "dev" { "debug" } else { profile };
        let binary = target.join(folder).join("examples").join(format!("{NAME}{}", env::consts::EXE_SUFFIX));
        Ok(Self { binary, commit, scratch: target.join("bench-scale") })
    }

    pub(super) fn alone(&self, workload: &Workload) -> Result<Vec<Sample>> {
        let invocation = Invocation::new(self.binary.to_string_lossy()).arguments(workload.arguments());
        Ok(self.run(&invocation, Link::None, 1)?.1)
    }

    pub(super) fn between(
        &self,
        launcher: &Launcher,
        link: Link,
        ranks: usize,
        workload: &Workload,
    ) -> Result<(String, Vec<Sample>)> {
        let program = workload.command(self.binary.to_string_lossy());
        let invocation = launcher.start(link, ranks, &launcher.mpirun, &program)?;
        self.run(&invocation, link, ranks)
    }

    pub(super) fn on_hosts(&self, card: &Card, hosts: usize, workload: &Workload) -> Result<Vec<Sample>> {
        let program = workload.command(self.binary.to_string_lossy());
        Ok(self.run(&card.start(hosts, &program), Link::Cards, hosts)?.1)
    }

    fn run(&self, invocation: &Invocation, link: Link, ranks: usize) -> Result<(String, Vec<Sample>)> {
        let scratch = self.scratch.join(std::process::id().to_string());
        fs::create_dir_all(&scratch).with_context(|| format!("{} could not be made", scratch.display()))?;
        let ended = process::run(invocation, NAME, &scratch, LIMIT);
        fs::remove_dir_all(&scratch)
            .with_context(|| format!("{} could not be removed", scratch.display()))?;
        let ended = ended?;
        match ended.status {
            Some(status) if status.success() => sample::printed(&ended.printed, link, ranks),
            Some(status) => bail!("`{invocation}` failed: {status}: {}", ended.complaint),
            None => bail!("`{invocation}` was stopped after {} s", LIMIT.as_secs()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn launcher(release: u32) -> Launcher {
        Launcher { mpirun: "/opt/bin/mpirun".into(), release, is_root: false, cores: 2 }
    }

    #[test]
    fn ranks_are_started_over_the_link_that_is_measured() {
        let card = Some("1gbit".parse().unwrap());
        let workload = Workload { sizes: vec![Bytes(4096), Bytes(8192)], turns: 7, card };
        let lines = shown(&launcher(4), &[2, 4], &workload).unwrap();
        assert_eq!((lines.len(), lines[0].as_str()), (7, "rates 4096,8192 7"));
        assert!(lines[6].ends_with("/on-hosts 4 1 1gbit rates 4096,8192 7"), "{}", lines[6]);
        assert!(lines[1].starts_with("OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp mpirun -n 2 "), "{}", lines[1]);
        assert!(lines[1].contains("btl_tcp_if_include lo") && lines[1].ends_with(" rates 4096,8192 7"));
        assert!(lines[2].contains("mpi_yield_when_idle 1") && !lines[1].contains("yield"), "{}", lines[2]);
        assert!(lines[3].contains("OMPI_MCA_btl=self,vader "), "{}", lines[3]);
        assert!(shown(&launcher(5), &[2], &workload).unwrap()[2].contains("OMPI_MCA_btl=self,sm "));
        assert!(lines.iter().all(|line| !line.contains("/opt")));
    }
}
