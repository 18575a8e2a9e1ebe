//! Adoption: assigns blocks to storages of an operation's outputs.

use super::failures::Failure;
use super::state::{OutputMemory, State, Work};
use super::storage::SharedStorage;
use burn_ir::TensorId;
use pager::{Arena, BlockId};

struct Fresh<B: SharedStorage> {
    address: usize,
    bytes: u64,
    tensors: Vec<(TensorId, B::Handle)>,
}

impl<B: SharedStorage> State<B> {
    /// An output lies in a storage that stays or in a written one: a consumed one updated in place, or new memory at a
    /// consumed address. Addresses cannot tell. So a written storage adopts a consumed block of its size, if any:
    /// nothing depends on timing.
    pub(super) fn adopt(
        &mut self,
        work: &Work,
        handles: Vec<B::Handle>,
        consumed: &[BlockId],
        reserved: &mut Vec<BlockId>,
    ) -> Result<(), Failure> {
        let mut fresh: Vec<Fresh<B>> = Vec::new();
        for (output, handle) in work.outputs.iter().zip(handles) {
            let storage = B::split(&handle).0;
            let (address, bytes) = (B::address(&storage), B::bytes(&storage).len() as u64);
            drop(storage);

            if bytes < self.smallest_block {
                self.heap.table.add_tensor(output.id, handle, None);
                continue;
            }

            let known = self.heap.table.block_at(address).filter(|block| self.has_size(*block, bytes));
            // No operation writes to a shared storage or a view's source.
            if let Some(block) = known
                .filter(|block| work.memory == OutputMemory::ViewOfInput || self.heap.table.is_held(*block))
            {
                self.heap.table.add_tensor(output.id, handle, Some(block));
            } else if let Some(shared) = fresh.iter_mut().find(|fresh| fresh.address == address) {
                shared.tensors.push((output.id, handle));
            } else {
                fresh.push(Fresh { address, bytes, tensors: vec![(output.id, handle)] });
            }
        }

        self.settle_all(fresh, consumed, reserved, work.name)
    }

    /// A written storage gets a consumed block of its size, else a reserved or new one.
    fn settle_all(
        &mut self,
        fresh: Vec<Fresh<B>>,
        consumed: &[BlockId],
        reserved: &mut Vec<BlockId>,
        name: &dyn Fn() -> String,
    ) -> Result<(), Failure> {
        let mut others = Vec::new();
        for storage in fresh {
            let free =
                |block: &&BlockId| !self.heap.table.is_held(**block) && self.has_size(**block, storage.bytes);
            if let Some(block) = consumed.iter().find(free) {
                self.inherit(storage, *block, name)?;
                continue;
            }
            match reserved.iter().position(|block| self.has_size(*block, storage.bytes)) {
                Some(index) => self.settle(storage, reserved.swap_remove(index), name)?,
                None => others.push(storage),
            }
        }

        self.remove_unheld(consumed);
        // The next operation would evict reserved blocks.
        reserved.drain(..).for_each(|block| self.remove_block(block));

        for storage in others {
            let block = self.paging.insert(storage.bytes, Arena::UNPOOLED);
            if let Err(failure) = self.make_resident(&[block], name) {
                self.remove_block(block);
                return Err(failure);
            }
            self.settle(storage, block, name)?;
        }
        Ok(())
    }

    fn has_size(&self, block: BlockId, bytes: u64) -> bool {
        self.paging.pager().get(block).is_some_and(|block| block.bytes == bytes)
    }

    fn inherit(
        &mut self,
        storage: Fresh<B>,
        block: BlockId,
        name: &dyn Fn() -> String,
    ) -> Result<(), Failure> {
        self.heap.table.readdress(block, storage.address);
        self.enter(storage, block, name)
    }

    fn settle(
        &mut self,
        storage: Fresh<B>,
        block: BlockId,
        name: &dyn Fn() -> String,
    ) -> Result<(), Failure> {
        self.paging.counts().allocations += 1;
        self.heap.table.add_stored(block, storage.address);
        self.enter(storage, block, name)
    }

    fn enter(&mut self, storage: Fresh<B>, block: BlockId, name: &dyn Fn() -> String) -> Result<(), Failure> {
        for (tensor, handle) in storage.tensors {
            self.heap.table.add_tensor(tensor, handle, Some(block));
        }
        self.paging.wrote(block).map_err(|fault| Failure::Memory(self.fault(fault, &name())))
    }
}
