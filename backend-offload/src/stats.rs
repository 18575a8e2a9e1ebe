//! Counters of a device, exact.

use crate::bytes::{Bytes, OrUnlimited};
use std::fmt;
use std::time::Duration;

/// Bytes of one tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes of live blocks.
    pub in_use: u64,
    /// Bytes held, live or kept for reuse. Never above the budget on the device.
    pub reserved: u64,
    /// The most bytes ever in use.
    pub peak: u64,
    /// The most bytes ever held.
    pub peak_reserved: u64,
    /// The limit, or `None` for none.
    pub budget: Option<u64>,
}

/// A snapshot of one device's counters, made by [`stats`](crate::stats). Buffers below
/// [`smallest_block`](crate::OffloadConfig::smallest_block) are the backend's own and not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Device memory.
    pub device: TierStats,
    /// Host memory of this device's blocks; the budget is shared with all other devices.
    pub host: TierStats,
    /// The disk that holds this device's blocks when the host is full; the budget is shared with all other devices, and
    /// is 0 where no disk was named.
    pub disk: TierStats,
    /// Kernel launches (or, through the router, operations).
    pub launches: u64,
    /// Steps the program marked with [`mark_step`](crate::mark_step).
    pub steps: u64,
    /// Buffers the program asked for, small ones included.
    pub allocations: u64,
    /// Blocks that left the device by a copy to the host.
    pub evictions: u64,
    /// Blocks that left without a copy, because the host copy was current or nothing had been written.
    pub clean_drops: u64,
    /// Blocks that came back.
    pub restores: u64,
    /// Bytes copied from device to host by evictions.
    pub bytes_out: u64,
    /// Bytes copied from host to device by restores.
    pub bytes_in: u64,
    /// Blocks that sank from the host to the disk, including those whose bytes the disk had already.
    pub sunk: u64,
    /// Bytes written to the disk, those of the program's own [memory there](crate::DiskMemory) included.
    pub bytes_to_disk: u64,
    /// Blocks that were written to the disk before host memory was wanted, while they stayed there.
    pub written_ahead: u64,
    /// Blocks that were read from the disk to the host.
    pub raised: u64,
    /// Blocks raised before an operation needed them, so that none waited.
    pub raised_ahead: u64,
    /// Bytes read from the disk, counted alike.
    pub bytes_from_disk: u64,
    /// Bytes of tensors that the program itself put on the device from its own memory. Tensors put on the host, because
    /// the device had no room, arrive by restores.
    pub bytes_written: u64,
    /// Bytes of tensors that the program itself read from the device. Tensors on the host are read there and not counted.
    pub bytes_read: u64,
    /// Time the program waited for blocks to move.
    pub stall: Duration,
    /// Bytes the most demanding single operation needed on the device at once: the floor of any budget.
    pub largest_launch: u64,
    /// Operations that ran although their operands exceed the budget, by
    /// [`Oversized::RunAlone`](crate::Oversized::RunAlone).
    pub over_budget: u64,
    /// Times spare memory was given back to the driver to make room.
    pub trims: u64,
    /// Times the driver refused memory that the budget allowed.
    pub device_refusals: u64,
    /// Host copies in ordinary memory because page-locked memory was refused.
    pub pageable_fallbacks: u64,
    /// Autotune samples discarded because blocks moved while they were timed.
    pub autotune_discards: u64,
    /// Autotune samples without a time, because the candidate could not run within the budget or moved blocks each
    /// time. A choice made with such a sample is not cached on disk.
    pub autotune_unmeasured: u64,
    /// Operations that ran as an earlier step predicted; meanwhile the blocks needed last leave first.
    pub predicted: u64,
    /// Times the program did something else than predicted. Until it does something known again, the least recently used
    /// blocks leave.
    pub diverged: u64,
    /// Blocks sent off ahead of the operation that needs their memory, dead and clean ones included.
    pub left_ahead: u64,
    /// Blocks that came back ahead of their use.
    pub brought_ahead: u64,
    /// Blocks brought ahead that left again unused.
    pub brought_in_vain: u64,
    /// Operations that could not run; each made its outputs unreadable and is reported on reading them.
    pub failures: u64,
}

impl Stats {
    /// The counts since `earlier`, a snapshot of the same device. Sizes, peaks and budgets are those of this snapshot.
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
            sunk: self.sunk.saturating_sub(earlier.sunk),
            bytes_to_disk: self.bytes_to_disk.saturating_sub(earlier.bytes_to_disk),
            written_ahead: self.written_ahead.saturating_sub(earlier.written_ahead),
            raised: self.raised.saturating_sub(earlier.raised),
            raised_ahead: self.raised_ahead.saturating_sub(earlier.raised_ahead),
            bytes_from_disk: self.bytes_from_disk.saturating_sub(earlier.bytes_from_disk),
            bytes_written: self.bytes_written.saturating_sub(earlier.bytes_written),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            stall: self.stall.saturating_sub(earlier.stall),
            over_budget: self.over_budget.saturating_sub(earlier.over_budget),
            trims: self.trims.saturating_sub(earlier.trims),
            device_refusals: self.device_refusals.saturating_sub(earlier.device_refusals),
            pageable_fallbacks: self.pageable_fallbacks.saturating_sub(earlier.pageable_fallbacks),
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
                "disk    {} in use, peak {} of {}; {} sank with {} written, {} raised with {} read",
                Bytes(self.disk.in_use),
                Bytes(self.disk.peak),
                OrUnlimited(self.disk.budget),
                self.sunk,
                Bytes(self.bytes_to_disk),
                self.raised,
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
