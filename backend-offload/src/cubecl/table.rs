//! The buffers of one device: user's handle, device memory, state of contents.

use super::copies::CopyId;
use super::logical::Slots;
use super::streams::Use;
use crate::error::OffloadError;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::Binding;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use pager::BlockId;
use std::sync::Arc;

pub(super) struct Buffer {
    /// The only clone: a second one would disable in-place updates.
    pub user: ManagedMemoryHandle,
    pub block: BlockId,
    /// Requested bytes; the block counts the allocator's bytes.
    pub size: u64,
    /// The allocating stream: its pool supplies all device memory.
    pub stream: StreamId,
    pub device: Option<ManagedMemoryHandle>,
    pub last_use: Option<Use>,
    /// No stream waits for this parallel copy yet.
    pub copy: Option<CopyId>,
    /// Why the contents were never written.
    pub failed: Option<Arc<OffloadError>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Small,
    Block(BlockId),
    /// A handle that this device never allocated.
    Unknown,
}

impl Named {
    pub(super) fn block(self) -> Option<BlockId> {
        match self {
            Self::Block(id) => Some(id),
            Self::Small | Self::Unknown => None,
        }
    }
}

pub(super) struct Table {
    slots: Slots,
    rows: Vec<Option<Buffer>>,
    smallest: u64,
}

impl Table {
    pub(super) fn new(logger: Arc<ServerLogger>, smallest: u64) -> Self {
        Self { slots: Slots::new(logger), rows: Vec::new(), smallest }
    }

    /// A view's binding has its base allocation's size.
    pub(super) fn manages(&self, size: u64) -> bool {
        size >= self.smallest
    }

    pub(super) fn name(&mut self, binding: &Binding) -> Named {
        if !self.manages(binding.size) {
            return Named::Small;
        }
        let row =
            self.slots.resolve(&binding.memory).and_then(|index| self.rows.get(index as usize)?.as_ref());
        row.map_or(Named::Unknown, |buffer| Named::Block(buffer.block))
    }

    pub(super) fn insert(&mut self, buffer: Buffer) {
        let index = buffer.block.index as usize;
        if self.rows.len() <= index {
            self.rows.resize_with(index + 1, || None);
        }
        self.slots.bind(buffer.block.index, buffer.user.clone());
        self.rows[index] = Some(buffer);
    }

    pub(super) fn remove(&mut self, id: BlockId) -> Option<Buffer> {
        self.rows[id.index as usize].take()
    }

    pub(super) fn holds(&self, id: BlockId) -> bool {
        self.rows.get(id.index as usize).and_then(Option::as_ref).is_some_and(|buffer| buffer.block == id)
    }

    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Buffer> {
        self.rows.iter_mut().flatten()
    }

    pub(super) fn get(&self, id: BlockId) -> &Buffer {
        self.rows[id.index as usize].as_ref().expect("a block of the pager has a row")
    }

    pub(super) fn get_mut(&mut self, id: BlockId) -> &mut Buffer {
        self.rows[id.index as usize].as_mut().expect("a block of the pager has a row")
    }

    pub(super) fn find_mut(&mut self, id: BlockId) -> Option<&mut Buffer> {
        self.rows.get_mut(id.index as usize)?.as_mut().filter(|buffer| buffer.block == id)
    }

    /// No handle and no queued work names them.
    pub(super) fn dead(&self) -> Vec<BlockId> {
        self.rows.iter().flatten().filter(|buffer| buffer.user.is_free()).map(|buffer| buffer.block).collect()
    }
}
