//! The simulated device: everything that happens to its memory happens here, under one lock.

use super::operation;
use super::scratch::{Scratch, download};
use super::storage::SharedStorage;
use super::table::{Table, Tensor};
use crate::error::OffloadError;
#[cfg(feature = "test-util")]
use crate::faults::{Faults, Occasions};
use crate::host::HostTier;
use crate::journal::Journal;
use crate::pager::{Arena, BlockId, Pager, Place};
use crate::registry::Settings;
use burn_backend::{ExecutionError, TensorData};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Why an operation has no outputs.
pub(super) enum Failure {
    /// For want of memory, or of an input. The outputs are marked and the error waits for whoever reads them.
    Memory(Arc<OffloadError>),
    /// This door cannot run it. Told at once.
    Refused(OffloadError),
    /// The backend panicked, as it does without us. Goes on on the caller's thread.
    Panicked(Box<dyn Any + Send>),
}

pub(super) struct State<B: SharedStorage> {
    pub(super) device: B::Device,
    pub(super) pager: Pager,
    pub(super) table: Table<B>,
    pub(super) host: Arc<HostTier>,
    pub(super) journal: Journal,
    pub(super) paranoid: bool,
    pub(super) stall: Duration,
    /// Why the last copy out failed.
    pub(super) copy_failure: String,
    smallest_block: u64,
    pub(super) launches: u64,
    pub(super) steps: u64,
    pub(super) allocations: u64,
    pub(super) failures: u64,
    /// The first failure of each thread since its last synchronisation.
    pending: HashMap<ThreadId, Arc<OffloadError>>,
    /// Count what is on the device anew after every operation, and keep the most.
    #[cfg(feature = "test-util")]
    watch: bool,
    #[cfg(feature = "test-util")]
    pub(super) peak_found: u64,
    #[cfg(feature = "test-util")]
    pub(super) faults: Faults,
    #[cfg(feature = "test-util")]
    pub(super) occasions: FaultOccasions,
}

#[cfg(feature = "test-util")]
#[derive(Default)]
pub(super) struct FaultOccasions {
    pub allocation: Occasions,
    pub copy_out: Occasions,
    pub launch: Occasions,
}

/// What is about to run: its name for messages, what it reads, what it makes.
struct Work<'w> {
    name: &'w dyn Fn() -> String,
    inputs: &'w [TensorIr],
    outputs: &'w [TensorIr],
    /// The outputs are views of the first input.
    view: bool,
}

/// A storage that an operation made, with the outputs that are in it.
struct Fresh<B: SharedStorage> {
    address: usize,
    bytes: u64,
    tensors: Vec<(TensorId, B::Handle)>,
}

impl<B: SharedStorage> State<B> {
    pub fn new(device: B::Device, settings: Settings) -> Self {
        Self {
            device,
            pager: Pager::new(settings.device_budget, settings.policy, settings.oversized),
            table: Table::new(),
            host: settings.host,
            journal: Journal::default(),
            paranoid: settings.paranoid,
            stall: Duration::ZERO,
            copy_failure: String::new(),
            smallest_block: settings.smallest_block,
            launches: 0,
            steps: 0,
            allocations: 0,
            failures: 0,
            pending: HashMap::new(),
            #[cfg(feature = "test-util")]
            watch: settings.watch_runtime,
            #[cfg(feature = "test-util")]
            peak_found: 0,
            #[cfg(feature = "test-util")]
            faults: settings.faults,
            #[cfg(feature = "test-util")]
            occasions: FaultOccasions::default(),
        }
    }

    /// Runs an operation. If it could not for want of memory, its outputs say so when they are read.
    pub fn execute(&mut self, operation: &OperationIr) -> Result<(), Failure> {
        match operation {
            OperationIr::Drop(tensor) => {
                self.release(tensor);
                return Ok(());
            }
            // The tensor was made when its data came.
            OperationIr::Init(_) => return Ok(()),
            _ => {}
        }
        self.launches += 1;
        let inputs: Vec<TensorIr> = operation.inputs().cloned().collect();
        let outputs: Vec<TensorIr> = operation.outputs().cloned().collect();
        if let Some(error) = operation::refusal(operation) {
            inputs.iter().filter(|input| consumes(input)).for_each(|input| self.release(input));
            return Err(Failure::Refused(error));
        }
        let work = Work {
            name: &|| operation::name(operation),
            inputs: &inputs,
            outputs: &outputs,
            view: inputs.first().is_some_and(|input| self.makes_view(operation, input)),
        };
        self.produce(&work, |state, handles| state.launch(operation, &inputs, handles, &outputs))
    }

    /// Makes a tensor of what `make` makes outside any operation.
    pub fn create(
        &mut self,
        tensor: &TensorIr,
        make: impl FnOnce(&B::Device) -> B::Handle,
    ) -> Result<(), Failure> {
        let work = Work {
            name: &|| "a tensor from data".to_owned(),
            inputs: &[],
            outputs: std::slice::from_ref(tensor),
            view: false,
        };
        self.produce(&work, |state, _| {
            let device = state.device.clone();
            catch_unwind(AssertUnwindSafe(|| vec![make(&device)]))
        })
    }

    fn makes_view(&self, operation: &OperationIr, input: &TensorIr) -> bool {
        match self.table.tensor(input.id) {
            Some(Tensor::Here { handle, .. }) => B::makes_view(operation, &B::split(handle).1),
            Some(Tensor::Away { view, .. }) => B::makes_view(operation, view),
            _ => false,
        }
    }

    /// The one way tensors come to be: makes room, runs, and takes stock of what the outputs share.
    fn produce(
        &mut self,
        work: &Work,
        run: impl FnOnce(&mut Self, Vec<B::Handle>) -> Result<Vec<B::Handle>, Box<dyn Any + Send>>,
    ) -> Result<(), Failure> {
        let failed = |input: &TensorIr| matches!(self.table.tensor(input.id), Some(Tensor::Failed(_)));
        let derived = work.inputs.iter().any(failed);
        let result = self.attempt(work, run);
        for input in work.inputs.iter().filter(|input| consumes(input)) {
            self.release(input);
        }
        if self.paranoid {
            let found = self.table.bytes_on_device(self.smallest_block, &[]);
            assert_eq!(self.pager.ledger().resident(), found, "the ledger is the sum of the storages");
        }
        match result {
            Ok(()) => Ok(()),
            Err(failure) => {
                self.failures += 1;
                let Failure::Memory(error) = failure else { return Err(failure) };
                if !derived {
                    self.pending.entry(thread::current().id()).or_insert_with(|| error.clone());
                }
                for output in work.outputs {
                    self.release(output);
                    self.table.fail(output.id, error.clone());
                }
                Ok(())
            }
        }
    }

    fn attempt(
        &mut self,
        work: &Work,
        run: impl FnOnce(&mut Self, Vec<B::Handle>) -> Result<Vec<B::Handle>, Box<dyn Any + Send>>,
    ) -> Result<(), Failure> {
        let mut operands = self.blocks_of(work)?;
        let mut rooms = Vec::new();
        for output in work.outputs.iter().filter(|_| !work.view) {
            let bytes = (output.shape.num_elements() * output.dtype.size()) as u64;
            if bytes >= self.smallest_block {
                rooms.push(self.pager.insert(bytes, Arena::UNPOOLED));
            }
        }
        operands.extend(&rooms);
        let ran = self.make_resident(&operands, work.name).and_then(|()| {
            let (handles, consumed) = self.hand_over(work.inputs);
            let outputs = run(self, handles).map_err(|panic| self.told_of_panic(panic, work.name));
            let outputs = match outputs {
                Ok(outputs) => outputs,
                Err(failure) => {
                    self.bury(&consumed);
                    return Err(failure);
                }
            };
            #[cfg(feature = "test-util")]
            if self.watch {
                self.peak_found = self.peak_found.max(self.table.bytes_on_device(0, &outputs));
            }
            self.adopt(work, outputs, &consumed, &mut rooms)
        });
        for room in rooms {
            self.pager.remove(room);
        }
        ran
    }

    /// The blocks behind the inputs, unless one of them is missing or failed.
    fn blocks_of(&mut self, work: &Work) -> Result<Vec<BlockId>, Failure> {
        let mut blocks = Vec::new();
        for input in work.inputs {
            match self.table.tensor(input.id) {
                Some(Tensor::Here { block, .. }) => blocks.extend(*block),
                Some(Tensor::Away { block, .. }) => blocks.push(*block),
                Some(Tensor::Failed(error)) => return Err(Failure::Memory(error.clone())),
                None => {
                    let error = OffloadError::UnknownBuffer { operation: (work.name)() };
                    return Err(Failure::Memory(self.report(error)));
                }
            }
        }
        Ok(blocks)
    }

    /// The inputs' handles: those the operation consumes are moved, so that it may update them in place.
    /// Also tells the storages that lost a tensor by it.
    fn hand_over(&mut self, inputs: &[TensorIr]) -> (Vec<B::Handle>, Vec<BlockId>) {
        let mut consumed = Vec::new();
        let mut handles: Vec<Option<B::Handle>> = Vec::with_capacity(inputs.len());
        // Shared ones first: a tensor may be both read and consumed by one operation.
        for input in inputs {
            handles.push(match self.table.tensor(input.id) {
                Some(Tensor::Here { handle, .. }) if !consumes(input) => Some(handle.clone()),
                _ => None,
            });
        }
        for (input, slot) in inputs.iter().zip(&mut handles).filter(|(input, _)| consumes(input)) {
            if let Some(Tensor::Here { handle, block }) = self.table.remove_tensor(input.id) {
                consumed.extend(block);
                *slot = Some(handle);
            }
        }
        (handles.into_iter().flatten().collect(), consumed)
    }

    fn launch(
        &mut self,
        operation: &OperationIr,
        inputs: &[TensorIr],
        handles: Vec<B::Handle>,
        outputs: &[TensorIr],
    ) -> Result<Vec<B::Handle>, Box<dyn Any + Send>> {
        let device = self.device.clone();
        #[cfg(feature = "test-util")]
        let breaks = self.occasions.launch.strikes(self.faults.panic_in_launch_every);
        catch_unwind(AssertUnwindSafe(|| {
            #[cfg(feature = "test-util")]
            assert!(!breaks, "a launch broken on purpose");
            let scratch = Scratch::<B>::new(&device);
            for (input, handle) in inputs.iter().zip(handles) {
                scratch.put(input, handle);
            }
            scratch.run(operation.clone());
            outputs.iter().map(|output| scratch.take(output)).collect()
        }))
    }

    /// Enters the outputs. Each is in a storage that lives on, or in one the operation wrote.
    ///
    /// Whether a written storage is a consumed one, updated in place, or new memory at whatever address is not
    /// asked: the allocator may have given a consumed address out again, so the answer would be a matter of
    /// timing. A written storage takes the place of a consumed one of its size, if there is one.
    fn adopt(
        &mut self,
        work: &Work,
        handles: Vec<B::Handle>,
        consumed: &[BlockId],
        rooms: &mut Vec<BlockId>,
    ) -> Result<(), Failure> {
        let mut fresh: Vec<Fresh<B>> = Vec::new();
        for (output, handle) in work.outputs.iter().zip(handles) {
            let storage = B::split(&handle).0;
            let (address, bytes) = (B::address(&storage), B::bytes(&storage).len() as u64);
            drop(storage);
            if bytes < self.smallest_block {
                self.table.add_tensor(output.id, handle, None);
                continue;
            }
            let known = self.table.block_at(address).filter(|block| self.pager.bytes(*block) == bytes);
            // A storage with other tensors is never written to, nor is the source of a view.
            if let Some(block) = known.filter(|block| work.view || self.table.is_held(*block)) {
                self.table.add_tensor(output.id, handle, Some(block));
            } else if let Some(shared) = fresh.iter_mut().find(|fresh| fresh.address == address) {
                shared.tensors.push((output.id, handle));
            } else {
                fresh.push(Fresh { address, bytes, tensors: vec![(output.id, handle)] });
            }
        }
        self.settle_all(fresh, consumed, rooms, work.name)
    }

    /// Finds blocks for written storages: consumed ones of their size, the rooms made for them where the
    /// backend took what its outputs' shapes told, and others where it did not.
    fn settle_all(
        &mut self,
        fresh: Vec<Fresh<B>>,
        consumed: &[BlockId],
        rooms: &mut Vec<BlockId>,
        name: &dyn Fn() -> String,
    ) -> Result<(), Failure> {
        let mut others = Vec::new();
        for storage in fresh {
            let free = |block: &&BlockId| {
                !self.table.is_held(**block) && self.pager.bytes(**block) == storage.bytes
            };
            if let Some(block) = consumed.iter().find(free) {
                self.inherit(storage, *block);
                continue;
            }
            match rooms.iter().position(|room| self.pager.bytes(*room) == storage.bytes) {
                Some(index) => self.settle(storage, rooms.swap_remove(index)),
                None => others.push(storage),
            }
        }
        self.bury(consumed);
        // A room is an operand of its operation only; the next one would evict it.
        for room in rooms.drain(..) {
            self.pager.remove(room);
        }
        for storage in others {
            let block = self.pager.insert(storage.bytes, Arena::UNPOOLED);
            if let Err(failure) = self.make_resident(&[block], name) {
                self.pager.remove(block);
                return Err(failure);
            }
            self.settle(storage, block);
        }
        Ok(())
    }

    /// The storage is, or is as good as, the consumed one with new contents.
    fn inherit(&mut self, storage: Fresh<B>, block: BlockId) {
        self.table.readdress(block, storage.address);
        for (tensor, handle) in storage.tensors {
            self.table.add_tensor(tensor, handle, Some(block));
        }
        self.wrote(block);
    }

    fn settle(&mut self, storage: Fresh<B>, block: BlockId) {
        self.allocations += 1;
        self.table.add_stored(block, storage.address);
        for (tensor, handle) in storage.tensors {
            self.table.add_tensor(tensor, handle, Some(block));
        }
        self.wrote(block);
    }

    fn wrote(&mut self, block: BlockId) {
        if self.pager.wrote(block) {
            self.table.stored(block).copy = None;
        }
    }

    /// Forgets those of the storages that nobody holds any more.
    fn bury(&mut self, storages: &[BlockId]) {
        for block in storages {
            if !self.table.is_held(*block) && self.table.remove_stored(*block).is_some() {
                self.pager.remove(*block);
            }
        }
    }

    fn release(&mut self, tensor: &TensorIr) {
        let block = match self.table.remove_tensor(tensor.id) {
            Some(Tensor::Here { block, .. }) => block,
            Some(Tensor::Away { block, .. }) => Some(block),
            Some(Tensor::Failed(_)) | None => None,
        };
        self.bury(block.as_slice());
    }

    /// What failed on this thread since it asked last.
    pub fn take_failure(&mut self) -> Result<(), ExecutionError> {
        match self.pending.remove(&thread::current().id()) {
            Some(error) => Err(execution_error(&error)),
            None => Ok(()),
        }
    }

    /// The contents of a tensor, from the host if that is where they are.
    pub fn read(&mut self, tensor: &TensorIr) -> Result<TensorData, ExecutionError> {
        let name = || "a read".to_owned();
        let work = Work { name: &name, inputs: std::slice::from_ref(tensor), outputs: &[], view: false };
        if let Some(Tensor::Away { block, view }) = self.table.tensor(tensor.id) {
            let (block, view) = (*block, view.clone());
            let contents = self.verified_copy(block).map_err(|error| execution_error(&error))?;
            if let Some(data) = B::read(&view, contents.bytes()) {
                if consumes(tensor) {
                    self.release(tensor);
                }
                return Ok(data);
            }
        }
        let handle = self.handle(&work).map_err(|error| execution_error(&error))?;
        download::<B>(handle, tensor.shape.clone(), tensor.dtype)
    }

    /// The handle itself, for use outside this device. Whoever has it holds its memory on his own account.
    pub fn take(&mut self, tensor: &TensorIr) -> Result<B::Handle, Arc<OffloadError>> {
        let name = || "a tensor handed out".to_owned();
        self.handle(&Work { name: &name, inputs: std::slice::from_ref(tensor), outputs: &[], view: false })
    }

    fn handle(&mut self, work: &Work) -> Result<B::Handle, Arc<OffloadError>> {
        let here = self.blocks_of(work).and_then(|blocks| match blocks.as_slice() {
            [block] if !matches!(self.pager.place(*block), Place::Device { .. }) => {
                self.make_resident(&blocks, work.name)
            }
            _ => Ok(()),
        });
        let handles = here.map(|()| {
            let (handles, consumed) = self.hand_over(work.inputs);
            self.bury(&consumed);
            handles
        });
        match handles {
            Ok(handles) => Ok(handles.into_iter().next().expect("a resident tensor has a handle")),
            Err(Failure::Memory(error)) => {
                work.inputs.iter().filter(|input| consumes(input)).for_each(|input| self.release(input));
                Err(error)
            }
            Err(_) => unreachable!("nothing runs while a handle is fetched"),
        }
    }
}

fn consumes(input: &TensorIr) -> bool {
    input.status == TensorStatus::ReadWrite
}

pub(super) fn execution_error(error: &OffloadError) -> ExecutionError {
    ExecutionError::WithContext { reason: error.to_string() }
}
