//! The `mpirun` command line, as a pure function of request and machine.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::LaunchError;

/// A machine to start ranks on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name or address.
    pub name: String,
    /// Ranks it takes.
    pub slots: usize,
}

/// A request for ranks, and the machine that starts them.
#[derive(Debug, Clone)]
pub struct Job {
    /// Ranks to start.
    pub ranks: usize,
    /// Hosts; empty for this machine alone.
    pub hosts: Vec<Host>,
    /// Network interface, needed if hosts have several. Choose a private network: MPI neither encrypts nor
    /// authenticates.
    pub interface: Option<String>,
    /// Whether ranks survive the loss of others; needs Open MPI 5.
    pub survive: bool,
    /// Cores of this machine.
    pub cores: usize,
    /// Whether the user is root; `mpirun` then needs two variables.
    pub root: bool,
    /// Major release of Open MPI, from [`installed`](super::installed).
    pub release: u32,
}

/// A process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables to set.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// By default a receiver asks for each piece, and before a part above 64 KiB the sender asks for leave. Both wait behind
/// all that the asked rank sends itself: half of a link's rate, and a tenth.
const BETWEEN_HOSTS: [(&str, &str); 4] = [
    ("btl_tcp_flags", "send,inplace"),
    ("btl_tcp_eager_limit", "4194304"),
    ("btl_tcp_rndv_eager_limit", "4194304"),
    ("btl_tcp_max_send_size", "4194304"),
];

impl Job {
    /// Builds the command that starts `program` once for each rank.
    pub fn command(
        &self,
        mpirun: PathBuf,
        program: &OsStr,
        arguments: &[OsString],
    ) -> Result<Command, LaunchError> {
        let alone = [Host { name: "localhost".into(), slots: self.ranks }];
        let hosts = if self.hosts.is_empty() { &alone[..] } else { &self.hosts };
        let slots = hosts.iter().map(|host| host.slots).sum();
        if self.ranks == 0 || self.ranks > slots {
            return Err(LaunchError::Slots { ranks: self.ranks, slots });
        }

        if self.survive && self.release < 5 {
            return Err(LaunchError::NoUlfm { release: self.release });
        }

        let list: Vec<String> = hosts.iter().map(|host| format!("{}:{}", host.name, host.slots)).collect();
        let mut words: Vec<String> =
            vec!["-n".into(), self.ranks.to_string(), "--host".into(), list.join(",")];

        // By default a rank has one core.
        words.extend(["--bind-to", "none"].map(String::from));
        let mut set = |kind: &str, parameter: &str, value: &str| {
            words.extend([kind, parameter, value].map(String::from));
        };

        if let Some(interface) = &self.interface {
            set("--mca", "btl_tcp_if_include", interface);
            if self.release < 5 {
                set("--mca", "oob_tcp_if_include", interface);
            } else if interface != "lo" {
                // Release 5's launcher refuses loopback alone.
                set("--prtemca", "prte_if_include", interface);
            }
        }

        if hosts.len() > 1 {
            for (parameter, value) in BETWEEN_HOSTS {
                set("--mca", parameter, value);
            }
        }

        if hosts.iter().any(|host| host.slots > self.cores) {
            set("--mca", "mpi_yield_when_idle", "1");
        }

        if self.survive {
            words.extend(["--with-ft", "ulfm"].map(String::from));
        }

        let mut all: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        all.push(program.to_owned());
        all.extend_from_slice(arguments);
        let allowed: &[_] = &[("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
        let environment = if self.root { allowed.to_vec() } else { Vec::new() };
        Ok(Command { program: mpirun, arguments: all, environment })
    }
}

/// Reads `a:4,b:4`. A host without a number has one slot.
pub fn hosts(text: &str) -> Result<Vec<Host>, LaunchError> {
    let host = |entry: &str| {
        let (name, slots) = match entry.trim().rsplit_once(':') {
            Some((name, slots)) => (name, slots.parse().ok()?),
            None => (entry.trim(), 1),
        };
        // A leading dash would make an option.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let well = !name.is_empty() && !name.starts_with('-') && name.chars().all(plain) && slots > 0;
        well.then(|| Host { name: name.into(), slots })
    };
    text.split(',').map(host).collect::<Option<_>>().ok_or_else(|| LaunchError::Hosts { text: text.into() })
}

/// Finds `mpirun` in the folders of `path`, a value of `PATH`.
pub(super) fn find_mpirun(path: &OsStr) -> Result<PathBuf, LaunchError> {
    let candidates = std::env::split_paths(path).map(|folder| folder.join("mpirun"));
    candidates.into_iter().find(|file| file.is_file()).ok_or(LaunchError::NoMpirun)
}

/// Major release of Open MPI, from the output of `mpirun --version`.
pub fn release(printed: &str) -> Result<u32, LaunchError> {
    let number = |line: &str| {
        let (_, version) = line.split_once("(Open MPI)")?;
        version.trim().split('.').next()?.parse().ok()
    };
    let first = printed.lines().next().unwrap_or_default();
    number(first).ok_or_else(|| LaunchError::NotOpenMpi { found: first.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            ranks: 2,
            hosts: Vec::new(),
            interface: None,
            survive: false,
            cores: 8,
            root: false,
            release: 4,
        }
    }

    fn line(job: &Job) -> String {
        let arguments = ["run".into(), "a b.json".into()];
        let command = job.command("/bin/mpirun".into(), OsStr::new("train"), &arguments).expect("a command");
        assert_eq!(command.program, PathBuf::from("/bin/mpirun"));
        let words: Vec<_> = command.arguments.iter().map(|word| word.to_string_lossy()).collect();
        words.join("|")
    }

    #[test]
    fn ranks_start_on_this_machine_unbound_and_arguments_stay_whole() {
        assert_eq!(line(&job()), "-n|2|--host|localhost:2|--bind-to|none|train|run|a b.json");
    }

    #[test]
    fn an_interface_is_pinned_for_data_and_for_the_launcher() {
        let wired = |release| Job { interface: Some("eth1".into()), release, ..job() };
        assert!(line(&wired(4)).contains("--mca|btl_tcp_if_include|eth1|--mca|oob_tcp_if_include|eth1|"));
        assert!(line(&wired(5)).contains("--mca|btl_tcp_if_include|eth1|--prtemca|prte_if_include|eth1|"));
        let loopback = Job { interface: Some("lo".into()), release: 5, ..job() };
        assert!(!line(&loopback).contains("prte_if_include"));
    }

    #[test]
    fn hosts_send_both_ways_at_once_and_without_asking_for_leave() {
        let hosts = hosts("a:4,b:4").expect("two hosts");
        let line_of_hosts = line(&Job { ranks: 8, hosts, ..job() });
        for (parameter, value) in BETWEEN_HOSTS {
            assert!(line_of_hosts.contains(&format!("--mca|{parameter}|{value}|")), "{line_of_hosts}");
            assert!(!line(&job()).contains(parameter));
        }
    }

    #[test]
    fn simulated_hosts_and_the_guide_set_what_hosts_do() {
        let script = include_str!("../../examples/rates/on-hosts");
        let guide = include_str!("../../../../docs/guide/ranks.md");
        for (parameter, value) in BETWEEN_HOSTS {
            assert!(script.contains(&format!("--mca {parameter} {value} ")), "{parameter}");
            assert!(guide.contains(&format!("{parameter} = {value}")), "{parameter}");
        }
    }

    #[test]
    fn ranks_yield_where_a_host_has_more_slots_than_there_are_cores() {
        let hosts = hosts("a:4,b:4").expect("two hosts");
        let wide = Job { ranks: 8, hosts, ..job() };
        assert!(line(&wide).starts_with("-n|8|--host|a:4,b:4|"));
        assert!(!line(&wide).contains("yield"));
        assert!(line(&Job { cores: 3, ..wide }).contains("--mca|mpi_yield_when_idle|1"));
    }

    #[test]
    fn root_is_allowed_and_others_need_no_permission() {
        let environment = |root| {
            let command = Job { root, ..job() }.command("mpirun".into(), OsStr::new("train"), &[]);
            command.expect("a command").environment
        };
        assert!(environment(true).contains(&("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")));
        assert!(environment(false).is_empty());
    }

    #[test]
    fn a_job_that_cannot_start_is_refused_with_the_way_out() {
        let refused = |job: &Job| {
            job.command("mpirun".into(), OsStr::new("train"), &[]).expect_err("refused").to_string()
        };
        let few = Job { ranks: 3, hosts: hosts("a,b:1").expect("two"), ..job() };
        assert!(refused(&few).contains("3 ranks cannot start on 2 slots"));
        assert!(refused(&Job { ranks: 0, ..job() }).contains("0 ranks"));
        assert!(refused(&Job { survive: true, ..job() }).contains("only under Open MPI 5"));
        assert!(line(&Job { survive: true, release: 5, ..job() }).contains("--with-ft|ulfm|train"));
        let missing = find_mpirun(OsStr::new("/nowhere")).expect_err("not there").to_string();
        assert!(missing.contains("apt-get install openmpi-bin"), "{missing}");
    }

    #[test]
    fn hosts_are_names_with_slots_and_nothing_that_could_be_an_option() {
        let two = [("a.lab", 4), ("10.0.0.2", 1)].map(|(name, slots)| Host { name: name.into(), slots });
        assert_eq!(hosts("a.lab:4, 10.0.0.2"), Ok(two.to_vec()));
        for bad in ["", "a:0", "a:x", "a:4,,b", "-mca:2", "a b:2", ":3"] {
            assert!(hosts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn other_makers_of_mpirun_are_refused_by_name() {
        assert_eq!(release("mpirun (Open MPI) 4.1.4\n\nReport bugs"), Ok(4));
        assert_eq!(release("mpirun (Open MPI) 5.0.11\n"), Ok(5));
        let error = release("HYDRA build details:\n    Version: 4.0.2").expect_err("MPICH").to_string();
        assert!(error.contains("HYDRA build details"), "{error}");
    }
}
