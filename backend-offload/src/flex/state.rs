//! The simulated device: tensors, storages and places under one lock.

use super::failures::Failure;
use super::heap::Heap;
use super::storage::SharedStorage;
use super::table::Tensor;
use crate::error::OffloadError;
use crate::paging::Paging;
use crate::registry::Settings;
use crate::tiers::SlabSource;
use burn_ir::{TensorIr, TensorStatus};
use pager::{BlockId, Preference};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

pub(super) struct State<B: SharedStorage> {
    pub(super) device: B::Device,
    pub(super) paging: Paging,
    pub(super) heap: Heap<B>,
    pub(super) smallest_block: u64,
    pub(super) pending: HashMap<ThreadId, Arc<OffloadError>>,
    #[cfg(feature = "test-util")]
    pub(super) peak_found: Option<u64>,
}

pub(super) struct Work<'w> {
    pub name: &'w dyn Fn() -> String,
    pub inputs: &'w [TensorIr],
    pub outputs: &'w [TensorIr],
    pub memory: OutputMemory,
    /// Zero if too few to record.
    pub flops: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputMemory {
    New,
    /// The first input's memory, as views.
    ViewOfInput,
    /// Each input's memory, if unshared and row-major.
    InPlace,
}

impl<B: SharedStorage> State<B> {
    pub fn new(device: B::Device, settings: &Settings) -> Self {
        Self {
            device,
            paging: Paging::new(&settings.paging, SlabSource::Heap),
            smallest_block: settings.smallest_block,
            pending: HashMap::new(),
            #[cfg(feature = "test-util")]
            peak_found: settings.watch_runtime.then_some(0),
            heap: Heap::new(settings),
        }
    }

    pub(super) fn blocks_of(&mut self, work: &Work) -> Result<Vec<BlockId>, Failure> {
        let mut blocks = Vec::new();
        for input in work.inputs {
            match self.heap.table.tensor(input.id) {
                Some(Tensor::Failed(error)) => return Err(Failure::Memory(error.clone())),
                Some(tensor) => blocks.extend(tensor.block()),
                None => {
                    let error = OffloadError::UnknownBuffer { operation: (work.name)() };
                    return Err(Failure::Memory(self.report(error)));
                }
            }
        }
        Ok(blocks)
    }

    /// The storage goes with its last tensor.
    pub(super) fn release(&mut self, tensor: &TensorIr) {
        let block = self.heap.table.remove_tensor(tensor.id).and_then(|tensor| tensor.block());
        self.remove_unheld(block.as_slice());
    }

    pub(super) fn prefer(&mut self, tensor: &TensorIr, preference: Preference) {
        if let Some(block) = self.heap.table.tensor(tensor.id).and_then(Tensor::block)
            && let Err(fault) = self.paging.prefer(block, preference)
        {
            self.fault(fault, "noting a hint");
        }
        if consumes(tensor) {
            self.release(tensor);
        }
    }

    pub(super) fn remove_unheld(&mut self, storages: &[BlockId]) {
        for block in storages {
            if !self.heap.table.is_held(*block) && self.heap.table.remove_stored(*block).is_some() {
                self.remove_block(*block);
            }
        }
    }

    pub(super) fn remove_block(&mut self, block: BlockId) {
        if let Err(fault) = self.paging.remove(block) {
            self.fault(fault, "removing a storage");
        }
    }
}

pub(super) fn consumes(input: &TensorIr) -> bool {
    input.status == TensorStatus::ReadWrite
}
