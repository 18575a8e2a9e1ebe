//! The wrapped server of one device, its buffers, and the order of work on them.

use std::collections::HashMap;

use backend_offload::adapter::Settings;
use backend_offload::adapter::pager::{Arena, BlockId};
use cubecl_common::device::ServiceId;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl_runtime::memory_management::{ManagedMemoryHandle, ManagedMemoryId, MemoryAllocationMode};
use cubecl_runtime::server::{BufferBinding, Handle, ServerStorage};

use crate::failures::Failures;
use crate::passed::Passed;

/// A managed buffer: the program's handle, which the runtime never sees, and device memory.
pub(crate) struct Buffer {
    /// The only clone: a second one would disable in-place updates.
    pub user: ManagedMemoryHandle,
    pub id: ManagedMemoryId,
    pub block: BlockId,
    /// Requested bytes; the block counts the allocator's bytes.
    pub size: u64,
    /// The allocating stream: its pool supplies all device memory.
    pub owner: StreamId,
    pub memory: Option<ManagedMemoryHandle>,
    /// Whether memory was ever allocated.
    pub used: bool,
    /// The stream of the last use.
    pub last: StreamId,
}

pub(crate) struct Wrapped<S> {
    pub inner: S,
    pub passed: Passed,
    /// The inner server's, for handles that it receives.
    pub service: ServiceId,
    pub settings: Settings,
    rows: Vec<Option<Buffer>>,
    by_id: HashMap<ManagedMemoryId, BlockId, foldhash::fast::FixedState>,
    /// First id of each of the runtime's streams.
    entered: Vec<Option<StreamId>>,
    pub failures: Failures,
    /// Bytes uploaded since the last flush.
    pub uploading: u64,
}

impl<S: ServerStorage> Wrapped<S> {
    pub fn new(inner: S, service: ServiceId, settings: Settings) -> Self {
        let streams = usize::from(CubeClRuntimeConfig::get().streaming.max_streams.max(1));
        Self {
            inner,
            passed: Passed::default(),
            service,
            settings,
            rows: Vec::new(),
            by_id: HashMap::default(),
            entered: vec![None; streams],
            failures: Failures::default(),
            uploading: 0,
        }
    }

    fn index(&self, stream: StreamId) -> usize {
        (stream.value % self.entered.len() as u64) as usize
    }

    pub fn arena(&self, stream: StreamId) -> Arena {
        Arena(self.index(stream) as u32)
    }

    /// At a stream's first use, makes its pool allocate exact sizes: a shared page returns only with its last buffer.
    pub fn enter(&mut self, stream: StreamId) {
        let index = self.index(stream);
        if self.entered[index].is_none() {
            self.inner.allocation_mode(MemoryAllocationMode::Persistent, stream);
            self.entered[index] = Some(stream);
        }
    }

    pub fn streams(&self) -> Vec<StreamId> {
        self.entered.iter().copied().flatten().collect()
    }

    /// A view's binding has its base allocation's size.
    pub fn manages(&self, size: u64) -> bool {
        size >= self.settings.smallest_block
    }

    pub fn name(&self, binding: &BufferBinding) -> Option<BlockId> {
        if self.manages(binding.size) { self.by_id.get(&binding.memory.id()).copied() } else { None }
    }

    pub fn insert(&mut self, buffer: Buffer) {
        let index = buffer.block.index as usize;
        if self.rows.len() <= index {
            self.rows.resize_with(index + 1, || None);
        }
        self.by_id.insert(buffer.id, buffer.block);
        self.rows[index] = Some(buffer);
    }

    pub fn remove(&mut self, block: BlockId) -> Option<Buffer> {
        let buffer = self.rows[block.index as usize].take()?;
        self.by_id.remove(&buffer.id);
        Some(buffer)
    }

    pub fn get(&self, block: BlockId) -> &Buffer {
        self.rows[block.index as usize].as_ref().expect("a block of the pager has a row")
    }

    pub fn get_mut(&mut self, block: BlockId) -> &mut Buffer {
        self.rows[block.index as usize].as_mut().expect("a block of the pager has a row")
    }

    /// Blocks that no handle and no queued work names.
    pub fn dead(&self) -> Vec<BlockId> {
        self.rows.iter().flatten().filter(|buffer| buffer.user.is_free()).map(|buffer| buffer.block).collect()
    }

    /// Submits the last use of `block` on another stream before work of `stream`: all streams share one queue.
    pub fn order(&mut self, block: BlockId, stream: StreamId) {
        let last = self.get(block).last;
        if self.index(last) != self.index(stream)
            && let Err(error) = self.inner.flush(last)
        {
            tracing::warn!(target: "backend_offload", "flushing a stream: {error}");
        }
        self.get_mut(block).last = stream;
    }

    /// Gives a binding the inner server's memory. `block` must be resident.
    pub fn make_physical(&self, binding: &mut BufferBinding, block: Option<BlockId>) {
        binding.service = self.service;
        if let Some(block) = block {
            let buffer = self.get(block);
            binding.memory = buffer.memory.clone().expect("made resident before").binding();
            binding.stream = buffer.owner;
        }
    }

    pub fn whole(&self, block: BlockId) -> Handle {
        let Buffer { memory, owner, size, .. } = self.get(block);
        Handle::from_memory(memory.clone().expect("on the device"), self.service, *owner, *size)
    }
}
