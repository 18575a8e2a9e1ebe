//! Carriers of background transfers: `io_uring`, threads, or a test's schedule.

#[cfg(test)]
use super::schedule::Schedule;
use crate::journal::TARGET;
use crate::tiers::aligned::Memory;
use crate::tiers::ring::Ring;
use crate::tiers::threads::Threads;
use crate::tiers::transfer::Direction;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Once};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tiers) enum Means {
    RingIfAny,
    #[cfg(test)]
    Threads,
    #[cfg(test)]
    Schedule(u64),
}

#[derive(Default)]
pub(super) struct Carriers {
    ring: Option<Ring>,
    threads: Threads,
    #[cfg(test)]
    schedule: Option<Schedule>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Carrier {
    Ring,
    Thread,
    #[cfg(test)]
    Schedule,
}

impl Carriers {
    /// `buffers` must outlive the carriers.
    pub(super) fn new(buffers: &Memory, means: Means) -> Self {
        static WARNED: Once = Once::new();
        match means {
            Means::RingIfAny => {
                Self { ring: ring_or_warning(Ring::open(buffers.whole()), &WARNED), ..Self::default() }
            }
            #[cfg(test)]
            Means::Threads => Self::default(),
            #[cfg(test)]
            Means::Schedule(seed) => Self { schedule: Some(Schedule::new(seed)), ..Self::default() },
        }
    }

    /// `None` if no carrier accepts the piece.
    ///
    /// # Safety
    /// The piece lies in the carriers' buffers. Nothing else touches it until it has [landed](Self::landed).
    pub(super) unsafe fn start(
        &mut self,
        slot: usize,
        file: &Arc<File>,
        direction: Direction,
        piece: NonNull<[u8]>,
        place: u64,
    ) -> Option<Carrier> {
        #[cfg(test)]
        if let Some(schedule) = &mut self.schedule {
            // SAFETY: as the caller promises.
            unsafe { schedule.start(slot, file, direction, piece, place) };
            return Some(Carrier::Schedule);
        }
        if let Some(ring) = &mut self.ring
            // SAFETY: as the caller promises.
            && unsafe { ring.start(slot, file, direction, piece, place) }
        {
            return Some(Carrier::Ring);
        }
        // SAFETY: as the caller promises.
        unsafe { self.threads.start(slot, file, direction, piece, place) }.then_some(Carrier::Thread)
    }

    pub(super) fn has_ended(&mut self, carrier: Carrier, slot: usize) -> bool {
        match carrier {
            Carrier::Ring => self.ring.as_mut().is_some_and(|ring| ring.has_ended(slot)),
            Carrier::Thread => self.threads.has_ended(slot),
            #[cfg(test)]
            Carrier::Schedule => self.schedule.as_mut().is_some_and(|schedule| schedule.has_ended(slot)),
        }
    }

    /// Waits. Returns the bytes moved, or `None` if the carrier may keep the piece for ever.
    pub(super) fn landed(&mut self, carrier: Carrier, slot: usize, len: usize) -> Option<io::Result<usize>> {
        match carrier {
            Carrier::Ring => self.ring.as_mut().expect("it was given the piece").landed(slot),
            Carrier::Thread => Some(self.threads.landed(slot).map(|()| len)),
            #[cfg(test)]
            Carrier::Schedule => {
                Some(self.schedule.as_mut().expect("it was given the piece").landed(slot).map(|()| len))
            }
        }
    }

    pub(super) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    #[cfg(test)]
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        self.ring.as_mut()
    }
}

pub(super) fn ring_or_warning(opened: io::Result<Ring>, warned: &Once) -> Option<Ring> {
    opened
        .inspect_err(|error| {
            warned.call_once(|| {
                tracing::warn!(target: TARGET, "no io_uring ({error}): threads read and write the disk");
            });
        })
        .ok()
}
