//! The books of the host pool: bytes in use, idle and page-locked, and the idle slabs by size. They allocate and free
//! no memory, so their lock is held only for a look-up.

use super::slab::Slab;
use pager::Limit;
use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct Books {
    limit: Limit,
    /// Separate limit for page-locked memory, which the machine cannot page out.
    pinned_limit: Limit,
    in_use: u64,
    idle: u64,
    /// Page-locked bytes, in use and idle.
    pinned: u64,
    /// Maximum of `in_use` ever; it bounds the idle memory.
    peak: u64,
    /// Maximum of `in_use` since the last reset.
    recent_peak: u64,
    reserved_peak: u64,
    /// Idle slabs by page-locking and size.
    shelves: HashMap<(bool, usize), Shelf>,
    /// Number of requests so far.
    requests: u64,
    pageable_fallbacks: u64,
}

/// Idle slabs of one size.
#[derive(Debug, Default)]
struct Shelf {
    slabs: Vec<Slab>,
    /// Number of the last request for this size.
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

/// The answer to a request for a slab. Its bytes are already counted.
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

    /// Resets the peaks to the present values.
    pub(super) fn reset_peaks(&mut self) {
        self.recent_peak = self.in_use;
        self.reserved_peak = self.in_use + self.idle;
    }

    /// Counts `len` bytes, or refuses them. Adds slabs to free to `freed`.
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
            freed.extend(self.trim_to_peak());
        }

        self.reserved_peak = self.reserved_peak.max(self.in_use + self.idle);
        Some(Granted::ToAllocate { pinned })
    }

    /// Called before `in_use` changes, so that a request whose allocation fails does not count.
    fn note_peaks(&mut self) {
        self.peak = self.peak.max(self.in_use);
        self.recent_peak = self.recent_peak.max(self.in_use);
    }

    /// Records that the driver refused to lock granted memory; ordinary memory replaces it. True the first time. Adds
    /// slabs to free to `freed`.
    pub(super) fn unpin(&mut self, len: usize, freed: &mut Vec<Slab>) -> bool {
        self.pinned -= len as u64;
        self.pageable_fallbacks += 1;
        freed.extend(self.trim_to_peak());
        self.pageable_fallbacks == 1
    }

    /// Returns granted bytes whose allocation failed.
    pub(super) fn refund(&mut self, len: usize) {
        self.in_use -= len as u64;
    }

    /// Removes ordinary idle slabs until in use plus idle is at most the peak, sizes with the oldest last request
    /// first: after a change of sizes, an idle slab serves only its own size. Page-locked slabs stay, because locking
    /// again costs far more.
    fn trim_to_peak(&mut self) -> Vec<Slab> {
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

    /// Takes a slab back. Returns all idle slabs, to be freed, if they exceed the peak.
    pub(super) fn put_back(&mut self, slab: Slab) -> Vec<Slab> {
        let len = slab.bytes().len();
        self.note_peaks();
        self.in_use -= len as u64;
        self.idle += len as u64;
        self.shelves.entry((slab.is_pinned(), len)).or_default().slabs.push(slab);
        if self.idle > self.peak { self.clear_shelves() } else { Vec::new() }
    }

    /// Removes all idle slabs, to be freed.
    pub(super) fn clear_shelves(&mut self) -> Vec<Slab> {
        self.idle = 0;
        let slabs: Vec<_> = self.shelves.drain().flat_map(|(_, shelf)| shelf.slabs).collect();
        let pinned = slabs.iter().filter(|slab| slab.is_pinned()).map(|slab| slab.bytes().len() as u64);
        self.pinned -= pinned.sum::<u64>();
        slabs
    }
}
