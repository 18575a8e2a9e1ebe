//! Limits and rules of one device's paging.

use crate::tiers::{Disk, HostPool, SlabSource, Tiers};
use crate::trace_file::TraceFile;
use pager::{Limit, Oversized, Pager, Policy};
use std::sync::Arc;

#[derive(Debug, Clone)]
pub struct PagingSettings {
    pub device_budget: Limit,
    pub policy: Policy,
    pub oversized: Oversized,
    pub(crate) host: Arc<HostPool>,
    pub(crate) disk: Option<Arc<Disk>>,
    /// Copies have checksums, verified before use; adapters overwrite evicted memory.
    pub paranoid: bool,
    /// See [`OffloadConfig::dry_run`](crate::OffloadConfig::dry_run).
    pub dry_run: bool,
    pub(crate) trace: Option<TraceFile>,
}

impl PagingSettings {
    pub(super) fn pager(&self) -> Pager {
        let mut pager = Pager::new(self.device_budget, self.policy, self.oversized);
        if self.dry_run {
            pager.expect_spilling();
        }
        if self.trace.is_some() {
            pager.record();
        }
        pager
    }

    pub(super) fn tiers(&self, source: SlabSource) -> Tiers {
        Tiers::new(self.host.clone(), source, self.paranoid).above(self.disk.clone())
    }
}
