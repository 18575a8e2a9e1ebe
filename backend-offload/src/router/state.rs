//! The simulated device: its tensors, their storages and their places, under one lock.

use super::failures::Failure;
use super::storage::SharedStorage;
use super::table::{Table, Tensor};
use crate::error::OffloadError;
use crate::faults::Injector;
use crate::journal::Journal;
use crate::registry::Settings;
use crate::report::Counts;
use crate::tiers::{SlabSource, Tiers};
use burn_ir::{TensorIr, TensorStatus};
use pager::{BlockId, Pager, Preference};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

pub(super) struct State<B: SharedStorage> {
    pub(super) device: B::Device,
    pub(super) pager: Pager,
    pub(super) table: Table<B>,
    pub(super) tiers: Tiers,
    pub(super) journal: Journal,
    pub(super) paranoid: bool,
    /// Skips all arithmetic; see [`OffloadConfig::dry_run`](crate::OffloadConfig::dry_run).
    pub(super) dry: bool,
    pub(super) smallest_block: u64,
    pub(super) new_data: Preference,
    pub(super) counts: Counts,
    /// The first failure on each thread since its last synchronisation.
    pub(super) pending: HashMap<ThreadId, Arc<OffloadError>>,
    /// Recounts the bytes on the device after every operation and keeps the maximum.
    #[cfg(feature = "test-util")]
    pub(super) watch: bool,
    #[cfg(feature = "test-util")]
    pub(super) peak_found: u64,
    pub(super) injector: Injector,
}

/// An operation before it runs.
pub(super) struct Work<'w> {
    pub name: &'w dyn Fn() -> String,
    pub inputs: &'w [TensorIr],
    pub outputs: &'w [TensorIr],
    pub memory: OutputMemory,
    /// Floating-point operations, or 0 if too few to record.
    pub flops: u64,
}

/// The memory of an operation's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputMemory {
    /// New memory.
    New,
    /// The first input's memory, as views.
    ViewOfInput,
    /// Each input's memory, unless another tensor shares it or its elements are not in rows.
    InPlace,
}

impl<B: SharedStorage> State<B> {
    pub fn new(device: B::Device, settings: Settings) -> Self {
        Self {
            device,
            pager: settings.pager(),
            table: Table::new(),
            tiers: Tiers::new(settings.host, SlabSource::Heap, settings.paranoid).above(settings.disk),
            journal: Journal::new(settings.trace),
            paranoid: settings.paranoid,
            dry: settings.dry_run,
            smallest_block: settings.smallest_block,
            new_data: Preference::Policy,
            counts: Counts::default(),
            pending: HashMap::new(),
            #[cfg(feature = "test-util")]
            watch: settings.watch_runtime,
            #[cfg(feature = "test-util")]
            peak_found: 0,
            injector: settings.injector,
        }
    }

    /// The blocks of the inputs, or an error if an input is missing or failed.
    pub(super) fn blocks_of(&mut self, work: &Work) -> Result<Vec<BlockId>, Failure> {
        let mut blocks = Vec::new();
        for input in work.inputs {
            match self.table.tensor(input.id) {
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

    /// Releases a tensor, and its storage if no other tensor holds it.
    pub(super) fn release(&mut self, tensor: &TensorIr) {
        let block = self.table.remove_tensor(tensor.id).and_then(|tensor| tensor.block());
        self.remove_unheld(block.as_slice());
    }

    /// Records the hint for the tensor's storage, and releases the tensor if the operation consumes it.
    pub(super) fn prefer(&mut self, tensor: &TensorIr, preference: Preference) {
        if let Some(block) = self.table.tensor(tensor.id).and_then(Tensor::block)
            && let Err(fault) = self.pager.prefer(block, preference)
        {
            self.fault(fault, "noting a hint");
        }
        if consumes(tensor) {
            self.release(tensor);
        }
    }

    /// Removes the storages that no tensor holds.
    pub(super) fn remove_unheld(&mut self, storages: &[BlockId]) {
        for block in storages {
            if !self.table.is_held(*block) && self.table.remove_stored(*block).is_some() {
                self.remove_block(*block);
            }
        }
    }

    pub(super) fn remove_block(&mut self, block: BlockId) {
        self.tiers.remove(block);
        if let Err(fault) = self.pager.remove(block) {
            self.fault(fault, "removing a storage");
        }
    }
}

/// Whether the operation consumes the input tensor.
pub(super) fn consumes(input: &TensorIr) -> bool {
    input.status == TensorStatus::ReadWrite
}
