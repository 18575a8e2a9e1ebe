//! A device's counters, and an error's numbers.

use super::Paging;
use crate::error::{Holder, OffloadError, Situation};
use crate::stats::{Stats, TierStats};
use pager::{BlockId, Place, Shortage, Stop, Tier};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Counts {
    pub launches: u64,
    pub allocations: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    /// Time spent waiting for blocks to move.
    pub stall: Duration,
    pub failures: u64,
}

impl Paging {
    pub fn stats(&self) -> Stats {
        let Self { pager, counts, .. } = self;
        let below = self.tiers.below();
        let (ledger, counters, host) = (pager.ledger(), pager.counters(), below.pool.usage());
        let disk = below.disk.as_ref().map(|disk| disk.usage()).unwrap_or_default();

        Stats {
            device: TierStats {
                in_use: ledger.resident(),
                reserved: ledger.reserved(),
                peak: ledger.resident_peak(),
                peak_reserved: ledger.reserved_peak(),
                budget: ledger.budget().get(),
            },
            host: TierStats {
                in_use: ledger.held(Tier::Host),
                reserved: host.reserved,
                peak: ledger.held_peak(Tier::Host),
                peak_reserved: host.reserved_peak,
                budget: host.limit.get(),
            },
            disk: TierStats {
                in_use: ledger.held(Tier::Disk),
                reserved: disk.in_use,
                peak: ledger.held_peak(Tier::Disk),
                peak_reserved: disk.peak,
                budget: Some(disk.len),
            },
            spilled: counters.disk.spilled,
            bytes_to_disk: counters.disk.bytes_to_disk + below.traffic.written.load(Relaxed),
            written_ahead: counters.disk.written_ahead,
            loaded: counters.disk.loaded,
            loaded_ahead: counters.disk.loaded_ahead,
            bytes_from_disk: counters.disk.bytes_from_disk + below.traffic.read.load(Relaxed),
            launches: counts.launches,
            allocations: counts.allocations,
            bytes_written: counts.bytes_written,
            bytes_read: counts.bytes_read,
            stall: counts.stall,
            failures: counts.failures,
            steps: pager.steps(),
            evictions: counters.link.evictions,
            clean_drops: counters.link.clean_drops,
            restores: counters.link.restores,
            bytes_out: counters.link.bytes_out,
            bytes_in: counters.link.bytes_in,
            largest_launch: counters.memory.largest_operation,
            over_budget: counters.memory.over_budget,
            trims: counters.memory.trims,
            device_refusals: counters.memory.device_refusals,
            predicted: counters.ahead.predicted,
            diverged: counters.ahead.diverged,
            left_ahead: counters.ahead.left_ahead,
            brought_ahead: counters.ahead.brought_ahead,
            brought_in_vain: counters.ahead.brought_in_vain,
            pageable_fallbacks: host.pageable_fallbacks,
            page_locks: host.page_locks,
            ..Stats::default()
        }
    }

    pub fn largest_holders(&self, count: usize) -> Vec<Holder> {
        let pager = &self.pager;
        let holder = |id: BlockId| {
            let block = pager.get(id)?;
            let tier = match block.place() {
                Place::Away(tier) => tier,
                _ => Tier::Device,
            };
            Some(Holder { bytes: block.bytes, tier, age: pager.age(id)? })
        };
        pager.largest(count).into_iter().filter_map(holder).collect()
    }

    pub(super) fn stopped(&self, stop: Stop, operation: String, copy_failure: Option<&str>) -> OffloadError {
        let shortage = match stop {
            Stop::Shortage(shortage) => shortage,
            Stop::Fault(fault) => return OffloadError::Bookkeeping { operation, fault: fault.to_string() },
        };

        let (pager, below) = (&self.pager, self.tiers.below());
        let host = below.pool.usage();
        let disk = below.disk.as_ref().map(|disk| disk.usage());
        let situation = |wanted| {
            Box::new(Situation {
                operation,
                wanted,
                device_budget: pager.ledger().budget().get(),
                device_in_use: pager.ledger().resident(),
                host_budget: host.limit.get(),
                host_in_use: host.in_use,
                disk_budget: disk.map(|disk| disk.len),
                disk_in_use: disk.map_or(0, |disk| disk.in_use),
                holders: self.largest_holders(5),
            })
        };

        match shortage {
            Shortage::WorkingSet { wanted, pinned } => OffloadError::WorkingSet(situation(wanted + pinned)),
            Shortage::TierFull { wanted } => OffloadError::HostFull(situation(wanted)),
            Shortage::CopyOut { wanted } => {
                OffloadError::CopyOut(situation(wanted), copy_failure.unwrap_or("unknown").to_owned())
            }
            Shortage::Device { wanted } => OffloadError::DeviceRefused(situation(wanted)),
        }
    }
}

pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|message| (*message).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
