//! Bytes per tier. Each change of place is one posting; sums are never recomputed. A posting beyond zero or `u64` fails
//! and changes nothing (`a_posting_that_would_take_a_sum_below_zero_changes_nothing`).

use crate::block::{Arena, Tier};
use crate::copies::Change;
use crate::fault::Fault;
use crate::limit::Limit;
use std::collections::HashMap;

/// Spare bytes not worth a trim.
const SLACK: u64 = 64 << 20;

/// The device budget and the bytes per tier.
#[derive(Debug)]
pub struct Ledger {
    budget: Limit,
    /// Less than the driver last refused.
    driver: Limit,
    resident: u64,
    resident_peak: u64,
    reserved_peak: u64,
    spare: u64,
    /// Free slices by arena and exact size.
    slices: HashMap<(Arena, u64), u64>,
    host: Held,
    disk: Held,
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    bytes: u64,
    peak: u64,
}

impl Held {
    fn set(&mut self, bytes: u64) {
        (self.bytes, self.peak) = (bytes, self.peak.max(bytes));
    }
}

impl Ledger {
    pub(crate) fn new(budget: Limit) -> Self {
        Self {
            budget,
            driver: Limit::NONE,
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
        (self.budget, self.driver) = (budget, Limit::NONE);
    }

    pub(crate) fn note_refusal(&mut self, bytes: u64) {
        let refused = self.reserved().saturating_add(bytes);
        self.driver = Limit::bytes(self.driver.cut(refused.saturating_sub(1)));
    }

    pub(crate) fn forget_refusals(&mut self) {
        self.driver = Limit::NONE;
    }

    pub(crate) fn ask_driver(&mut self, bytes: u64) {
        let asked = self.resident.saturating_add(bytes);
        self.driver = self.driver.get().map_or(Limit::NONE, |driver| Limit::bytes(driver.max(asked)));
    }

    pub(crate) fn has_refusals(&self) -> bool {
        self.driver != Limit::NONE
    }

    pub(crate) fn limit(&self) -> Limit {
        Limit::from(self.budget.get().into_iter().chain(self.driver.get()).min())
    }

    /// Whether only the driver's earlier refusals forbid `bytes` more.
    pub(crate) fn driver_forbids(&self, bytes: u64) -> bool {
        !self.fits_without(0, bytes) && self.budget.allows_more(self.resident, bytes)
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.resident_peak = self.resident;
        self.reserved_peak = self.reserved();
        for tier in [&mut self.host, &mut self.disk] {
            tier.peak = tier.bytes;
        }
    }

    /// The most bytes on the device, used and spare.
    pub fn budget(&self) -> Limit {
        self.budget
    }
    /// Bytes of blocks on the device, moving ones too.
    pub fn resident(&self) -> u64 {
        self.resident
    }
    /// Peak of the resident bytes.
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
    /// Peak of the reserved bytes.
    pub fn reserved_peak(&self) -> u64 {
        self.reserved_peak
    }
    /// Bytes in a tier, copies in progress included.
    pub fn held(&self, tier: Tier) -> u64 {
        self.account(tier).bytes
    }
    /// Peak of the bytes in a tier.
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

    pub(crate) fn keeps_spare_memory(&self) -> bool {
        self.reserved() > self.resident_peak.saturating_add(self.resident_peak / 2).saturating_add(SLACK)
    }

    pub(crate) fn has_spare(&self, arena: Arena, bytes: u64) -> bool {
        self.slices.get(&(arena, bytes)).is_some_and(|count| *count > 0)
    }

    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.limit().allows_more(self.reserved(), bytes)
    }

    pub(crate) fn has_room(&self, bytes: u64, arena: Arena) -> bool {
        self.has_spare(arena, bytes) || self.fits(bytes)
    }

    /// Whether `bytes` fit without spare slices and `leaving` bytes.
    pub(crate) fn fits_without(&self, leaving: u64, bytes: u64) -> bool {
        self.limit().allows_more(self.resident.saturating_sub(leaving), bytes)
    }

    pub(crate) fn post(&mut self, bytes: u64, arena: Arena, change: Change) -> Result<(), Fault> {
        let Change { gains, loses } = change;
        let (mut resident, mut spare) = (self.resident, self.spare);
        let mut slices = 0i64;
        if gains == Some(Tier::Device) {
            resident = added("device", resident, bytes)?;
            if self.has_spare(arena, bytes) {
                spare = taken("spare", spare, bytes)?;
                slices = -1;
            }
        }
        if loses.contains(Tier::Device) {
            resident = taken("device", resident, bytes)?;
            if arena != Arena::UNPOOLED {
                spare = added("spare", spare, bytes)?;
                slices = 1;
            }
        }
        added("device", resident, spare)?;
        let [host, disk] = [Tier::Host, Tier::Disk].map(|tier| {
            let held = self.held(tier);
            match gains {
                Some(gains) if gains == tier => added("tier", held, bytes),
                _ if loses.contains(tier) => taken("tier", held, bytes),
                _ => Ok(held),
            }
        });
        let (host, disk) = (host?, disk?);

        (self.resident, self.spare) = (resident, spare);
        self.resident_peak = self.resident_peak.max(resident);
        self.reserved_peak = self.reserved_peak.max(self.reserved());
        if slices != 0 {
            let count = self.slices.entry((arena, bytes)).or_default();
            *count = count.saturating_add_signed(slices);
        }
        self.host.set(host);
        self.disk.set(disk);
        Ok(())
    }

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
    use crate::copies::TierSet;

    const POOL: Arena = Arena(0);

    fn arrives() -> Change {
        Change { gains: Some(Tier::Device), loses: TierSet::default() }
    }

    fn departs(also: Option<Tier>) -> Change {
        Change { gains: None, loses: TierSet::of(Tier::Device).with(also) }
    }

    #[test]
    fn a_posting_that_would_take_a_sum_below_zero_changes_nothing() {
        let mut ledger = Ledger::new(Limit::NONE);
        let copied = Change { gains: Some(Tier::Host), loses: TierSet::default() };
        for change in [arrives(), copied] {
            ledger.post(10, POOL, change).expect("sums that hold");
        }
        let fault = ledger.post(11, POOL, departs(None)).expect_err("more than there is");
        assert_eq!(fault, Fault::Ledger { account: "device", holds: 10, change: 11 });
        // The device can change, the disk cannot.
        let fault = ledger.post(10, POOL, departs(Some(Tier::Disk))).expect_err("the disk is empty");
        assert_eq!(fault, Fault::Ledger { account: "tier", holds: 0, change: 10 });
        assert_eq!((ledger.resident(), ledger.spare(), ledger.held(Tier::Host)), (10, 0, 10));
    }

    #[test]
    fn a_sum_beyond_all_numbers_is_a_fault() {
        let mut ledger = Ledger::new(Limit::NONE);
        ledger.post(u64::MAX, POOL, arrives()).expect("it fits the number");
        assert!(ledger.post(1, POOL, arrives()).is_err());
        assert_eq!(ledger.resident(), u64::MAX);
    }

    #[test]
    fn a_freed_slice_serves_its_own_arena_and_size_alone() {
        let mut ledger = Ledger::new(Limit::bytes(100));
        ledger.post(60, POOL, arrives()).expect("fits");
        ledger.post(60, POOL, departs(None)).expect("was there");
        assert!(ledger.has_spare(POOL, 60) && !ledger.has_spare(Arena(1), 60) && !ledger.has_spare(POOL, 50));
        assert!(!ledger.fits(50) && ledger.fits_without(0, 50));
        ledger.post(60, POOL, arrives()).expect("the slice is used again");
        assert_eq!((ledger.resident(), ledger.spare(), ledger.reserved_peak()), (60, 0, 60));
    }

    #[test]
    fn an_allocator_that_keeps_nothing_has_no_spare_bytes() {
        let mut ledger = Ledger::new(Limit::bytes(100));
        ledger.post(60, Arena::UNPOOLED, arrives()).expect("fits");
        ledger.post(60, Arena::UNPOOLED, departs(None)).expect("was there");
        assert_eq!(ledger.reserved(), 0);
    }
}
