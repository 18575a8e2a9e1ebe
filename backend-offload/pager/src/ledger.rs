//! Bytes per tier. Every change of place is one posting here, so the sums are never recomputed; a posting that
//! would take a sum below zero or beyond `u64` changes nothing and is an error.

use crate::block::{Arena, Tier};
use crate::fault::Fault;
use crate::limit::Limit;
use std::collections::HashMap;

/// The device budget and what counts against it, and the bytes held by each tier.
#[derive(Debug)]
pub struct Ledger {
    budget: Limit,
    resident: u64,
    resident_peak: u64,
    reserved_peak: u64,
    spare: u64,
    /// Free slices the device allocator keeps, by arena and exact size: the only ones it can hand out again.
    slices: HashMap<(Arena, u64), u64>,
    host: Held,
    disk: Held,
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    bytes: u64,
    peak: u64,
}

/// One block's change of place, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Posting {
    bytes: u64,
    arena: Arena,
    device: Device,
    gains: Option<Tier>,
    loses: Option<Tier>,
}

#[derive(Debug, Clone, Copy)]
enum Device {
    Unchanged,
    Taken,
    Freed,
}

impl Posting {
    pub fn of(bytes: u64, arena: Arena) -> Self {
        Self { bytes, arena, device: Device::Unchanged, gains: None, loses: None }
    }
    /// Its device memory is taken, from a spare slice if there is one.
    pub fn arrives(self) -> Self {
        Self { device: Device::Taken, ..self }
    }
    /// Its device memory is given up; the slice stays with the allocator, if that keeps any.
    pub fn departs(self) -> Self {
        Self { device: Device::Freed, ..self }
    }
    /// A tier takes its bytes.
    pub fn gains(self, tier: Option<Tier>) -> Self {
        Self { gains: tier, ..self }
    }
    /// A tier gives its bytes up.
    pub fn loses(self, tier: Option<Tier>) -> Self {
        Self { loses: tier, ..self }
    }
}

impl Ledger {
    pub(crate) fn new(budget: Limit) -> Self {
        Self {
            budget,
            resident: 0,
            resident_peak: 0,
            reserved_peak: 0,
            spare: 0,
            slices: HashMap::new(),
            host: Held::default(),
            disk: Held::default(),
        }
    }

    pub(crate) fn set_budget(&mut self, budget: Limit) {
        self.budget = budget;
    }

    /// Makes the present sums the peaks.
    pub(crate) fn reset_peaks(&mut self) {
        self.resident_peak = self.resident;
        self.reserved_peak = self.reserved();
        for tier in [&mut self.host, &mut self.disk] {
            tier.peak = tier.bytes;
        }
    }

    /// The most bytes, used and spare, that may be on the device.
    pub fn budget(&self) -> Limit {
        self.budget
    }
    /// Bytes of blocks on the device, those on their way in either direction included.
    pub fn resident(&self) -> u64 {
        self.resident
    }
    /// Most bytes of blocks ever on the device.
    pub fn resident_peak(&self) -> u64 {
        self.resident_peak
    }
    /// Bytes the allocator holds for reuse.
    pub fn spare(&self) -> u64 {
        self.spare
    }
    /// Bytes on the device, used and spare.
    pub fn reserved(&self) -> u64 {
        self.resident.saturating_add(self.spare)
    }
    /// Most bytes, used and spare, ever held on the device.
    pub fn reserved_peak(&self) -> u64 {
        self.reserved_peak
    }
    /// Bytes a tier holds, copies that are still being written included.
    pub fn held(&self, tier: Tier) -> u64 {
        self.account(tier).bytes
    }
    /// Most bytes a tier ever held.
    pub fn held_peak(&self, tier: Tier) -> u64 {
        self.account(tier).peak
    }

    fn account(&self, tier: Tier) -> Held {
        match tier {
            Tier::Device => Held { bytes: self.resident, peak: self.resident_peak },
            Tier::Host => self.host,
            Tier::Disk => self.disk,
        }
    }

    pub(crate) fn has_spare(&self, arena: Arena, bytes: u64) -> bool {
        self.slices.get(&(arena, bytes)).is_some_and(|count| *count > 0)
    }

    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.budget.allows_more(self.reserved(), bytes)
    }

    /// Whether `bytes` would fit if the spare slices and `leaving` bytes were gone.
    pub(crate) fn fits_without(&self, leaving: u64, bytes: u64) -> bool {
        self.budget.allows_more(self.resident.saturating_sub(leaving), bytes)
    }

    /// Enters a change, or nothing of it.
    pub(crate) fn post(&mut self, posting: Posting) -> Result<(), Fault> {
        let Posting { bytes, arena, device, gains, loses } = posting;
        let (mut resident, mut spare) = (self.resident, self.spare);
        let mut slices = 0i64;
        match device {
            Device::Unchanged => {}
            Device::Taken => {
                resident = added("device", resident, bytes)?;
                if self.has_spare(arena, bytes) {
                    spare = taken("spare", spare, bytes)?;
                    slices = -1;
                }
            }
            Device::Freed => {
                resident = taken("device", resident, bytes)?;
                if arena != Arena::UNPOOLED {
                    spare = added("spare", spare, bytes)?;
                    slices = 1;
                }
            }
        }
        added("device", resident, spare)?;
        let gained = gains.map(|tier| added("tier", self.held(tier), bytes)).transpose()?;
        let lost = loses.map(|tier| taken("tier", self.held(tier), bytes)).transpose()?;

        (self.resident, self.spare) = (resident, spare);
        self.resident_peak = self.resident_peak.max(resident);
        self.reserved_peak = self.reserved_peak.max(self.reserved());
        if slices != 0 {
            let count = self.slices.entry((arena, bytes)).or_default();
            *count = count.saturating_add_signed(slices);
        }
        for (tier, held) in gains.zip(gained).into_iter().chain(loses.zip(lost)) {
            self.set_held(tier, held);
        }
        Ok(())
    }

    fn set_held(&mut self, tier: Tier, bytes: u64) {
        let account = match tier {
            Tier::Device => return,
            Tier::Host => &mut self.host,
            Tier::Disk => &mut self.disk,
        };
        account.bytes = bytes;
        account.peak = account.peak.max(bytes);
    }

    /// The allocator gave all spare slices back to the driver.
    pub(crate) fn trim(&mut self) {
        self.slices.clear();
        self.spare = 0;
    }
}

fn added(account: &'static str, holds: u64, change: u64) -> Result<u64, Fault> {
    holds.checked_add(change).ok_or(Fault::Ledger { account, holds, change })
}

fn taken(account: &'static str, holds: u64, change: u64) -> Result<u64, Fault> {
    holds.checked_sub(change).ok_or(Fault::Ledger { account, holds, change })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: Arena = Arena(0);

    #[test]
    fn a_posting_that_would_take_a_sum_below_zero_changes_nothing() {
        let mut ledger = Ledger::new(Limit::NONE);
        ledger.post(Posting::of(10, POOL).arrives().gains(Some(Tier::Host))).expect("sums that hold");
        let fault = ledger.post(Posting::of(11, POOL).departs()).expect_err("more than there is");
        assert_eq!(fault, Fault::Ledger { account: "device", holds: 10, change: 11 });
        // The device part of this one would be fine; the tier's is not.
        let fault = ledger.post(Posting::of(10, POOL).departs().loses(Some(Tier::Disk))).expect_err("empty");
        assert_eq!(fault, Fault::Ledger { account: "tier", holds: 0, change: 10 });
        assert_eq!((ledger.resident(), ledger.spare(), ledger.held(Tier::Host)), (10, 0, 10));
    }

    #[test]
    fn a_sum_beyond_all_numbers_is_a_fault() {
        let mut ledger = Ledger::new(Limit::NONE);
        ledger.post(Posting::of(u64::MAX, POOL).arrives()).expect("it fits the number");
        assert!(ledger.post(Posting::of(1, POOL).arrives()).is_err());
        assert_eq!(ledger.resident(), u64::MAX);
    }

    #[test]
    fn a_freed_slice_serves_its_own_arena_and_size_alone() {
        let mut ledger = Ledger::new(Limit::bytes(100));
        ledger.post(Posting::of(60, POOL).arrives()).expect("fits");
        ledger.post(Posting::of(60, POOL).departs()).expect("was there");
        assert!(ledger.has_spare(POOL, 60) && !ledger.has_spare(Arena(1), 60) && !ledger.has_spare(POOL, 50));
        assert!(!ledger.fits(50) && ledger.fits_without(0, 50));
        ledger.post(Posting::of(60, POOL).arrives()).expect("the slice is used again");
        assert_eq!((ledger.resident(), ledger.spare(), ledger.reserved_peak()), (60, 0, 60));
    }

    #[test]
    fn an_allocator_that_keeps_nothing_has_no_spare_bytes() {
        let mut ledger = Ledger::new(Limit::bytes(100));
        ledger.post(Posting::of(60, Arena::UNPOOLED).arrives()).expect("fits");
        ledger.post(Posting::of(60, Arena::UNPOOLED).departs()).expect("was there");
        assert_eq!(ledger.reserved(), 0);
    }
}
