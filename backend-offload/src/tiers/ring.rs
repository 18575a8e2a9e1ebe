//! Background transfers by `io_uring`, without a thread.
//!
//! Where the kernel refuses it, threads take over with the same bytes and errors
//! (`threads_take_over_from_a_ring_that_refuses_entries`), reported once (`a_kernel_without_rings_is_reported_once`).
//!
//! A ring no longer served loses its pieces after a minute
//! (`a_read_lost_in_a_dead_ring_fails_and_its_late_bytes_reach_no_other_block`).

use super::transfer::{BUFFERS, Direction};
use io_uring::{IoUring, Probe, opcode, types::Fd};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::Duration;

/// Poll interval where the kernel cannot wake the program.
const NAP: Duration = Duration::from_millis(1);

/// The longest poll without an ended piece.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) struct Ring {
    queue: IoUring,
    /// The kernel keeps the buffers pinned.
    registered: bool,
    /// The kernel refused an entry, which may still be queued: submit nothing more.
    refused: bool,
    /// Time polled since a piece last ended.
    silence: Duration,
    patience: Duration,
    /// By buffer, until [`landed`](Self::landed) takes them.
    ended: [Option<i32>; BUFFERS],
    /// Entries to accept before one is refused.
    #[cfg(test)]
    pub(super) takes: Option<u8>,
}

impl Ring {
    /// `buffers` must outlive the ring.
    pub(super) fn open(buffers: NonNull<[u8]>) -> io::Result<Self> {
        let queue = IoUring::new(BUFFERS as u32)?;
        let mut probe = Probe::new();
        queue.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let whole = libc::iovec { iov_base: buffers.cast().as_ptr(), iov_len: buffers.len() };
        // SAFETY: the caller keeps the buffers longer than the ring.
        let registered = unsafe { queue.submitter().register_buffers(&[whole]) }.is_ok();
        Ok(Self {
            queue,
            registered,
            refused: false,
            silence: Duration::ZERO,
            patience: PATIENCE,
            ended: [None; BUFFERS],
            #[cfg(test)]
            takes: None,
        })
    }

    /// False if the kernel refuses.
    ///
    /// # Safety
    /// The piece lies in the ring's buffers. File and piece belong to the kernel until the piece has
    /// [landed](Self::landed).
    pub(super) unsafe fn start(
        &mut self,
        slot: usize,
        file: &File,
        direction: Direction,
        piece: NonNull<[u8]>,
        place: u64,
    ) -> bool {
        if self.refused {
            return false;
        }
        let (file, begin, len) = (Fd(file.as_raw_fd()), piece.cast().as_ptr(), piece.len() as u32);
        let entry = match (direction, self.registered) {
            (Direction::Write, true) => opcode::WriteFixed::new(file, begin, len, 0).offset(place).build(),
            (Direction::Write, false) => opcode::Write::new(file, begin, len).offset(place).build(),
            (Direction::Read, true) => opcode::ReadFixed::new(file, begin, len, 0).offset(place).build(),
            (Direction::Read, false) => opcode::Read::new(file, begin, len).offset(place).build(),
        };
        // SAFETY: file and piece live until the piece has landed.
        if unsafe { self.queue.submission().push(&entry.user_data(slot as u64)) }.is_err() {
            return false;
        }
        self.refused = self.submit().is_err();
        !self.refused
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

    pub(super) fn has_ended(&mut self, slot: usize) -> bool {
        for ended in self.queue.completion() {
            self.ended[ended.user_data() as usize] = Some(ended.result());
            self.silence = Duration::ZERO;
        }
        self.ended[slot].is_some()
    }

    /// `None` if the ring is dead: the kernel may use file and piece for ever.
    pub(super) fn landed(&mut self, slot: usize) -> Option<io::Result<usize>> {
        while !self.has_ended(slot) {
            // Entering the kernel would submit a refused entry: poll.
            if self.refused || self.queue.submit_and_wait(1).is_err() {
                if self.silence >= self.patience {
                    self.refused = true;
                    return None;
                }
                std::thread::sleep(NAP);
                self.silence += NAP;
            }
        }
        let moved = self.ended[slot].take().unwrap_or_default();
        Some(usize::try_from(moved).map_err(|_| io::Error::from_raw_os_error(-moved)))
    }

    #[cfg(test)]
    pub(super) fn is_usable(&self) -> bool {
        !self.refused
    }

    #[cfg(test)]
    pub(super) fn die(&mut self) {
        (self.refused, self.patience) = (true, Duration::from_millis(50));
    }
}
