//! Counts of what the pager decided. Exact: tests compare them with equality.

use crate::block::Tier;
use crate::blocks::Ended;

/// Counters since the pager was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations begun.
    pub operations: u64,
    /// Blocks that left by a copy.
    pub evictions: u64,
    /// Blocks that left without one.
    pub clean_drops: u64,
    /// Blocks whose contents came back.
    pub restores: u64,
    /// Bytes copied off the device, copies overtaken by an operation included.
    pub bytes_out: u64,
    /// Bytes copied onto the device.
    pub bytes_in: u64,
    /// Blocks spilled to disk.
    pub sunk: u64,
    /// Bytes written to disk, by spills and ahead of them.
    pub bytes_to_disk: u64,
    /// Blocks written to disk ahead, while they stayed on the host.
    pub written_ahead: u64,
    /// Blocks loaded from disk.
    pub raised: u64,
    /// Blocks loaded before an operation needed them.
    pub raised_ahead: u64,
    /// Bytes loaded from disk.
    pub bytes_from_disk: u64,
    /// Times spare memory was given back to the driver.
    pub trims: u64,
    /// Operands brought although the budget has no room for them.
    pub over_budget: u64,
    /// Times the driver refused memory that the budget allows.
    pub device_refusals: u64,
    /// Operations that ran as an earlier step foretold, so that what they need next was known.
    pub predicted: u64,
    /// Times the program departed from the forecast, and recency took over.
    pub diverged: u64,
    /// Blocks sent off ahead of the operation that needs their memory, dead and clean ones included.
    pub left_ahead: u64,
    /// Blocks whose contents came back ahead of their use.
    pub brought_ahead: u64,
    /// Blocks brought ahead that left again before they were used.
    pub brought_in_vain: u64,
    /// Most bytes one operation named.
    pub largest_operation: u64,
}

impl Counters {
    /// Counts the bytes that a move copied.
    pub(crate) fn note_bytes(&mut self, ended: &Ended) {
        match (ended.to, ended.frees) {
            (Some(Tier::Host), Some(_)) => self.bytes_out += ended.bytes,
            (Some(Tier::Host), None) => self.bytes_from_disk += ended.bytes,
            (Some(Tier::Disk), _) => self.bytes_to_disk += ended.bytes,
            (Some(Tier::Device), _) if ended.copy.is_some() => self.bytes_in += ended.bytes,
            _ => {}
        }
    }

    /// Blocks that left, with a copy or without.
    pub(crate) fn left(&self) -> u64 {
        self.evictions + self.clean_drops
    }
}
