//! How ranks start: a process's place by its launcher, and the command that launches several.

mod command;
mod place;

use std::path::PathBuf;

pub use command::{Command, Host, Job, hosts, release};
pub use place::{Place, place};

/// Ranks cannot be launched, or a launcher contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum LaunchError {
    /// A launcher's variable is no number, or contradicts another.
    #[error("{variable}={value:?}, which the launcher has set, {reason}")]
    Variable { variable: &'static str, value: String, reason: String },
    /// The engine's world is not the launched one.
    #[error(
        "the launcher has started rank {} of {}, and MPI sees rank {} of {}: start with the `mpirun` of the same Open \
         MPI, or under Slurm with `srun --mpi=pmix`", launched.0, launched.1, found.0, found.1
    )]
    OtherWorld { launched: (usize, usize), found: (usize, usize) },
    /// There is no `mpirun`.
    #[error(
        "more than one rank needs `mpirun`, which is in no folder of PATH: install Open MPI, on Debian and Ubuntu \
         with `apt-get install openmpi-bin libopenmpi3` (`libopenmpi40` on recent releases)"
    )]
    NoMpirun,
    /// `mpirun` does not start.
    #[error("`{mpirun} --version` could not be run: {reason}")]
    NotRun { mpirun: String, reason: String },
    /// An `mpirun` of another MPI.
    #[error("this `mpirun` is not Open MPI's but says {found:?}: install Open MPI 4 or 5 (`openmpi-bin`)")]
    NotOpenMpi { found: String },
    /// Open MPI without user-level failure mitigation.
    #[error("ranks survive the loss of others only under Open MPI 5, and this `mpirun` is release {release}")]
    NoUlfm { release: u32 },
    /// An unreadable list of hosts.
    #[error("{text:?} is no list of hosts: write `name:slots,name:slots`, each with 1 slot or more")]
    Hosts { text: String },
    /// Fewer slots than ranks, or no rank.
    #[error("{ranks} ranks cannot start on {slots} slots: one rank or more, and a slot for each")]
    Slots { ranks: usize, slots: usize },
}

/// Path and major release of the `mpirun` that `PATH` finds. Runs `mpirun --version`.
pub fn installed() -> Result<(PathBuf, u32), LaunchError> {
    let mpirun = command::find_mpirun(&std::env::var_os("PATH").unwrap_or_default())?;
    let printed = std::process::Command::new(&mpirun).arg("--version").output();
    let not_run = |error: std::io::Error| LaunchError::NotRun {
        mpirun: mpirun.display().to_string(),
        reason: error.to_string(),
    };
    let release = release(&String::from_utf8_lossy(&printed.map_err(not_run)?.stdout))?;
    Ok((mpirun, release))
}
