//! What the device tells: errors with the numbers behind them, and its counters.

use super::state::{Failure, State};
use super::storage::SharedStorage;
use crate::error::{Holder, OffloadError, Situation, Tier};
use crate::journal::Event;
use crate::pager::{BlockId, Place, Shortage};
use crate::stats::{Stats, TierStats};
use std::any::Any;
use std::sync::Arc;

impl<B: SharedStorage> State<B> {
    pub(super) fn told_of_panic(&mut self, panic: Box<dyn Any + Send>, name: &dyn Fn() -> String) -> Failure {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let error = OffloadError::RuntimePanic { operation: name(), message: message.unwrap_or_default() };
        self.report(error);
        Failure::Panicked(panic)
    }

    pub(super) fn report(&mut self, error: OffloadError) -> Arc<OffloadError> {
        self.journal.record(Event::Failed { error: error.to_string() });
        Arc::new(error)
    }

    pub(super) fn shortage(&mut self, shortage: Shortage, name: &dyn Fn() -> String) -> Failure {
        let (Shortage::WorkingSet { wanted, .. }
        | Shortage::HostFull { wanted }
        | Shortage::CopyOut { wanted }
        | Shortage::Device { wanted }) = shortage;
        let host = self.host.usage();
        let situation = Box::new(Situation {
            operation: name(),
            wanted,
            device_budget: self.pager.ledger().budget(),
            device_in_use: self.pager.ledger().resident(),
            host_budget: host.limit,
            host_in_use: host.in_use,
            holders: self.largest_holders(5),
        });
        let error = match shortage {
            Shortage::WorkingSet { .. } => OffloadError::WorkingSet(situation),
            Shortage::HostFull { .. } => OffloadError::HostFull(situation),
            Shortage::CopyOut { .. } => OffloadError::CopyOut(situation, self.copy_failure.clone()),
            Shortage::Device { .. } => OffloadError::DeviceRefused(situation),
        };
        Failure::Memory(self.report(error))
    }

    pub fn largest_holders(&self, count: usize) -> Vec<Holder> {
        let holder = |block: BlockId| Holder {
            bytes: self.pager.bytes(block),
            tier: if self.pager.place(block) == Place::Host { Tier::Host } else { Tier::Device },
            age: self.pager.age(block),
        };
        self.pager.largest(count).into_iter().map(holder).collect()
    }

    pub fn stats(&self) -> Stats {
        let (ledger, counters, host) = (self.pager.ledger(), self.pager.counters(), self.host.usage());
        let limit = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
        Stats {
            device: TierStats {
                in_use: ledger.resident(),
                reserved: ledger.resident() + ledger.spare(),
                peak: ledger.resident_peak(),
                peak_reserved: ledger.reserved_peak(),
                budget: limit(ledger.budget()),
            },
            host: TierStats {
                in_use: ledger.host(),
                reserved: host.reserved,
                peak: ledger.host_peak(),
                peak_reserved: host.peak,
                budget: limit(host.limit),
            },
            launches: self.launches,
            allocations: self.allocations,
            evictions: counters.evictions,
            clean_drops: counters.clean_drops,
            restores: counters.restores,
            bytes_out: counters.bytes_out,
            bytes_in: counters.bytes_in,
            stall: self.stall,
            largest_launch: counters.largest_operation,
            over_budget: counters.over_budget,
            trims: counters.trims,
            device_refusals: counters.device_refusals,
            pageable_fallbacks: host.pageable_fallbacks,
            failures: self.failures,
            ..Stats::default()
        }
    }
}
