//! Exact counters of one device.

use crate::bytes::{Bytes, OrUnlimited};
use std::fmt;
use std::time::Duration;

/// Bytes of one tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes of live blocks.
    pub in_use: u64,
    /// Bytes allocated, live or kept for reuse. On the device, never above the budget.
    pub reserved: u64,
    /// Maximum of `in_use`.
    pub peak: u64,
    /// Maximum of `reserved`.
    pub peak_reserved: u64,
    /// The limit, if any.
    pub budget: Option<u64>,
}

/// Counters of one device at one moment, without buffers below
/// [`smallest_block`](crate::OffloadConfig::smallest_block).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Device memory.
    pub device: TierStats,
    /// Host memory of this device's blocks. All devices share the budget.
    pub host: TierStats,
    /// Disk space of spilled blocks. All devices share the budget, which is 0 without a disk.
    pub disk: TierStats,
    /// Kernel launches; through the router, operations.
    pub launches: u64,
    /// Steps marked with [`mark_step`](crate::mark_step).
    pub steps: u64,
    /// Buffers requested, small ones included.
    pub allocations: u64,
    /// Blocks evicted by a copy to the host.
    pub evictions: u64,
    /// Blocks evicted without a copy: the host copy was current, or nothing was written.
    pub clean_drops: u64,
    /// Blocks that returned to the device.
    pub restores: u64,
    /// Bytes copied from device to host by evictions.
    pub bytes_out: u64,
    /// Bytes copied from host to device by restores.
    pub bytes_in: u64,
    /// Blocks spilled from host to disk, including blocks already there.
    pub spilled: u64,
    /// Bytes written to the disk, including [`DiskMemory`](crate::DiskMemory).
    pub bytes_to_disk: u64,
    /// Blocks written to the disk early, which stay on the host.
    pub written_ahead: u64,
    /// Blocks loaded from disk to host.
    pub loaded: u64,
    /// Blocks loaded before an operation needed them.
    pub loaded_ahead: u64,
    /// Bytes read from the disk, including [`DiskMemory`](crate::DiskMemory).
    pub bytes_from_disk: u64,
    /// Bytes the program wrote to the device. Tensors without room arrive by restores.
    pub bytes_written: u64,
    /// Bytes the program read from the device itself.
    pub bytes_read: u64,
    /// Time the program waited for blocks to move.
    pub stall: Duration,
    /// Bytes the largest operation needed on the device: the least possible budget.
    pub largest_launch: u64,
    /// Operations above the budget, run by [`Oversized::RunAlone`](crate::Oversized::RunAlone).
    pub over_budget: u64,
    /// Times spare memory was returned to the driver.
    pub trims: u64,
    /// Times the driver refused memory within the budget.
    pub device_refusals: u64,
    /// Host copies in ordinary memory after a refusal of page-locked memory.
    pub pageable_fallbacks: u64,
    /// Page-locks of host memory, by all devices and for the program's own buffers. Idle memory needs none.
    pub page_locks: u64,
    /// Autotune samples discarded because blocks moved.
    pub autotune_discards: u64,
    /// Autotune samples without a time: beyond the budget, or always with moves. Such choices are not cached on disk.
    pub autotune_unmeasured: u64,
    /// Operations that ran as predicted; blocks needed last were evicted first.
    pub predicted: u64,
    /// Deviations from the prediction. Recency decides evictions until a known sequence recurs.
    pub diverged: u64,
    /// Blocks evicted before their memory was needed, dead and clean ones included.
    pub left_ahead: u64,
    /// Blocks prefetched to the device.
    pub brought_ahead: u64,
    /// Prefetched blocks that were evicted unused.
    pub brought_in_vain: u64,
    /// Failed operations. Reading their outputs returns the error.
    pub failures: u64,
}

impl Stats {
    /// Counts since `earlier`, with present sizes, peaks and budgets.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            launches: self.launches.saturating_sub(earlier.launches),
            steps: self.steps.saturating_sub(earlier.steps),
            allocations: self.allocations.saturating_sub(earlier.allocations),
            evictions: self.evictions.saturating_sub(earlier.evictions),
            clean_drops: self.clean_drops.saturating_sub(earlier.clean_drops),
            restores: self.restores.saturating_sub(earlier.restores),
            bytes_out: self.bytes_out.saturating_sub(earlier.bytes_out),
            bytes_in: self.bytes_in.saturating_sub(earlier.bytes_in),
            spilled: self.spilled.saturating_sub(earlier.spilled),
            bytes_to_disk: self.bytes_to_disk.saturating_sub(earlier.bytes_to_disk),
            written_ahead: self.written_ahead.saturating_sub(earlier.written_ahead),
            loaded: self.loaded.saturating_sub(earlier.loaded),
            loaded_ahead: self.loaded_ahead.saturating_sub(earlier.loaded_ahead),
            bytes_from_disk: self.bytes_from_disk.saturating_sub(earlier.bytes_from_disk),
            bytes_written: self.bytes_written.saturating_sub(earlier.bytes_written),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            stall: self.stall.saturating_sub(earlier.stall),
            over_budget: self.over_budget.saturating_sub(earlier.over_budget),
            trims: self.trims.saturating_sub(earlier.trims),
            device_refusals: self.device_refusals.saturating_sub(earlier.device_refusals),
            pageable_fallbacks: self.pageable_fallbacks.saturating_sub(earlier.pageable_fallbacks),
            page_locks: self.page_locks.saturating_sub(earlier.page_locks),
            autotune_discards: self.autotune_discards.saturating_sub(earlier.autotune_discards),
            autotune_unmeasured: self.autotune_unmeasured.saturating_sub(earlier.autotune_unmeasured),
            predicted: self.predicted.saturating_sub(earlier.predicted),
            diverged: self.diverged.saturating_sub(earlier.diverged),
            left_ahead: self.left_ahead.saturating_sub(earlier.left_ahead),
            brought_ahead: self.brought_ahead.saturating_sub(earlier.brought_ahead),
            brought_in_vain: self.brought_in_vain.saturating_sub(earlier.brought_in_vain),
            failures: self.failures.saturating_sub(earlier.failures),
            ..*self
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "device  {} in use, {} held, peak {} of {}",
            Bytes(self.device.in_use),
            Bytes(self.device.reserved),
            Bytes(self.device.peak),
            OrUnlimited(self.device.budget)
        )?;

        writeln!(
            f,
            "host    {} in use, {} held, peak {} of {}",
            Bytes(self.host.in_use),
            Bytes(self.host.reserved),
            Bytes(self.host.peak),
            OrUnlimited(self.host.budget)
        )?;

        if self.disk.budget.is_some_and(|budget| budget > 0) {
            writeln!(
                f,
                "disk    {} in use, peak {} of {}; {} spilled with {} written, {} loaded with {} read",
                Bytes(self.disk.in_use),
                Bytes(self.disk.peak),
                OrUnlimited(self.disk.budget),
                self.spilled,
                Bytes(self.bytes_to_disk),
                self.loaded,
                Bytes(self.bytes_from_disk)
            )?;
        }

        writeln!(
            f,
            "moved   {} out in {} evictions ({} more left without a copy), {} in by {} restores, {:.1} ms waited",
            Bytes(self.bytes_out),
            self.evictions,
            self.clean_drops,
            Bytes(self.bytes_in),
            self.restores,
            self.stall.as_secs_f64() * 1e3
        )?;

        writeln!(
            f,
            "planned {} operations as foretold, {} times something else; ahead of time {} out and {} in, {} in vain",
            self.predicted, self.diverged, self.left_ahead, self.brought_ahead, self.brought_in_vain
        )?;

        write!(
            f,
            "ran     {} launches, {} allocations, largest launch {}",
            self.launches,
            self.allocations,
            Bytes(self.largest_launch)
        )
    }
}
