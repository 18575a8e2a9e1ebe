//! Makes operands resident, runs the backend, enters outputs.

use super::failures::Failure;
use super::operation;
use super::scratch::Scratch;
use super::state::{OutputMemory, State, Work, consumes};
use super::storage::SharedStorage;
use super::table::Tensor;
use burn_ir::{OperationIr, TensorIr};
use pager::{Arena, BlockId};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

impl<B: SharedStorage> State<B> {
    /// Without memory, reads of the outputs return the error.
    pub fn execute(&mut self, operation: &OperationIr) -> Result<(), Failure> {
        match operation {
            OperationIr::Drop(tensor) => {
                self.release(tensor);
                return Ok(());
            }
            OperationIr::Init(_) => return Ok(()),
            _ => {}
        }

        self.paging.counts().launches += 1;
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
            memory: if inputs.first().is_some_and(|input| self.makes_view(operation, input)) {
                OutputMemory::ViewOfInput
            } else {
                OutputMemory::New
            },
            flops: operation::flops(operation),
        };

        if self.heap.dry && work.memory != OutputMemory::ViewOfInput {
            return self.produce(&work, |_, _| Ok(outputs.iter().map(B::blank).collect()));
        }
        self.produce(&work, |state, handles| state.launch(operation, &inputs, handles, &outputs))
    }

    /// An output keeps its input's block unless another tensor shares it.
    pub fn change(
        &mut self,
        inputs: &[TensorIr],
        outputs: &[TensorIr],
        work: &mut dyn FnMut(&mut [&mut [f32]]),
    ) -> Result<(), Failure> {
        self.paging.counts().launches += 1;
        let asked = Work {
            name: &|| "a change in place".to_owned(),
            inputs,
            outputs,
            memory: OutputMemory::InPlace,
            flops: 0,
        };
        self.produce(&asked, |state, handles| {
            if state.heap.dry {
                return Ok(outputs.iter().map(B::blank).collect());
            }
            let breaks = state.heap.injector.panics_in_launch();
            catch_unwind(AssertUnwindSafe(|| {
                assert!(!breaks, "a launch broken on purpose");
                B::change(handles, work)
            }))
        })
    }

    pub fn create(
        &mut self,
        tensor: &TensorIr,
        make: impl FnOnce(&B::Device) -> B::Handle,
    ) -> Result<(), Failure> {
        let work = Work {
            name: &|| "a tensor from data".to_owned(),
            inputs: &[],
            outputs: std::slice::from_ref(tensor),
            memory: OutputMemory::New,
            flops: 0,
        };
        let (device, dry) = (self.device.clone(), self.heap.dry);
        let make = || catch_unwind(AssertUnwindSafe(|| if dry { B::blank(tensor) } else { make(&device) }));
        let bytes = (tensor.shape.num_elements() * tensor.dtype.size()) as u64;
        if bytes < self.smallest_block || !self.begins_on_host(bytes) {
            self.paging.counts().bytes_written += bytes;
            return self.produce(&work, |_, _| make().map(|handle| vec![handle]));
        }
        let handle = make().map_err(|panic| self.panic_reported(panic, work.name))?;
        self.put_on_host(tensor, handle).or_else(|handle| {
            self.paging.counts().bytes_written += bytes;
            self.produce(&work, |_, _| Ok(vec![handle]))
        })
    }

    fn begins_on_host(&mut self, bytes: u64) -> bool {
        self.paging.begins_on_host(&mut self.heap, bytes, (Arena::UNPOOLED, false))
    }

    /// Returns the handle if the host has no room.
    fn put_on_host(&mut self, tensor: &TensorIr, handle: B::Handle) -> Result<(), B::Handle> {
        let (storage, view) = B::split(&handle);
        let contents = B::bytes(&storage);
        let Ok(mut draft) = self.paging.tiers().draft(contents.len()) else { return Err(handle) };
        if !self.heap.dry {
            draft.copy_from_slice(contents);
        }
        match self.paging.insert_on_host(draft) {
            Ok(block) => {
                self.paging.counts().allocations += 1;
                self.heap.table.add_away(tensor.id, view, block);
                Ok(())
            }
            Err(fault) => {
                self.fault(fault, "a tensor from data");
                Err(handle)
            }
        }
    }

    fn makes_view(&self, operation: &OperationIr, input: &TensorIr) -> bool {
        self.view_of(input).is_some_and(|view| B::makes_view(operation, &view))
    }

    /// Whether the input is consumed, alone in its storage, and row-major.
    pub fn keeps_storage(&self, input: &TensorIr) -> bool {
        let block = self.heap.table.tensor(input.id).and_then(Tensor::block);
        consumes(input)
            && !block.is_some_and(|block| self.heap.table.is_shared(block))
            && self.view_of(input).is_none_or(|view| B::is_in_rows(&view))
    }

    fn view_of(&self, input: &TensorIr) -> Option<B::View> {
        match self.heap.table.tensor(input.id)? {
            Tensor::Here { handle, .. } => Some(B::split(handle).1),
            Tensor::Away { view, .. } => Some(view.clone()),
            Tensor::Failed(_) => None,
        }
    }

    fn produce(
        &mut self,
        work: &Work,
        run: impl FnOnce(&mut Self, Vec<B::Handle>) -> Result<Vec<B::Handle>, Box<dyn Any + Send>>,
    ) -> Result<(), Failure> {
        let failed = |input: &TensorIr| matches!(self.heap.table.tensor(input.id), Some(Tensor::Failed(_)));
        let derived = work.inputs.iter().any(failed);
        let result = self.attempt(work, run);
        for input in work.inputs.iter().filter(|input| consumes(input)) {
            self.release(input);
        }

        if self.heap.paranoid {
            let found = self.heap.table.bytes_on_device(self.smallest_block, &[]);
            assert_eq!(
                self.paging.pager().ledger().resident(),
                found,
                "the ledger is the sum of the storages"
            );
        }

        match result {
            Ok(()) => Ok(()),
            Err(failure) => {
                self.paging.counts().failures += 1;
                let Failure::Memory(error) = failure else { return Err(failure) };
                if !derived {
                    self.pending.entry(thread::current().id()).or_insert_with(|| error.clone());
                }
                for output in work.outputs {
                    self.release(output);
                    self.heap.table.fail(output.id, error.clone());
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
        let mut reserved = Vec::new();
        for (n, output) in work.outputs.iter().enumerate() {
            let is_new = match work.memory {
                OutputMemory::New => true,
                OutputMemory::ViewOfInput => false,
                OutputMemory::InPlace => !self.keeps_storage(&work.inputs[n]),
            };
            if !is_new {
                continue;
            }
            let bytes = (output.shape.num_elements() * output.dtype.size()) as u64;
            if bytes >= self.smallest_block {
                reserved.push(self.paging.insert(bytes, Arena::UNPOOLED));
            }
        }

        operands.extend(&reserved);
        let ran = self.make_resident(&operands, work.name).and_then(|()| {
            if let Some(recorder) = self.paging.recorder() {
                recorder.takes(work.flops);
            }

            let (handles, consumed) = self.hand_over(work.inputs);
            let outputs = run(self, handles).map_err(|panic| self.panic_reported(panic, work.name));
            let outputs = match outputs {
                Ok(outputs) => outputs,
                Err(failure) => {
                    self.remove_unheld(&consumed);
                    return Err(failure);
                }
            };
            #[cfg(feature = "test-util")]
            if let Some(peak) = &mut self.peak_found {
                *peak = (*peak).max(self.heap.table.bytes_on_device(0, &outputs));
            }
            self.adopt(work, outputs, &consumed, &mut reserved)
        });

        for block in reserved {
            self.remove_block(block);
        }
        ran
    }

    /// The inputs' handles, and storages that lost a tensor. Consumed handles are moved.
    pub(super) fn hand_over(&mut self, inputs: &[TensorIr]) -> (Vec<B::Handle>, Vec<BlockId>) {
        let mut consumed = Vec::new();
        let mut handles: Vec<Option<B::Handle>> = Vec::with_capacity(inputs.len());
        // Inputs that stay come first: an operation may read and consume one tensor.
        for input in inputs {
            handles.push(match self.heap.table.tensor(input.id) {
                Some(Tensor::Here { handle, .. }) if !consumes(input) => Some(handle.clone()),
                _ => None,
            });
        }
        for (input, slot) in inputs.iter().zip(&mut handles).filter(|(input, _)| consumes(input)) {
            if let Some(Tensor::Here { handle, block }) = self.heap.table.remove_tensor(input.id) {
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
        let breaks = self.heap.injector.panics_in_launch();
        catch_unwind(AssertUnwindSafe(|| {
            assert!(!breaks, "a launch broken on purpose");
            let handles = match B::run(operation, handles) {
                Ok(output) => return vec![output],
                Err(handles) => handles,
            };
            let scratch = Scratch::<B>::new(&device);
            for (input, handle) in inputs.iter().zip(handles) {
                scratch.put(input, handle);
            }
            scratch.run(operation.clone());
            outputs.iter().map(|output| scratch.take(output)).collect()
        }))
    }
}
