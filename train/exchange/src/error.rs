//! Errors of engines and exchanges: the call, the peer where it is known, and sizes.

use std::fmt;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A collective call of an [`Engine`](crate::Engine).
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
}

impl Call {
    /// Every call; its place in this list is its number between ranks.
    pub(crate) const ALL: [Self; 5] =
        [Self::AllToAll, Self::AllGather, Self::Barrier, Self::Commit, Self::Shrink];
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllToAll => "all_to_all",
            Self::AllGather => "all_gather",
            Self::Barrier => "barrier",
            Self::Commit => "commit",
            Self::Shrink => "shrink",
        })
    }
}

/// A call that did not do its work. The buffers it was to fill are in no defined state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rank ended, or cannot be reached.
    #[error("{call}: rank {peer} is gone{}", because(reason))]
    Lost {
        /// The call in which it was noticed.
        call: Call,
        /// The rank, numbered as in the world of that call.
        peer: usize,
        /// The engine's own words; empty where it has none.
        reason: String,
    },
    /// An earlier call failed, here or on another rank, and no `shrink` followed.
    #[error("{call}: a rank is gone, or a call has failed on some rank; shrink, or start again")]
    Broken {
        /// The call that was refused or ended.
        call: Call,
    },
    /// The engine reports a failure.
    #[error("{call} failed{}: {reason}", with_peer(*peer))]
    Failed {
        /// The call.
        call: Call,
        /// The rank at the other end, where the engine knows it.
        peer: Option<usize>,
        /// The engine's own words.
        reason: String,
    },
    /// Two ranks make different calls.
    #[error("this rank makes call {expected} while rank {peer} makes call {found}: ranks must make the same")]
    OtherCall {
        /// The rank that differs.
        peer: usize,
        /// This rank's call, with its number.
        expected: String,
        /// That rank's call, with its number.
        found: String,
    },
    /// A rank sends more or fewer bytes than this one expects.
    #[error("{call}: {expected} bytes are expected of rank {peer}, which sends {found}")]
    Bytes {
        /// The call.
        call: Call,
        /// The sender.
        peer: usize,
        /// Bytes expected here.
        expected: usize,
        /// Bytes that it sends.
        found: usize,
    },
    /// A list that has one entry for each rank has another number of entries.
    #[error("{call}: {found} parts were given for a world of {world}")]
    Parts {
        /// The call.
        call: Call,
        /// Ranks there are.
        world: usize,
        /// Parts given.
        found: usize,
    },
    /// Elements that belong together differ in number.
    #[error("{what}: {found} elements where {expected} are expected")]
    Length {
        /// The list that differs.
        what: &'static str,
        /// Elements expected.
        expected: usize,
        /// Elements found.
        found: usize,
    },
    /// A sum is asked for before this rank has added all of its contributions, or after too many.
    #[error("rank {rank} of {world} contributes {expected} of {count} micro-batches and has added {found}")]
    Contributions {
        /// This rank.
        rank: usize,
        /// Ranks that share the work.
        world: usize,
        /// Contributions of all ranks.
        count: u64,
        /// Contributions this rank owes.
        expected: u64,
        /// Contributions it has added.
        found: u64,
    },
    /// Something was made for another place in the world than the engine has.
    #[error("{what} is for rank {} of {}, and this is rank {} of {}", expected.0, expected.1, found.0, found.1)]
    Place {
        /// The thing that was made for another place.
        what: &'static str,
        /// Rank and world it was made for.
        expected: (usize, usize),
        /// Rank and world of the engine.
        found: (usize, usize),
    },
    /// The engine cannot go on with fewer ranks.
    #[error("shrinking the world needs Open MPI 5 under `mpirun --with-ft ulfm`; this is {library}")]
    CannotShrink {
        /// The engine that was asked.
        library: String,
    },
    /// No MPI library can be loaded.
    #[error(
        "more than one rank needs Open MPI, and {name} cannot be loaded: {reason}. Install it, on Debian and \
         Ubuntu with `apt-get install openmpi-bin libopenmpi3` (`libopenmpi40` on recent releases)"
    )]
    Missing {
        /// The file that was looked for.
        name: String,
        /// The loader's own words.
        reason: String,
    },
    /// An MPI library that is not Open MPI.
    #[error(
        "{name} is {found}, whose binary interface is another: install Open MPI 4 or 5 (`openmpi-bin`), and \
         start with its `mpirun`"
    )]
    NotOpenMpi {
        /// The file that was loaded.
        name: String,
        /// The library's version, or why it cannot be Open MPI.
        found: String,
    },
    /// MPI cannot be started in this process.
    #[error("MPI cannot be started: {reason}")]
    Start {
        /// The reason.
        reason: String,
    },
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

fn with_peer(peer: Option<usize>) -> String {
    peer.map(|peer| format!(" with rank {peer}")).unwrap_or_default()
}
