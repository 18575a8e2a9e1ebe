//! The host pool's books: bytes in use, idle and page-locked.

use super::shelves::Shelves;
use super::slab::Slab;
use pager::Limit;

#[derive(Debug)]
pub(super) struct Books {
    limit: Limit,
    pinned_limit: Limit,
    /// The least sum of page-locked bytes that the driver refused: the pool stays below.
    refused_pinned: u64,
    in_use: u64,
    pinned: u64,
    /// Bytes of staging buffers.
    staging: u64,
    shelves: Shelves,
    peaks: Peaks,
    pageable_fallbacks: u64,
    page_locks: u64,
}

/// Of one direction: the link uses one while a thread copies the other.
pub const STAGING_BUFFERS: usize = 2;

const STAGING_BUFFERS_OF_DEVICE: u64 = 2 * STAGING_BUFFERS as u64;

const MOST_PER_BUFFER: u64 = 4 << 20;

const LEAST_PER_BUFFER: u64 = 64 << 10;

#[derive(Debug, Default)]
struct Peaks {
    /// Peak in use: bounds idle memory.
    ever: u64,
    recent: u64,
    reserved: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct HostUsage {
    pub limit: Limit,
    pub in_use: u64,
    pub peak: u64,
    pub reserved: u64,
    pub reserved_peak: u64,
    pub pageable_fallbacks: u64,
    pub page_locks: u64,
}

/// The bytes are already counted.
pub(super) enum Granted {
    FromShelf(Slab),
    ToAllocate { pinned: bool },
}

impl Books {
    pub(super) fn new(limit: Limit, pinned_limit: Limit) -> Self {
        Self {
            limit,
            pinned_limit,
            refused_pinned: u64::MAX,
            in_use: 0,
            pinned: 0,
            staging: 0,
            shelves: Shelves::default(),
            peaks: Peaks::default(),
            pageable_fallbacks: 0,
            page_locks: 0,
        }
    }

    pub(super) fn set_limits(&mut self, limit: Limit, pinned_limit: Limit) {
        (self.limit, self.pinned_limit) = (limit, pinned_limit);
        self.refused_pinned = u64::MAX;
    }

    pub(super) fn room(&self) -> Limit {
        self.limit.less(self.in_use)
    }

    fn reserved(&self) -> u64 {
        self.in_use + self.shelves.bytes()
    }

    pub(super) fn usage(&self) -> HostUsage {
        HostUsage {
            limit: self.limit,
            in_use: self.in_use,
            peak: self.peaks.recent.max(self.in_use),
            reserved: self.reserved(),
            reserved_peak: self.peaks.reserved,
            pageable_fallbacks: self.pageable_fallbacks,
            page_locks: self.page_locks,
        }
    }

    pub(super) fn reset_peaks(&mut self) {
        self.peaks.recent = self.in_use;
        self.peaks.reserved = self.reserved();
    }

    pub(super) fn grant(&mut self, len: usize, wants_pinned: bool, freed: &mut Vec<Slab>) -> Option<Granted> {
        let bytes = len as u64;
        // A driver refuses no bytes, which says nothing of more.
        let wants_pinned = wants_pinned && len > 0;
        if !self.limit.allows_more(self.in_use, bytes) {
            return None;
        }
        if let Some(slab) = self.idle(len, wants_pinned) {
            return Some(Granted::FromShelf(slab));
        }
        let others_pinned = self.pinned - self.shelves.pinned_bytes();
        if wants_pinned && self.may_pin(others_pinned, bytes) {
            freed.extend(self.free_idle((self.pinned + bytes).saturating_sub(self.most_pinned()), true));
        }
        let missing = self.limit.get().map_or(0, |limit| (self.reserved() + bytes).saturating_sub(limit));
        freed.extend(self.free_any_idle(missing));
        let pinned = wants_pinned && self.may_pin(self.pinned, bytes);
        self.shelves.note_request(len, pinned);
        self.pinned += if pinned { bytes } else { 0 };
        self.page_locks += u64::from(pinned);
        self.pageable_fallbacks += u64::from(wants_pinned && !pinned);
        self.in_use += bytes;
        if !pinned {
            freed.extend(self.trim_to_peak());
        }

        self.peaks.reserved = self.peaks.reserved.max(self.reserved());
        Some(Granted::ToAllocate { pinned })
    }

    pub(super) fn idle(&mut self, len: usize, wants_pinned: bool) -> Option<Slab> {
        if !self.limit.allows_more(self.in_use, len as u64) {
            return None;
        }
        self.note_peaks();
        let slab = self.shelves.take(len, wants_pinned)?;
        self.in_use += len as u64;
        Some(slab)
    }

    /// What the limit and the driver's refusals allow.
    fn most_locked(&self) -> u64 {
        self.pinned_limit.cut(self.refused_pinned.saturating_sub(1))
    }

    /// Without staging buffers, unless all memory can be page-locked.
    fn most_pinned(&self) -> u64 {
        let most = self.most_locked();
        let all_is_locked = self.limit.get().is_some_and(|limit| limit <= most);
        let reserved = if all_is_locked { 0 } else { STAGING_BUFFERS_OF_DEVICE * self.staging_bytes() };
        most.saturating_sub(reserved.max(self.staging))
    }

    /// Of one buffer: a device's take at most a quarter. Zero if that is too little.
    pub(super) fn staging_bytes(&self) -> u64 {
        let bytes = (self.most_locked() / (4 * STAGING_BUFFERS_OF_DEVICE)).min(MOST_PER_BUFFER);
        bytes - bytes % LEAST_PER_BUFFER
    }

    #[cfg(feature = "cuda")]
    pub(super) fn grant_staging(&mut self, bytes: u64) -> bool {
        let granted = self.limit.allows_more(self.in_use, bytes)
            && self.pinned + self.staging + bytes <= self.most_locked();
        if granted {
            self.note_peaks();
            self.staging += bytes;
            self.in_use += bytes;
            self.page_locks += 1;
            self.peaks.reserved = self.peaks.reserved.max(self.reserved());
        }
        granted
    }

    #[cfg(feature = "cuda")]
    pub(super) fn refuse_staging(&mut self, bytes: u64) {
        self.refused_pinned = self.refused_pinned.min(self.pinned + self.staging);
        self.page_locks -= 1;
        self.return_staging(bytes);
    }

    #[cfg(feature = "cuda")]
    pub(super) fn return_staging(&mut self, bytes: u64) {
        self.note_peaks();
        self.staging -= bytes;
        self.in_use -= bytes;
    }

    fn may_pin(&self, pinned: u64, bytes: u64) -> bool {
        pinned + bytes <= self.most_pinned()
    }

    /// Precedes any change of `in_use`: a failed allocation does not count.
    fn note_peaks(&mut self) {
        self.peaks.ever = self.peaks.ever.max(self.in_use);
        self.peaks.recent = self.peaks.recent.max(self.in_use);
    }

    /// Notes that the driver did not lock the memory. True the first time.
    pub(super) fn unpin(&mut self, len: usize, freed: &mut Vec<Slab>) -> bool {
        self.refused_pinned = self.refused_pinned.min(self.pinned + self.staging);
        self.pinned -= len as u64;
        self.page_locks -= 1;
        self.pageable_fallbacks += 1;
        freed.extend(self.trim_to_peak());
        self.pageable_fallbacks == 1
    }

    pub(super) fn refund(&mut self, len: usize) {
        self.in_use -= len as u64;
    }

    fn trim_to_peak(&mut self) -> Vec<Slab> {
        let excess = self.reserved().saturating_sub(self.peaks.ever.max(self.in_use));
        self.free_idle(excess, false)
    }

    fn free_idle(&mut self, bytes: u64, pinned: bool) -> Vec<Slab> {
        let freed = self.shelves.trim(bytes, pinned);
        self.pinned -= if pinned { freed.iter().map(|slab| slab.bytes().len() as u64).sum() } else { 0 };
        freed
    }

    /// Page-locked slabs last: locking costs far more.
    fn free_any_idle(&mut self, bytes: u64) -> Vec<Slab> {
        let mut freed = self.free_idle(bytes, false);
        let sum: u64 = freed.iter().map(|slab| slab.bytes().len() as u64).sum();
        freed.extend(self.free_idle(bytes.saturating_sub(sum), true));
        freed
    }

    /// Returns idle slabs beyond the peak.
    pub(super) fn put_back(&mut self, slab: Slab) -> Vec<Slab> {
        self.note_peaks();
        self.in_use -= slab.bytes().len() as u64;
        self.shelves.put(slab);
        self.free_any_idle(self.shelves.bytes().saturating_sub(self.peaks.ever))
    }

    pub(super) fn clear_shelves(&mut self) -> Vec<Slab> {
        let slabs = self.shelves.clear();
        let pinned = slabs.iter().filter(|slab| slab.is_pinned()).map(|slab| slab.bytes().len() as u64);
        self.pinned -= pinned.sum::<u64>();
        slabs
    }
}
