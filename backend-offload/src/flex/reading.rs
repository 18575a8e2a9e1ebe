//! Reads for the program, and handles for use outside this device.

use super::failures::{Failure, execution_error};
use super::scratch::download;
use super::state::{OutputMemory, State, Work, consumes};
use super::storage::SharedStorage;
use super::table::Tensor;
use crate::error::OffloadError;
use burn_backend::{ExecutionError, TensorData};
use burn_ir::TensorIr;
use pager::{Block, BlockId, Place, Tier};
use std::sync::Arc;

impl<B: SharedStorage> State<B> {
    /// A current host copy is read without device memory.
    pub fn read(&mut self, tensor: &TensorIr) -> Result<TensorData, ExecutionError> {
        let name = || "a read".to_owned();
        let work = Work {
            name: &name,
            inputs: std::slice::from_ref(tensor),
            outputs: &[],
            memory: OutputMemory::New,
            flops: 0,
        };
        let on_host = match self.heap.table.tensor(tensor.id) {
            Some(Tensor::Away { block, view }) => Some((*block, view.clone())),
            Some(Tensor::Here { handle, block: Some(block) }) if self.is_clean(*block) => {
                Some((*block, B::split(handle).1))
            }
            _ => None,
        };

        let block = self.heap.table.tensor(tensor.id).and_then(Tensor::block);
        let bytes = (tensor.shape.num_elements() * tensor.dtype.size()) as u64;
        if let Some(block) = block
            && let Some(recorder) = self.paging.recorder()
        {
            recorder.reads(block, bytes);
        }

        if let Some((block, view)) = on_host {
            let read = self.verified_copy(block).map(|contents| B::read(&view, contents.bytes()));
            if !matches!(read, Ok(None)) && consumes(tensor) {
                self.release(tensor);
            }
            if let Some(data) = read.map_err(|error| execution_error(&error))? {
                return Ok(data);
            }
        }

        let handle = self.handle(&work).map_err(|error| execution_error(&error))?;
        self.paging.counts().bytes_read += bytes;
        download::<B>(handle, tensor.shape.clone(), tensor.dtype)
    }

    /// The handle keeps memory alive that the ledger does not count.
    pub fn take(&mut self, tensor: &TensorIr) -> Result<B::Handle, Arc<OffloadError>> {
        let name = || "a tensor handed out".to_owned();
        self.handle(&Work {
            name: &name,
            inputs: std::slice::from_ref(tensor),
            outputs: &[],
            memory: OutputMemory::New,
            flops: 0,
        })
    }

    fn is_clean(&self, block: BlockId) -> bool {
        let clean = Place::Device { clean: Some(Tier::Host) };
        self.paging.pager().get(block).is_some_and(|block| block.place() == clean)
    }

    fn is_on_device(&self, block: BlockId) -> bool {
        self.paging.pager().get(block).is_some_and(Block::is_on_device)
    }

    fn handle(&mut self, work: &Work) -> Result<B::Handle, Arc<OffloadError>> {
        let here = self.blocks_of(work).and_then(|blocks| match blocks.as_slice() {
            [block] if !self.is_on_device(*block) => self.make_resident(&blocks, work.name),
            _ => Ok(()),
        });
        let handles = here.map(|()| {
            let (handles, consumed) = self.hand_over(work.inputs);
            self.remove_unheld(&consumed);
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
