//! Buffers by turns: while some are on their way to or from the disk, another is filled or emptied.

use std::collections::VecDeque;
use std::io;
use std::panic::resume_unwind;
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

/// Number of buffers: enough for the disk to have something to do while a thread wakes up.
pub(super) const BUFFERS: usize = 3;

/// Transfers of pieces beside the caller's work, which land in the order of their start.
pub(super) struct Alternation<'scope, 'env, T> {
    scope: &'scope Scope<'scope, 'env>,
    transfer: &'env T,
    spare: Vec<&'env mut [u8]>,
    under_way: VecDeque<UnderWay<'scope, 'env>>,
}

type End<'env> = (io::Result<()>, &'env mut [u8], usize);

enum UnderWay<'scope, 'env> {
    Beside(ScopedJoinHandle<'scope, End<'env>>),
    Ended(End<'env>),
}

/// Runs `work` with these buffers. `transfer` is given a piece and its place, on a thread of its own.
pub(super) fn by_turns<'env, T, R>(
    buffers: [&'env mut [u8]; BUFFERS],
    transfer: &'env T,
    work: impl for<'scope> FnOnce(Alternation<'scope, 'env, T>) -> io::Result<R>,
) -> io::Result<R>
where
    T: Fn(&mut [u8], u64) -> io::Result<()> + Sync,
{
    scope(|scope| work(Alternation { scope, transfer, spare: buffers.into(), under_way: VecDeque::new() }))
}

impl<'env, T: Fn(&mut [u8], u64) -> io::Result<()> + Sync> Alternation<'_, 'env, T> {
    /// A buffer that is not under way, if there is one.
    pub(super) fn spare(&mut self) -> Option<&'env mut [u8]> {
        self.spare.pop()
    }

    /// Starts to transfer the first `len` bytes of a buffer.
    pub(super) fn start(&mut self, buffer: &'env mut [u8], len: usize, place: u64) -> io::Result<()> {
        let transfer = self.transfer;
        let work = move || (transfer(&mut buffer[..len], place), buffer, len);
        self.under_way.push_back(UnderWay::Beside(Builder::new().spawn_scoped(self.scope, work)?));
        Ok(())
    }

    /// Runs a copy of one piece, for which no thread is worth its start.
    pub(super) fn run(&mut self, buffer: &'env mut [u8], len: usize, place: u64) {
        let end = (self.transfer)(&mut buffer[..len], place);
        self.under_way.push_back(UnderWay::Ended((end, buffer, len)));
    }

    /// The buffer that is under way for longest, after its transfer of so many bytes.
    pub(super) fn landed(&mut self) -> io::Result<Option<(&'env mut [u8], usize)>> {
        let (end, buffer, len) = match self.under_way.pop_front() {
            None => return Ok(None),
            Some(UnderWay::Ended(end)) => end,
            Some(UnderWay::Beside(handle)) => handle.join().unwrap_or_else(|panic| resume_unwind(panic)),
        };
        end.map(|()| Some((buffer, len)))
    }
}
