//! The runtime's memory pools, one per stream of its own.

use crate::pager::Arena;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::ComputeServer;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl_runtime::memory_management::MemoryAllocationMode;

/// A CubeCL stream id is a thread's; the runtime folds ids onto a fixed number of streams.
#[derive(Debug)]
pub(super) struct Arenas {
    streams: u64,
    /// By arena: one stream id that leads there, once any has been seen.
    entered: Vec<Option<StreamId>>,
}

impl Arenas {
    pub(super) fn new() -> Self {
        let streams = u64::from(CubeClRuntimeConfig::get().streaming.max_streams.max(1));
        Self { streams, entered: vec![None; streams as usize] }
    }

    pub(super) fn of(&self, stream: StreamId) -> u64 {
        stream.value % self.streams
    }

    pub(super) fn arena(&self, stream: StreamId) -> Arena {
        Arena(self.of(stream) as u32)
    }

    /// On the first call for an arena, makes its pool allocate exact sizes. Its default is pages shared by
    /// many buffers, and a page with one live buffer never goes back to the driver.
    pub(super) fn enter<S: ComputeServer>(&mut self, stream: StreamId, inner: &mut S) {
        let arena = self.of(stream) as usize;
        if self.entered[arena].is_none() {
            inner.allocation_mode(MemoryAllocationMode::Persistent, stream);
            self.entered[arena] = Some(stream);
        }
    }

    pub(super) fn entered(&self) -> Vec<StreamId> {
        self.entered.iter().flatten().copied().collect()
    }
}
