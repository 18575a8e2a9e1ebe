//! Pieces through `io_uring`: the kernel moves them beside the program, and no thread starts for one.

use super::alternation::BUFFERS;
use super::transfer::{Direction, Transfer};
use io_uring::{IoUring, Probe, opcode, types::Fd};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::Duration;

/// How long to wait for the kernel where it cannot be asked to wake the program.
const NAP: Duration = Duration::from_millis(1);

/// The kernel's queue of transfers.
pub(super) struct Ring {
    queue: IoUring,
    /// The kernel has the buffers pinned.
    registered: bool,
    /// It refused an entry, which may still lie in the queue: it is not entered again.
    refused: bool,
    slots: [Slot; BUFFERS],
    /// Number of entries it takes before it refuses one, if it does.
    #[cfg(test)]
    pub(super) takes: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Spare,
    UnderWay,
    Ended(i32),
}

impl Ring {
    /// A ring for pieces of `buffers`, which are not freed before it.
    pub(super) fn open(buffers: &mut [u8]) -> io::Result<Self> {
        let queue = IoUring::new(BUFFERS as u32)?;
        let mut probe = Probe::new();
        queue.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let whole = libc::iovec { iov_base: buffers.as_mut_ptr().cast(), iov_len: buffers.len() };
        // SAFETY: the caller keeps the buffers for longer than the ring. Without a licence to pin them, the kernel pins them
        // anew for each transfer.
        let registered = unsafe { queue.submitter().register_buffers(&[whole]) }.is_ok();
        Ok(Self {
            queue,
            registered,
            refused: false,
            slots: [Slot::Spare; BUFFERS],
            #[cfg(test)]
            takes: None,
        })
    }

    pub(super) fn is_of_use(&self) -> bool {
        !self.refused
    }

    /// Starts to move a piece. `None` if the kernel does not take it; otherwise the slot it has until it landed.
    ///
    /// # Safety
    /// The piece lies in the ring's buffers, and until it landed only the kernel touches it.
    pub(super) unsafe fn start(
        &mut self,
        transfer: &Transfer<'_>,
        mut piece: NonNull<[u8]>,
        place: u64,
    ) -> Option<usize> {
        if self.refused {
            return None;
        }
        let slot = self.slots.iter().position(|slot| *slot == Slot::Spare)?;
        let file = Fd(transfer.file.as_raw_fd());
        let len = piece.len() as u32;
        // SAFETY: the caller gives the piece away.
        let begin: *mut u8 = unsafe { piece.as_mut() }.as_mut_ptr();
        let entry = match (transfer.direction, self.registered) {
            (Direction::Write, true) => opcode::WriteFixed::new(file, begin, len, 0).offset(place).build(),
            (Direction::Write, false) => opcode::Write::new(file, begin, len).offset(place).build(),
            (Direction::Read, true) => opcode::ReadFixed::new(file, begin, len, 0).offset(place).build(),
            (Direction::Read, false) => opcode::Read::new(file, begin, len).offset(place).build(),
        };
        // SAFETY: file and piece are there until the piece landed, which the caller waits for.
        unsafe { self.queue.submission().push(&entry.user_data(slot as u64)) }.ok()?;
        if self.submit().is_err() {
            self.refused = true;
            return None;
        }
        self.slots[slot] = Slot::UnderWay;
        Some(slot)
    }

    fn submit(&mut self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(left) = &mut self.takes {
            *left = left.checked_sub(1).ok_or(io::ErrorKind::PermissionDenied)?;
        }
        loop {
            match self.queue.submit() {
                Ok(1) => return Ok(()),
                Ok(_) => return Err(io::Error::from(io::ErrorKind::WouldBlock)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the piece in a slot: the number of its bytes that were moved.
    pub(super) fn landed(&mut self, slot: usize) -> io::Result<usize> {
        loop {
            for ended in self.queue.completion() {
                self.slots[ended.user_data() as usize] = Slot::Ended(ended.result());
            }
            if let Slot::Ended(result) = self.slots[slot] {
                self.slots[slot] = Slot::Spare;
                return usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            }
            // A refused entry would be sent by entering. Nobody gets the piece back from the kernel before it is done.
            if self.refused || self.queue.submit_and_wait(1).is_err() {
                std::thread::sleep(NAP);
            }
        }
    }
}
