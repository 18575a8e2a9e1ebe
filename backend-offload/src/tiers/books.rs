//! The books of the host pool: bytes in use, idle and page-locked, and the shelves of idle slabs. They allocate and
//! free nothing, so that the lock around them is never held for longer than a look-up.

use super::slab::Slab;
use pager::Limit;
use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct Books {
    limit: Limit,
    /// Page-locked memory cannot be paged out by the machine, so it has a limit of its own.
    pinned_limit: Limit,
    in_use: u64,
    idle: u64,
    /// Page-locked bytes, in use and idle.
    pinned: u64,
    /// The most that was ever in use, by which idle memory is kept.
    peak: u64,
    /// The most in use since the peaks were reset.
    recent_peak: u64,
    reserved_peak: u64,
    /// Idle slabs by size, pinned ones apart.
    shelves: HashMap<(bool, usize), Shelf>,
    /// Requests so far.
    requests: u64,
    pageable_fallbacks: u64,
}

/// Idle slabs of one size.
#[derive(Debug, Default)]
struct Shelf {
    slabs: Vec<Slab>,
    /// The last request for this size.
    asked: u64,
}

/// A snapshot of the pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostUsage {
    pub limit: Limit,
    pub in_use: u64,
    pub peak: u64,
    pub reserved: u64,
    pub reserved_peak: u64,
    pub pageable_fallbacks: u64,
}

/// The answer to a request for a slab. Its bytes are booked.
pub(super) enum Granted {
    FromShelf(Slab),
    ToAllocate { pinned: bool },
}

impl Books {
    pub(super) fn new(limit: Limit, pinned_limit: Limit) -> Self {
        Self {
            limit,
            pinned_limit,
            in_use: 0,
            idle: 0,
            pinned: 0,
            peak: 0,
            recent_peak: 0,
            reserved_peak: 0,
            shelves: HashMap::new(),
            requests: 0,
            pageable_fallbacks: 0,
        }
    }

    pub(super) fn set_limits(&mut self, limit: Limit, pinned_limit: Limit) {
        (self.limit, self.pinned_limit) = (limit, pinned_limit);
    }

    pub(super) fn room(&self) -> Limit {
        self.limit.less(self.in_use)
    }

    pub(super) fn usage(&self) -> HostUsage {
        HostUsage {
            limit: self.limit,
            in_use: self.in_use,
            peak: self.recent_peak.max(self.in_use),
            reserved: self.in_use + self.idle,
            reserved_peak: self.reserved_peak,
            pageable_fallbacks: self.pageable_fallbacks,
        }
    }

    /// Starts the peaks anew from what is held now.
    pub(super) fn reset_peaks(&mut self) {
        self.recent_peak = self.in_use;
        self.reserved_peak = self.in_use + self.idle;
    }

    /// Books `len` bytes, or refuses them. Slabs that had to give way are left in `freed`.
    pub(super) fn grant(&mut self, len: usize, wants_pinned: bool, freed: &mut Vec<Slab>) -> Option<Granted> {
        let bytes = len as u64;
        if !self.limit.allows_more(self.in_use, bytes) {
            return None;
        }
        self.note_peaks();
        self.requests += 1;
        for pinned in [wants_pinned, false] {
            let Some(shelf) = self.shelves.get_mut(&(pinned, len)) else { continue };
            shelf.asked = self.requests;
            if let Some(slab) = shelf.slabs.pop() {
                self.idle -= bytes;
                self.in_use += bytes;
                return Some(Granted::FromShelf(slab));
            }
        }
        let too_many_pinned = wants_pinned && !self.pinned_limit.allows_more(self.pinned, bytes);
        if too_many_pinned || !self.limit.allows_more(self.in_use + self.idle, bytes) {
            freed.extend(self.clear_shelves());
        }
        let pinned = wants_pinned && self.pinned_limit.allows_more(self.pinned, bytes);
        self.shelves.entry((pinned, len)).or_default().asked = self.requests;
        self.pinned += if pinned { bytes } else { 0 };
        self.pageable_fallbacks += u64::from(wants_pinned && !pinned);
        self.in_use += bytes;
        if !pinned {
            freed.extend(self.give_up_beyond_peak());
        }
        self.reserved_peak = self.reserved_peak.max(self.in_use + self.idle);
        Some(Granted::ToAllocate { pinned })
    }

    /// Before what is in use changes, so that no request counts whose memory could not be had.
    fn note_peaks(&mut self) {
        self.peak = self.peak.max(self.in_use);
        self.recent_peak = self.recent_peak.max(self.in_use);
    }

    /// The driver refused to lock memory that was granted; ordinary memory serves. True the first time. Slabs that had to give way are
    /// left in `freed`.
    pub(super) fn unpin(&mut self, len: usize, freed: &mut Vec<Slab>) -> bool {
        self.pinned -= len as u64;
        self.pageable_fallbacks += 1;
        freed.extend(self.give_up_beyond_peak());
        self.pageable_fallbacks == 1
    }

    /// Memory that was granted could not be had.
    pub(super) fn refund(&mut self, len: usize) {
        self.in_use -= len as u64;
    }

    /// Takes ordinary idle slabs off the books, to be freed, with which there would be more than was ever in use; those first whose size has
    /// not been asked for the longest. Sizes have changed, and a slab serves only its own. To lock pages anew costs far more than to
    /// have them idle.
    fn give_up_beyond_peak(&mut self) -> Vec<Slab> {
        let mut bytes = (self.in_use + self.idle).saturating_sub(self.peak.max(self.in_use));
        let mut freed = Vec::new();
        while bytes > 0 {
            let shelves =
                self.shelves.iter_mut().filter(|((pinned, _), shelf)| !pinned && !shelf.slabs.is_empty());
            let Some(((_, len), shelf)) = shelves.min_by_key(|(_, shelf)| shelf.asked) else { break };
            let (len, count) = (*len as u64, bytes.div_ceil((*len as u64).max(1)));
            let kept = (shelf.slabs.len() as u64).saturating_sub(count) as usize;
            let given_up = len * (shelf.slabs.len() - kept) as u64;
            freed.extend(shelf.slabs.drain(kept..));
            self.idle -= given_up;
            bytes = bytes.saturating_sub(given_up);
        }
        freed
    }

    /// Takes a slab back. Returns idle slabs to be freed where more lie idle than were ever in use.
    pub(super) fn put_back(&mut self, slab: Slab) -> Vec<Slab> {
        let len = slab.bytes().len();
        self.note_peaks();
        self.in_use -= len as u64;
        self.idle += len as u64;
        self.shelves.entry((slab.is_pinned(), len)).or_default().slabs.push(slab);
        if self.idle > self.peak { self.clear_shelves() } else { Vec::new() }
    }

    /// Takes all idle slabs off the books, to be freed.
    pub(super) fn clear_shelves(&mut self) -> Vec<Slab> {
        self.idle = 0;
        let slabs: Vec<_> = self.shelves.drain().flat_map(|(_, shelf)| shelf.slabs).collect();
        let pinned = slabs.iter().filter(|slab| slab.is_pinned()).map(|slab| slab.bytes().len() as u64);
        self.pinned -= pinned.sum::<u64>();
        slabs
    }
}
