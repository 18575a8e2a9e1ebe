//! Logical handles, held by Burn and hidden from the runtime underneath.
//!
//! A bound CubeCL handle cannot move to other memory. So Burn's handle is bound to a slot, and the runtime sees a
//! physical handle. CubeCL hides a handle's identity but shows its storage, whose size encodes the slot
//! (`a_handle_resolves_to_the_slot_it_was_bound_to`, `a_handle_that_was_never_bound_resolves_to_nothing`).
//!
//! As in a pool, one clone of each handle is kept, so in-place operations detect a single user. The caller of
//! [`Slots::bind`] holds it and polls `is_free`: drops are silent
//! (`binding_keeps_in_place_updates_possible_and_drops_noticeable`).

use cubecl_core::ir::MemoryDeviceProperties;
use cubecl_core::server::IoError;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{
    ManagedMemoryBinding, ManagedMemoryHandle, MemoryAllocationMode, MemoryConfiguration, MemoryManagement,
    MemoryManagementOptions,
};
use cubecl_runtime::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use std::fmt::{self, Write as _};
use std::sync::Arc;

pub(super) struct Slots {
    memory: MemoryManagement<NoStorage>,
    stand_ins: Vec<ManagedMemoryHandle>,
}

/// Unbound handles resolve to the first slot, which is never bound.
const UNBOUND: usize = 0;

impl Slots {
    pub(super) fn new(logger: Arc<ServerLogger>) -> Self {
        let memory = MemoryManagement::from_configuration(
            NoStorage,
            &MemoryDeviceProperties { max_page_size: u64::MAX / 4, alignment: 1 },
            MemoryConfiguration::Custom { pool_options: vec![] },
            logger,
            MemoryManagementOptions::new("Logical buffers").mode(MemoryAllocationMode::Persistent),
        );
        let mut slots = Self { memory, stand_ins: Vec::new() };
        slots.grow_to(UNBOUND);
        slots
    }

    fn grow_to(&mut self, slot: usize) {
        while self.stand_ins.len() <= slot {
            let size = self.stand_ins.len() as u64 + 1;
            self.stand_ins.push(self.memory.reserve(size).expect("a storage that allocates nothing"));
        }
    }

    pub(super) fn bind(&mut self, index: u32, user: ManagedMemoryHandle) {
        let slot = index as usize + 1;
        self.grow_to(slot);
        let stand_in = self.stand_ins[slot].clone();
        self.memory.bind(stand_in.clone(), user, 0).expect("the slot is reserved");
        // Replaces the slot's clone, leaving the caller's alone.
        self.memory.bind(stand_in.clone(), stand_in, 0).expect("the slot is reserved");
    }

    pub(super) fn resolve(&mut self, binding: &ManagedMemoryBinding) -> Option<u32> {
        let slot = self.memory.get_storage(binding.clone()).ok()?.size() - 1;
        (slot != UNBOUND as u64).then(|| slot as u32 - 1)
    }
}

/// Never reused. Reading CubeCL's debug output takes less than a microsecond.
pub(super) fn number(binding: &ManagedMemoryBinding) -> Option<u64> {
    let mut reader = NumberReader::default();
    // An error ends the output at the number.
    let _ended = write!(reader, "{binding:?}");
    reader.number
}

#[derive(Default)]
struct NumberReader {
    in_id: bool,
    number: Option<u64>,
}

impl fmt::Write for NumberReader {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.in_id |= piece.contains("ManagedMemoryId");
        self.number = if self.in_id { piece.parse().ok() } else { None };
        if self.number.is_some() { Err(fmt::Error) } else { Ok(()) }
    }
}

struct NoStorage;

impl ComputeStorage for NoStorage {
    type Resource = ();
    fn alignment(&self) -> usize {
        1
    }
    fn get(&mut self, _: &StorageHandle) {}
    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        Ok(StorageHandle::new(StorageId::new(), StorageUtilization { offset: 0, size }))
    }
    fn dealloc(&mut self, _: StorageId) {}
    fn flush(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Slots {
        Slots::new(Arc::new(ServerLogger::default()))
    }

    #[test]
    fn a_handle_resolves_to_the_slot_it_was_bound_to() {
        let mut slots = slots();
        let handles: Vec<_> = (0..5).map(|_| ManagedMemoryHandle::new()).collect();
        for (index, handle) in handles.iter().enumerate().rev() {
            slots.bind(index as u32, handle.clone());
        }
        for (index, handle) in handles.iter().enumerate() {
            assert_eq!(slots.resolve(&handle.clone().binding()), Some(index as u32));
        }
    }

    #[test]
    fn a_handle_that_was_never_bound_resolves_to_nothing() {
        let mut slots = slots();
        slots.bind(0, ManagedMemoryHandle::new());
        assert_eq!(slots.resolve(&ManagedMemoryHandle::new().binding()), None);
    }

    #[test]
    fn binding_keeps_in_place_updates_possible_and_drops_noticeable() {
        let mut slots = slots();
        let user = ManagedMemoryHandle::new();
        let ours = user.clone();
        slots.bind(3, user.clone());
        assert!(user.can_mut(), "one clone besides the user's, as in a plain pool");
        assert!(!ours.is_free());
        drop(user);
        assert!(ours.is_free());
        slots.bind(3, ManagedMemoryHandle::new());
        assert!(ours.is_free(), "the slot can serve another handle");
    }

    #[test]
    fn handles_have_distinct_numbers() {
        let (a, b) = (ManagedMemoryHandle::new(), ManagedMemoryHandle::new());
        let number_of = |handle: &ManagedMemoryHandle| number(&handle.clone().binding());
        assert!(number_of(&a).is_some());
        assert_eq!(number_of(&a), number_of(&a));
        assert_ne!(number_of(&a), number_of(&b));
    }
}
