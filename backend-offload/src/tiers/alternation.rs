//! Buffers by turns: while some are on their way to or from the disk, another is filled or emptied.

use super::bounce::Bounce;
use super::ring::Ring;
use super::transfer::Transfer;
use std::collections::VecDeque;
use std::io;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

/// Number of buffers: enough for the disk to have something to do while a thread wakes up.
pub(super) const BUFFERS: usize = 3;

/// Transfers of pieces beside the caller's work, which land in the order of their start.
pub(super) struct Alternation<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    ring: Option<&'env mut Ring>,
    transfer: &'env Transfer<'env>,
    spare: Vec<&'env mut [u8]>,
    under_way: VecDeque<UnderWay<'scope, 'env>>,
}

type End<'env> = (io::Result<()>, &'env mut [u8], usize);

enum UnderWay<'scope, 'env> {
    InRing(Given),
    Beside(ScopedJoinHandle<'scope, End<'env>>),
    Ended(End<'env>),
}

/// A buffer that is the kernel's.
struct Given {
    slot: usize,
    buffer: NonNull<[u8]>,
    len: usize,
    place: u64,
}

/// Runs `work` with these buffers. Pieces are moved by the ring, or on threads of their own where there is none.
pub(super) fn by_turns<'env, R>(
    bounce: &'env mut Bounce,
    transfer: &'env Transfer<'env>,
    work: impl for<'scope> FnOnce(&mut Alternation<'scope, 'env>) -> io::Result<R>,
) -> io::Result<R> {
    let (buffers, ring) = bounce.parts();
    scope(|scope| {
        // It is ours alone to drop, which waits for the kernel.
        work(&mut Alternation { scope, ring, transfer, spare: buffers.into(), under_way: VecDeque::new() })
    })
}

impl<'env> Alternation<'_, 'env> {
    /// A buffer that is not under way, if there is one.
    pub(super) fn spare(&mut self) -> Option<&'env mut [u8]> {
        self.spare.pop()
    }

    /// Starts to transfer the first `len` bytes of a buffer.
    pub(super) fn start(&mut self, buffer: &'env mut [u8], len: usize, place: u64) -> io::Result<()> {
        let transfer = self.transfer;
        let mut buffer = NonNull::from(buffer);
        if let Some(ring) = &mut self.ring {
            // SAFETY: the buffer is touched again only when it landed, for which `drop` waits at the latest.
            let piece = NonNull::slice_from_raw_parts(buffer.cast(), len);
            if let Some(slot) = unsafe { ring.start(transfer, piece, place) } {
                self.under_way.push_back(UnderWay::InRing(Given { slot, buffer, len, place }));
                return Ok(());
            }
        }
        // SAFETY: nobody else was given it.
        let buffer: &'env mut [u8] = unsafe { buffer.as_mut() };
        let work = move || (transfer.run(&mut buffer[..len], place), buffer, len);
        self.under_way.push_back(UnderWay::Beside(Builder::new().spawn_scoped(self.scope, work)?));
        Ok(())
    }

    /// Runs a copy of one piece, for which nothing beside is worth its start.
    pub(super) fn run(&mut self, buffer: &'env mut [u8], len: usize, place: u64) {
        let end = self.transfer.run(&mut buffer[..len], place);
        self.under_way.push_back(UnderWay::Ended((end, buffer, len)));
    }

    /// The buffer that is under way for longest, after its transfer of so many bytes.
    pub(super) fn landed(&mut self) -> io::Result<Option<(&'env mut [u8], usize)>> {
        let (end, buffer, len) = match self.under_way.pop_front() {
            None => return Ok(None),
            Some(UnderWay::Ended(end)) => end,
            Some(UnderWay::Beside(handle)) => handle.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Some(UnderWay::InRing(given)) => self.taken_back(given),
        };
        end.map(|()| Some((buffer, len)))
    }

    fn taken_back(&mut self, given: Given) -> End<'env> {
        let Given { slot, mut buffer, len, place } = given;
        let moved = self.ring.as_mut().expect("the piece is in it").landed(slot);
        // SAFETY: the kernel is done with it, and `start` was given it for as long.
        let buffer: &'env mut [u8] = unsafe { buffer.as_mut() };
        (self.transfer.finish(&mut buffer[..len], place, moved), buffer, len)
    }
}

/// Takes back what work that failed left with the kernel.
impl Drop for Alternation<'_, '_> {
    fn drop(&mut self) {
        for given in std::mem::take(&mut self.under_way) {
            if let (UnderWay::InRing(given), Some(ring)) = (given, &mut self.ring) {
                _ = ring.landed(given.slot);
            }
        }
    }
}
