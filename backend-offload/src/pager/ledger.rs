//! Bytes per tier. Every change of place goes through here, so the sums are never recomputed.

use super::block::Arena;
use std::collections::HashMap;

/// The device budget and what counts against it, and the host bytes beside it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    budget: u64,
    resident: u64,
    resident_peak: u64,
    reserved_peak: u64,
    host: u64,
    host_peak: u64,
    spare: u64,
    /// Free slices the device allocator keeps, by arena and exact size: the only ones it can hand out again.
    slices: HashMap<(Arena, u64), u64>,
}

impl Ledger {
    pub fn new(budget: u64) -> Self {
        Self { budget, ..Self::default() }
    }

    pub fn budget(&self) -> u64 {
        self.budget
    }
    /// Bytes of blocks on the device.
    pub fn resident(&self) -> u64 {
        self.resident
    }
    pub fn resident_peak(&self) -> u64 {
        self.resident_peak
    }
    /// Bytes the allocator holds but nobody uses.
    pub fn spare(&self) -> u64 {
        self.spare
    }
    /// Most bytes, used and spare, ever held on the device.
    pub fn reserved_peak(&self) -> u64 {
        self.reserved_peak
    }
    pub fn host(&self) -> u64 {
        self.host
    }
    pub fn host_peak(&self) -> u64 {
        self.host_peak
    }

    pub(super) fn has_spare(&self, arena: Arena, bytes: u64) -> bool {
        self.slices.get(&(arena, bytes)).is_some_and(|count| *count > 0)
    }

    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.reserved().saturating_add(bytes) <= self.budget
    }

    pub(super) fn fits_without_spare(&self, bytes: u64) -> bool {
        self.resident.saturating_add(bytes) <= self.budget
    }

    fn reserved(&self) -> u64 {
        self.resident + self.spare
    }

    /// A block came onto the device, into a spare slice if there was one.
    pub(super) fn arrive(&mut self, arena: Arena, bytes: u64) {
        if let Some(count) = self.slices.get_mut(&(arena, bytes)).filter(|count| **count > 0) {
            *count -= 1;
            self.spare -= bytes;
        }
        self.resident += bytes;
        self.resident_peak = self.resident_peak.max(self.resident);
        self.reserved_peak = self.reserved_peak.max(self.reserved());
    }

    /// A block left the device; its slice stays with the allocator, if that keeps any.
    pub(super) fn depart(&mut self, arena: Arena, bytes: u64) {
        self.resident -= bytes;
        if arena == Arena::UNPOOLED {
            return;
        }
        self.spare += bytes;
        *self.slices.entry((arena, bytes)).or_default() += 1;
    }

    /// The allocator gave all spare slices back to the driver.
    pub(super) fn trim(&mut self) {
        self.slices.clear();
        self.spare = 0;
    }

    pub(super) fn host_gain(&mut self, bytes: u64) {
        self.host += bytes;
        self.host_peak = self.host_peak.max(self.host);
    }

    pub(super) fn host_lose(&mut self, bytes: u64) {
        self.host -= bytes;
    }
}
