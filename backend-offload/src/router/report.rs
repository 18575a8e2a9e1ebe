//! The device's counters and largest holders.

use super::state::State;
use super::storage::SharedStorage;
use crate::error::Holder;
use crate::report;
use crate::stats::Stats;

impl<B: SharedStorage> State<B> {
    pub fn largest_holders(&self, count: usize) -> Vec<Holder> {
        report::largest_holders(&self.pager, count)
    }

    pub fn stats(&self) -> Stats {
        report::stats(&self.pager, &self.tiers.below(), &self.counts)
    }
}
