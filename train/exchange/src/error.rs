//! Errors of engines and exchanges.

use std::fmt;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A call of an [`Engine`](crate::Engine).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// [`Engine::all_to_all`](crate::Engine::all_to_all)
    AllToAll,
    /// [`Engine::all_gather`](crate::Engine::all_gather)
    AllGather,
    /// [`Engine::barrier`](crate::Engine::barrier)
    Barrier,
    /// [`Engine::commit`](crate::Engine::commit)
    Commit,
    /// [`Engine::shrink`](crate::Engine::shrink)
    Shrink,
    /// [`Engine::send`](crate::Engine::send) and its end at the peer.
    Message,
}

impl Call {
    /// A call's place here is its number between ranks.
    pub(crate) const ALL: [Self; 6] =
        [Self::AllToAll, Self::AllGather, Self::Barrier, Self::Commit, Self::Shrink, Self::Message];
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllToAll => "all_to_all",
            Self::AllGather => "all_gather",
            Self::Barrier => "barrier",
            Self::Commit => "commit",
            Self::Shrink => "shrink",
            Self::Message => "message",
        })
    }
}

/// A failed call; its buffers are undefined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum Error {
    /// A rank ended, or cannot be reached.
    #[error("{call}: rank {peer} is gone{}", because(reason))]
    Lost { call: Call, peer: usize, reason: String },
    /// An earlier call failed, here or elsewhere, and no `shrink` followed.
    #[error("{call}: a rank is gone, or a call has failed on some rank; shrink, or start again")]
    Broken { call: Call },
    /// The engine reports a failure.
    #[error("{call} failed{}: {reason}", with_peer(*peer))]
    Failed { call: Call, peer: Option<usize>, reason: String },
    /// Two ranks make different calls.
    #[error("this rank makes call {expected} while rank {peer} makes call {found}: ranks must make the same")]
    OtherCall { peer: usize, expected: String, found: String },
    /// A rank sends more or fewer bytes than this one expects.
    #[error("{call}: {expected} bytes are expected of rank {peer}, which sends {found}")]
    Bytes { call: Call, peer: usize, expected: usize, found: usize },
    /// A list without one entry per rank.
    #[error("{call}: {found} parts were given for a world of {world}")]
    Parts { call: Call, world: usize, found: usize },
    /// Elements that belong together differ in number.
    #[error("{what}: {found} elements where {expected} are expected")]
    Length { what: &'static str, expected: usize, found: usize },
    /// Too few or too many contributions of this rank.
    #[error("rank {rank} of {world} contributes {expected} of {count} micro-batches and has added {found}")]
    Contributions { rank: usize, world: usize, count: u64, expected: u64, found: u64 },
    /// A place that is not the engine's.
    #[error("{what} is for rank {} of {}, and this is rank {} of {}", expected.0, expected.1, found.0, found.1)]
    Place { what: &'static str, expected: (usize, usize), found: (usize, usize) },
    /// The engine needs all ranks.
    #[error("shrinking the world needs Open MPI 5 under `mpirun --with-ft ulfm`; this is {library}")]
    CannotShrink { library: String },
    /// No MPI library can be loaded.
    #[error(
        "more than one rank needs Open MPI, and {name} cannot be loaded: {reason}. Install it, on Debian and \
         Ubuntu with `apt-get install openmpi-bin libopenmpi3` (`libopenmpi40` on recent releases)"
    )]
    Missing { name: String, reason: String },
    /// An MPI other than Open MPI.
    #[error(
        "{name} is {found}, whose binary interface is another: install Open MPI 4 or 5 (`openmpi-bin`), and \
         start with its `mpirun`"
    )]
    NotOpenMpi { name: String, found: String },
    /// MPI cannot start in this process.
    #[error("MPI cannot be started: {reason}")]
    Start { reason: String },
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

fn with_peer(peer: Option<usize>) -> String {
    peer.map(|peer| format!(" with rank {peer}")).unwrap_or_default()
}
