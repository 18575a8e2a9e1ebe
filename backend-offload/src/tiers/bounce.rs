//! The memory that blocks pass on their way to and from the disk, and the ring that transfers it.

use super::alternation::BUFFERS;
use super::extents::ALIGNMENT;
use super::ring::Ring;
use crate::journal::TARGET;
use std::fmt;
use std::sync::Once;

/// Bytes of one read or write, through buffers that are aligned as the disk wants.
pub(super) const PIECE: usize = 4 << 20;

/// The buffers of one disk.
pub(super) struct Bounce {
    /// Closed before its buffers are freed.
    ring: Option<Ring>,
    pages: Box<[Page]>,
}

/// How pieces are transferred beside the program's copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// By `io_uring`, or by threads where the kernel refuses it.
    RingIfAny,
    #[cfg(test)]
    Threads,
}

#[derive(Clone)]
#[repr(C, align(4096))]
pub(super) struct Page(pub(super) [u8; ALIGNMENT as usize]);

impl Bounce {
    pub(super) fn new(means: Means) -> Self {
        let pages = vec![Page([0; ALIGNMENT as usize]); BUFFERS * PIECE / ALIGNMENT as usize].into();
        let mut bounce = Self { ring: None, pages };
        if means == Means::RingIfAny {
            bounce.ring = ring_or_word(Ring::open(bounce.bytes()));
        }
        bounce
    }

    /// The buffers, and the ring if there is one.
    pub(super) fn parts(&mut self) -> ([&mut [u8]; BUFFERS], Option<&mut Ring>) {
        let mut buffers = bytes_of(&mut self.pages).chunks_exact_mut(PIECE);
        let buffers = std::array::from_fn(|_| buffers.next().expect("as many as there are"));
        (buffers, self.ring.as_mut().filter(|ring| ring.is_of_use()))
    }

    fn bytes(&mut self) -> &mut [u8] {
        bytes_of(&mut self.pages)
    }

    #[cfg(test)]
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        self.ring.as_mut()
    }
}

fn bytes_of(pages: &mut [Page]) -> &mut [u8] {
    // SAFETY: pages are plain bytes without padding, and `&mut` makes the access exclusive.
    unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), size_of_val(pages)) }
}

/// The ring, or one line for all disks of the process that threads do its work.
fn ring_or_word(opened: std::io::Result<Ring>) -> Option<Ring> {
    static SAID: Once = Once::new();
    opened
        .inspect_err(|error| {
            SAID.call_once(|| {
                tracing::info!(target: TARGET, "no io_uring ({error}): threads read and write the disk");
            });
        })
        .ok()
}

impl fmt::Debug for Bounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounce").field("has_ring", &self.ring.is_some()).finish_non_exhaustive()
    }
}
