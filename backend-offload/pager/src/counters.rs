//! Exact counts of the pager's decisions.

use crate::block::Tier;
use crate::blocks::Ended;

/// Counts since the pager was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations begun.
    pub operations: u64,
    /// Moves between device and host.
    pub link: LinkCounts,
    /// Moves between host and disk.
    pub disk: DiskCounts,
    /// Predictions and the moves they cause.
    pub ahead: AheadCounts,
    /// Shortages of device memory.
    pub memory: MemoryCounts,
}

/// Moves between device and host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Blocks that left by a copy.
    pub evictions: u64,
    /// Blocks that left without a copy.
    pub clean_drops: u64,
    /// Blocks whose contents came back.
    pub restores: u64,
    /// Bytes copied off the device, outdated copies included.
    pub bytes_out: u64,
    /// Bytes copied onto the device.
    pub bytes_in: u64,
}

/// Moves between host and disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Blocks spilled.
    pub spilled: u64,
    /// Bytes written to disk.
    pub bytes_to_disk: u64,
    /// Blocks written to disk ahead.
    pub written_ahead: u64,
    /// Blocks loaded from disk.
    pub loaded: u64,
    /// Blocks loaded before their use.
    pub loaded_ahead: u64,
    /// Bytes loaded from disk.
    pub bytes_from_disk: u64,
}

/// Predictions and the moves they cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AheadCounts {
    /// Operations that the forecast predicted.
    pub predicted: u64,
    /// Times the program departed from the forecast.
    pub diverged: u64,
    /// Evictions ahead, free ones included.
    pub left_ahead: u64,
    /// Blocks brought ahead of their use.
    pub brought_ahead: u64,
    /// Blocks brought ahead that left unused.
    pub brought_in_vain: u64,
}

/// Shortages of device memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryCounts {
    /// Times spare memory was given back to the driver.
    pub trims: u64,
    /// Operands brought beyond the budget.
    pub over_budget: u64,
    /// Times the driver refused memory within the budget.
    pub device_refusals: u64,
    /// Most bytes of one operation.
    pub largest_operation: u64,
}

impl Counters {
    pub(crate) fn note_bytes(&mut self, ended: &Ended) {
        match (ended.to, ended.frees) {
            (Some(Tier::Host), Some(_)) => self.link.bytes_out += ended.bytes,
            (Some(Tier::Host), None) => self.disk.bytes_from_disk += ended.bytes,
            (Some(Tier::Disk), _) => self.disk.bytes_to_disk += ended.bytes,
            (Some(Tier::Device), _) if ended.copy.is_some() => self.link.bytes_in += ended.bytes,
            _ => {}
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.link.evictions + self.link.clean_drops
    }
}
