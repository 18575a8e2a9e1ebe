//! The engine over Open MPI: non-blocking messages between every two ranks.
//!
//! MPI's own collective calls name no awaited ranks and count in 32 bits. Here each call posts one receive and one send
//! per peer and polls them: errors name ranks, and large parts travel in pieces.
//!
//! First each rank sends each other rank a letter: the call's number and kind, the part's length, and a short part
//! itself. A mismatched letter is refused before the caller's memory is written
//! (`parts_of_another_size_than_expected_are_refused_before_any_memory_is_written`). Longer parts follow.
//!
//! A killed rank ends the job or is survived (`a_rank_that_is_killed_ends_the_job_or_is_survived_with_the_same_bits`).
//!
//! # Traps
//! - **MPI uses the caller's memory until a transfer ends,** so no call may return before. ULFM ends transfers by
//!   revoking the communicator; without it the process ends.
//! - **After a failure or a panic MPI is not finalised:** `MPI_Finalize` waits for every rank. `mpirun` ends the
//!   others.
//! - `mpi_yield_when_idle` does not reach waits in user code: they yield, later sleep, by themselves.

mod library;
mod messages;
mod transfer;

use std::ffi::c_int;
use std::io::Write;
use std::time::Duration;

use crate::engine::{Engine, Message, count_parts, gathered, keep_own};
use crate::error::{Call, Error, Result};
use crate::waiting::Waiting;
use crate::watchdog::Watchdog;
use library::{Handle, Library};
use messages::Messages;

/// Bytes of one message; MPI counts to 2³¹.
const PIECE: usize = 1 << 30;

/// The ranks started by `mpirun` or Slurm. One per process: MPI starts once.
pub struct Mpi {
    library: Library,
    communicator: Handle,
    rank: usize,
    world: usize,
    piece: usize,
    calls: u64,
    /// A call has failed.
    broken: bool,
    /// All started ranks are alive.
    whole: bool,
    waiting: Waiting,
    messages: Messages,
}

// SAFETY: handles are addresses in the library and belong to no thread. MPI was started for one thread at a time.
unsafe impl Send for Mpi {}

/// Name and version of the Open MPI library that [`Mpi::open`] would load. Starts nothing.
pub fn open_mpi_version() -> Result<String> {
    Library::load(library::NAME).map(|library| library.version)
}

impl Mpi {
    /// Loads `libmpi.so.40` and starts MPI. Without a launcher the process is a world of one.
    pub fn open() -> Result<Self> {
        Self::open_in_pieces_of(PIECE)
    }

    /// As [`open`](Self::open), with messages of at most `piece` bytes (default 1 GiB) on all ranks.
    ///
    /// # Panics
    ///
    /// If `piece` is zero or above MPI's largest count.
    pub fn open_in_pieces_of(piece: usize) -> Result<Self> {
        assert!((1..=c_int::MAX as usize).contains(&piece), "MPI counts from 1 to {}", c_int::MAX);
        let library = Library::load(library::NAME)?;
        library.start()?;
        let mut engine = Self::over(library, piece);
        engine.find_place()?;
        Ok(engine)
    }

    fn over(library: Library, piece: usize) -> Self {
        Self {
            communicator: library.world,
            library,
            rank: 0,
            world: 1,
            piece,
            calls: 0,
            broken: false,
            whole: true,
            waiting: Waiting::default(),
            messages: Messages::default(),
        }
    }

    /// The library's name and version.
    pub fn version(&self) -> &str {
        &self.library.version
    }

    /// Peers that this rank awaits.
    pub fn waiting(&self) -> Waiting {
        self.waiting.clone()
    }

    fn find_place(&mut self) -> Result<()> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is alive; each call writes one integer.
        let codes = unsafe {
            [
                (self.library.rank)(self.communicator, &raw mut rank),
                (self.library.size)(self.communicator, &raw mut size),
            ]
        };
        if let Some(code) = codes.into_iter().find(|code| *code != 0) {
            return Err(Error::Start { reason: self.library.text(code) });
        }
        (self.rank, self.world) = (rank as usize, size as usize);
        Ok(())
    }

    /// Ends all ranks' calls on this communicator, if the library can. May be repeated.
    fn revoke(&self) -> bool {
        let Some(ulfm) = &self.library.ulfm else { return false };
        // SAFETY: the communicator is alive.
        unsafe { (ulfm.revoke)(self.communicator) == 0 }
    }

    fn agree(&mut self, agree: unsafe extern "C" fn(Handle, *mut c_int) -> c_int, ok: bool) -> Result<bool> {
        const WELL: c_int = 2;
        let mut flags = c_int::from(ok) | if self.broken { 0 } else { WELL };
        // SAFETY: the communicator is alive or revoked, and both may vote; reads and writes one integer.
        let code = unsafe { agree(self.communicator, &raw mut flags) };
        if code == 0 && flags & WELL != 0 {
            return Ok(flags & 1 != 0);
        }
        self.broken = true;
        self.revoke();
        Err(Error::Broken { call: Call::Commit })
    }

    /// Votes by messages, which name a missing rank.
    fn ask_all(&mut self, ok: bool) -> Result<bool> {
        let flag = [u8::from(ok)];
        let send: Vec<&[u8]> = vec![&flag; self.world];
        let mut said = vec![[u8::from(ok)]; self.world];
        let mut receive: Vec<&mut [u8]> = said.iter_mut().map(<[u8; 1]>::as_mut_slice).collect();
        self.transfer(Call::Commit, &send, &mut receive)?;
        Ok(said.iter().all(|said| *said == [1]))
    }
}

impl Engine for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        keep_own(self.rank, self.world, send, receive)?;
        self.transfer(Call::AllToAll, send, receive)
    }

    fn all_gather(&mut self, parts: &mut [&mut [u8]]) -> Result<()> {
        count_parts(Call::AllGather, self.world, parts.len())?;
        let (send, mut receive) = gathered(self.rank, parts);
        self.transfer(Call::AllGather, &send, &mut receive)
    }

    fn send(&mut self, to: (usize, u8), bytes: Vec<u8>) -> Result<()> {
        self.send_message(to, bytes)
    }

    fn expect(&mut self, from: (usize, u8), len: usize) -> Result<()> {
        self.expect_message(from, len)
    }

    fn arrived(&mut self) -> Result<Option<Message>> {
        self.arrived_message()
    }

    fn is_sending(&self) -> bool {
        self.messages.are_leaving()
    }

    fn finish_sending(&mut self) -> Result<()> {
        self.finish_messages()
    }

    fn barrier(&mut self) -> Result<()> {
        let nothing: Vec<&[u8]> = vec![&[]; self.world];
        let mut received: Vec<&mut [u8]> = nothing.iter().map(|_| -> &mut [u8] { &mut [] }).collect();
        self.transfer(Call::Barrier, &nothing, &mut received)
    }

    fn commit(&mut self, ok: bool) -> Result<bool> {
        let asked = self.ask_all(ok);
        let Some(agree) = self.library.ulfm.as_ref().map(|ulfm| ulfm.agree) else { return asked };
        self.waiting.begin(Call::Commit, self.rank, std::iter::empty());
        let agreed = self.agree(agree, ok);
        self.waiting.end_with(&agreed);
        agreed
    }

    fn survives(&self) -> bool {
        self.library.ulfm.is_some()
    }

    fn shrink(&mut self) -> Result<()> {
        let Some(shrink) = self.library.ulfm.as_ref().map(|ulfm| ulfm.shrink) else {
            return Err(Error::CannotShrink { library: self.version().to_owned() });
        };
        self.revoke();
        _ = std::mem::ManuallyDrop::new(std::mem::take(&mut self.messages));
        self.waiting.begin(Call::Shrink, self.rank, std::iter::empty());
        let mut fewer = std::ptr::null_mut();
        // SAFETY: writes the handle of a communicator. The old one stays: freeing it is a collective call.
        let code = unsafe { shrink(self.communicator, &raw mut fewer) };
        self.waiting.end();
        if code != 0 {
            let reason = self.library.text(code);
            return Err(Error::Failed { call: Call::Shrink, peer: None, reason });
        }
        (self.communicator, self.whole) = (fewer, false);
        (self.calls, self.broken) = (0, false);
        self.library.return_errors(fewer)?;
        self.find_place()
    }

    fn watchdog(&self, limit: Duration) -> Option<Watchdog> {
        let abort = self.library.abort();
        Some(Watchdog::start(self.waiting(), limit, move |overdue| {
            // One write: `mpirun` mixes ranks' output.
            _ = std::io::stderr().write_all(format!("error: {overdue}; ending this run\n").as_bytes());
            // `mpirun` 5 may hang if all ranks abort at once. The first call ends the others' processes.
            std::thread::sleep(Duration::from_millis(500) * overdue.rank.min(20) as u32);
            abort.end_the_job();
        }))
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        self.end_messages();
        if self.whole && !self.broken && !std::thread::panicking() {
            // SAFETY: started by `open`, ended once, and no transfer is pending.
            let code = unsafe { (self.library.finalize)() };
            if code != 0 {
                // No call is allowed now, not even for the message.
                eprintln!("error: MPI_Finalize: error {code}");
            }
        }
    }
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, world, broken, .. } = self;
        write!(f, "Mpi {{ rank: {rank}, world: {world}, broken: {broken}, library: {:?} }}", self.version())
    }
}
