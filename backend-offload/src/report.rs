//! What a door tells of its pager and the host tier: the numbers behind an error, and the counters.

use crate::error::{Holder, OffloadError, Situation, Tier};
use crate::host::HostTier;
use crate::pager::{BlockId, Pager, Place, Shortage};
use crate::stats::{Stats, TierStats};

/// What the pager and the host tier count. The door adds what only it sees.
pub(crate) fn stats(pager: &Pager, host: &HostTier) -> Stats {
    let (ledger, counters, host) = (pager.ledger(), pager.counters(), host.usage());
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
        evictions: counters.evictions,
        clean_drops: counters.clean_drops,
        restores: counters.restores,
        bytes_out: counters.bytes_out,
        bytes_in: counters.bytes_in,
        largest_launch: counters.largest_operation,
        over_budget: counters.over_budget,
        trims: counters.trims,
        device_refusals: counters.device_refusals,
        pageable_fallbacks: host.pageable_fallbacks,
        ..Stats::default()
    }
}

pub(crate) fn largest_holders(pager: &Pager, count: usize) -> Vec<Holder> {
    let holder = |block: BlockId| Holder {
        bytes: pager.bytes(block),
        tier: if pager.place(block) == Place::Host { Tier::Host } else { Tier::Device },
        age: pager.age(block),
    };
    pager.largest(count).into_iter().map(holder).collect()
}

/// The error for an operation that cannot run. `copy_failure` says why the last copy out failed, if one did.
pub(crate) fn shortage(
    shortage: Shortage,
    operation: String,
    pager: &Pager,
    host: &HostTier,
    copy_failure: Option<&str>,
) -> OffloadError {
    let host = host.usage();
    let situation = |wanted| {
        Box::new(Situation {
            operation,
            wanted,
            device_budget: pager.ledger().budget(),
            device_in_use: pager.ledger().resident(),
            host_budget: host.limit,
            host_in_use: host.in_use,
            holders: largest_holders(pager, 5),
        })
    };
    match shortage {
        Shortage::WorkingSet { wanted, pinned } => OffloadError::WorkingSet(situation(wanted + pinned)),
        Shortage::HostFull { wanted } => OffloadError::HostFull(situation(wanted)),
        Shortage::CopyOut { wanted } => {
            OffloadError::CopyOut(situation(wanted), copy_failure.unwrap_or("unknown").to_owned())
        }
        Shortage::Device { wanted } => OffloadError::DeviceRefused(situation(wanted)),
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|message| (*message).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
