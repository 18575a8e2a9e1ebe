//! The user's tensors, their storages, and which tensors share one.

use super::storage::SharedStorage;
use crate::error::OffloadError;
use burn_ir::TensorId;
use pager::BlockId;
use std::collections::HashMap;
use std::sync::Arc;

pub enum Tensor<B: SharedStorage> {
    /// On the device. Unmanaged storages have no block.
    Here {
        handle: B::Handle,
        block: Option<BlockId>,
    },
    Away {
        view: B::View,
        block: BlockId,
    },
    Failed(Arc<OffloadError>),
}

impl<B: SharedStorage> Tensor<B> {
    /// `None` for a failed tensor or an unmanaged storage.
    pub fn block(&self) -> Option<BlockId> {
        match self {
            Self::Here { block, .. } => *block,
            Self::Away { block, .. } => Some(*block),
            Self::Failed(_) => None,
        }
    }
}

pub struct Stored {
    /// Empty only while an operation consumes the last tensor.
    pub tensors: Vec<TensorId>,
    /// `None` off the device.
    pub address: Option<usize>,
}

pub struct Table<B: SharedStorage> {
    tensors: HashMap<TensorId, Tensor<B>>,
    stored: HashMap<BlockId, Stored>,
    by_address: HashMap<usize, BlockId>,
}

impl<B: SharedStorage> Table<B> {
    pub fn new() -> Self {
        Self { tensors: HashMap::new(), stored: HashMap::new(), by_address: HashMap::new() }
    }

    pub fn tensor(&self, id: TensorId) -> Option<&Tensor<B>> {
        self.tensors.get(&id)
    }

    fn stored(&mut self, block: BlockId) -> &mut Stored {
        self.stored.get_mut(&block).expect("a managed storage")
    }

    pub fn block_at(&self, address: usize) -> Option<BlockId> {
        self.by_address.get(&address).copied()
    }

    pub fn is_held(&self, block: BlockId) -> bool {
        self.stored.get(&block).is_some_and(|stored| !stored.tensors.is_empty())
    }

    pub fn is_shared(&self, block: BlockId) -> bool {
        self.stored.get(&block).is_some_and(|stored| stored.tensors.len() > 1)
    }

    pub fn add_stored(&mut self, block: BlockId, address: usize) {
        self.stored.insert(block, Stored { tensors: Vec::new(), address: Some(address) });
        self.by_address.insert(address, block);
    }

    pub fn readdress(&mut self, block: BlockId, address: usize) {
        let old = self.stored(block).address.replace(address);
        self.forget_address(old, block);
        self.by_address.insert(address, block);
    }

    pub fn add_tensor(&mut self, id: TensorId, handle: B::Handle, block: Option<BlockId>) {
        if let Some(block) = block {
            self.stored(block).tensors.push(id);
        }
        self.tensors.insert(id, Tensor::Here { handle, block });
    }

    /// Adds the only tensor of a storage that was never on the device.
    pub fn add_away(&mut self, id: TensorId, view: B::View, block: BlockId) {
        self.stored.insert(block, Stored { tensors: vec![id], address: None });
        self.tensors.insert(id, Tensor::Away { view, block });
    }

    pub fn fail(&mut self, id: TensorId, error: Arc<OffloadError>) {
        self.tensors.insert(id, Tensor::Failed(error));
    }

    /// The storage stays until [`remove_stored`](Self::remove_stored).
    pub fn remove_tensor(&mut self, id: TensorId) -> Option<Tensor<B>> {
        let tensor = self.tensors.remove(&id)?;
        if let Some(block) = tensor.block() {
            self.stored(block).tensors.retain(|other| *other != id);
        }
        Some(tensor)
    }

    pub fn remove_stored(&mut self, block: BlockId) -> Option<Stored> {
        let stored = self.stored.remove(&block)?;
        self.forget_address(stored.address, block);
        Some(stored)
    }

    /// Keeps only the views. Returns the last reference to the storage.
    pub fn send_away(&mut self, block: BlockId) -> Option<B::Storage> {
        let stored = self.stored.get_mut(&block).expect("a managed storage");
        let mut last = None;
        for id in &stored.tensors {
            let tensor = self.tensors.get_mut(id).expect("a storage's tensor");
            let Tensor::Here { handle, .. } = tensor else { unreachable!("a storage leaves once") };
            let (storage, view) = B::split(handle);
            *tensor = Tensor::Away { view, block };
            last = Some(storage);
        }
        let address = stored.address.take();
        self.forget_address(address, block);
        last
    }

    pub fn bring_back(&mut self, block: BlockId, storage: &B::Storage) {
        let stored = self.stored.get_mut(&block).expect("a managed storage");
        let address = B::address(storage);
        stored.address = Some(address);
        self.by_address.insert(address, block);
        for id in &stored.tensors {
            let tensor = self.tensors.get_mut(id).expect("a storage's tensor");
            let Tensor::Away { view, .. } = tensor else { unreachable!("a storage comes back once") };
            *tensor = Tensor::Here { handle: B::join(storage.clone(), view.clone()), block: Some(block) };
        }
    }

    pub fn reference(&self, block: BlockId) -> Option<B::Storage> {
        let first = self.stored.get(&block)?.tensors.first()?;
        match self.tensors.get(first)? {
            Tensor::Here { handle, .. } => Some(B::split(handle).0),
            _ => None,
        }
    }

    /// Recounts storages of at least `smallest` bytes and `outputs`, not yet entered.
    pub fn bytes_on_device(&self, smallest: u64, outputs: &[B::Handle]) -> u64 {
        let mut storages = HashMap::new();
        let entered = self.tensors.values().filter_map(|tensor| match tensor {
            Tensor::Here { handle, .. } => Some(handle),
            _ => None,
        });
        for handle in entered.chain(outputs) {
            let (storage, _) = B::split(handle);
            storages.insert(B::address(&storage), B::bytes(&storage).len() as u64);
        }
        storages.into_values().filter(|bytes| *bytes >= smallest).sum()
    }

    fn forget_address(&mut self, address: Option<usize>, block: BlockId) {
        if let Some(address) = address
            && self.by_address.get(&address) == Some(&block)
        {
            self.by_address.remove(&address);
        }
    }
}
