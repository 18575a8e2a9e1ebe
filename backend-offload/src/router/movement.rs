//! Storages leave the device and come back, one step of the pager at a time.

use super::state::{Failure, State};
use super::storage::SharedStorage;
use super::table::Kept;
use crate::error::OffloadError;
use crate::host::{HostCopy, SlabSource};
use crate::journal::Event;
use crate::pager::{BlockId, Step};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::Instant;

/// What paranoid mode leaves behind: as a float a large odd number, as an index out of every range.
const SCORCHED: u8 = 0xa5;

impl<B: SharedStorage> State<B> {
    /// Brings all operands onto the device, or says why that cannot be.
    pub(super) fn make_resident(
        &mut self,
        operands: &[BlockId],
        name: &dyn Fn() -> String,
    ) -> Result<(), Failure> {
        self.pager.begin(operands).map_err(|shortage| self.shortage(shortage, name))?;
        loop {
            let room = self.host.room();
            match self.pager.next_step(room).map_err(|shortage| self.shortage(shortage, name))? {
                Step::Ready => return Ok(()),
                // Every drop is told to this door, so nothing is ever left to be found.
                Step::Sweep => self.pager.swept(),
                Step::Trim => {
                    self.pager.trimmed();
                    self.journal.record(Event::Trimmed);
                }
                Step::DropCopy { block } => {
                    self.table.stored(block).copy = None;
                    self.pager.copy_dropped(block);
                    self.journal.record(Event::CopyDropped { bytes: self.pager.bytes(block) });
                }
                Step::Evict { block, copy } => self.evict(block, copy),
                Step::Bring { block, fill } => self.bring(block, fill)?,
            }
        }
    }

    fn evict(&mut self, block: BlockId, copy: bool) {
        let started = Instant::now();
        if copy {
            match self.copy_out(block) {
                Ok(kept) => self.table.stored(block).copy = Some(kept),
                Err(reason) => {
                    self.copy_failure = reason;
                    self.pager.evict_failed(block);
                    return;
                }
            }
        }
        let mut storage = self.table.send_away(block);
        if self.paranoid
            && let Some(bytes) = storage.as_mut().and_then(B::bytes_mut)
        {
            bytes.fill(SCORCHED);
        }
        drop(storage);
        self.pager.evicted(block, copy);
        self.journal.record(Event::Evicted { bytes: self.pager.bytes(block), copied: copy });
        self.stall += started.elapsed();
    }

    fn copy_out(&mut self, block: BlockId) -> Result<Kept, String> {
        #[cfg(feature = "test-util")]
        if self.occasions.copy_out.strikes(self.faults.break_copy_out_every) {
            return Err("a copy broken on purpose".to_owned());
        }
        let storage = self.table.reference(block).expect("a storage on the device has a tensor");
        let bytes = B::bytes(&storage);
        let copied = self.host.copy(bytes.len(), SlabSource::Heap, |slab| {
            slab.copy_from_slice(bytes);
            Ok::<_, Infallible>(())
        });
        let Ok(contents) = copied;
        let contents = contents.ok_or_else(|| "the host has no memory left for it".to_owned())?;
        let checksum = self.paranoid.then(|| checksum(contents.bytes()));
        Ok(Kept { contents, checksum })
    }

    fn bring(&mut self, block: BlockId, fill: bool) -> Result<(), Failure> {
        if self.refuses_allocation() {
            self.pager.device_refused();
            self.journal.record(Event::DeviceRefused { bytes: self.pager.bytes(block) });
            return Ok(());
        }
        if fill {
            let started = Instant::now();
            let contents = self.verified_copy(block).map_err(Failure::Memory)?;
            self.table.bring_back(block, &B::allocate(contents.bytes()));
            self.journal.record(Event::Restored { bytes: self.pager.bytes(block) });
            self.stall += started.elapsed();
        }
        self.pager.brought(block);
        Ok(())
    }

    #[cfg(feature = "test-util")]
    fn refuses_allocation(&mut self) -> bool {
        let every = self.occasions.allocation.strikes(self.faults.refuse_allocation_every);
        let after = self.faults.refuse_allocations_after;
        every || (after > 0 && self.occasions.allocation.count() > after)
    }

    #[cfg(not(feature = "test-util"))]
    #[expect(clippy::unused_self, reason = "without faults on request memory is never refused")]
    fn refuses_allocation(&mut self) -> bool {
        false
    }

    /// The contents on the host. If they changed there, the storage is lost, and all its tensors say so.
    pub(super) fn verified_copy(&mut self, block: BlockId) -> Result<HostCopy, Arc<OffloadError>> {
        let kept = self.table.stored(block).copy.as_ref().expect("what is away has a copy");
        let contents = kept.contents.clone();
        let Some(expected) = kept.checksum else { return Ok(contents) };
        let found = checksum(contents.bytes());
        if found == expected {
            return Ok(contents);
        }
        let bytes = self.pager.bytes(block);
        let error = self.report(OffloadError::HostCopyDamaged { bytes, expected, found });
        let lost = self.table.remove_stored(block).expect("a managed storage");
        for tensor in lost.tensors {
            self.table.fail(tensor, error.clone());
        }
        self.pager.remove(block);
        Err(error)
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OffloadConfig;
    use crate::host::HostTier;
    use crate::pager::Oversized;
    use crate::registry::Settings;
    use crate::router::table::Tensor;
    use burn_backend::{Shape, TensorData};
    use burn_flex::{Flex, FlexDevice};
    use burn_ir::{BackendIr, TensorId, TensorIr, TensorStatus};

    const BYTES: usize = 4096;

    /// A distrustful device with room for one tensor of [`BYTES`].
    fn device() -> State<Flex> {
        let settings = Settings {
            device_budget: BYTES as u64,
            policy: OffloadConfig::new().policy,
            oversized: Oversized::Refuse,
            max_bindings: None,
            smallest_block: 1,
            paranoid: true,
            exact_f32: false,
            host: HostTier::new(u64::MAX),
            device_memory: None,
            #[cfg(feature = "test-util")]
            faults: crate::faults::Faults::default(),
            #[cfg(feature = "test-util")]
            watch_runtime: false,
        };
        State::new(FlexDevice, settings)
    }

    fn tensor(state: &mut State<Flex>, number: u64, value: f32) -> TensorIr {
        let ir = TensorIr::uninit(TensorId::new(number), Shape::from([BYTES / 4]), burn_backend::DType::F32);
        let data = TensorData::new(vec![value; BYTES / 4], [BYTES / 4]);
        let made = state.create(&ir, |_| Flex::float_tensor_handle(burn_flex::FlexTensor::from_data(data)));
        assert!(made.is_ok());
        TensorIr { status: TensorStatus::ReadOnly, ..ir }
    }

    #[test]
    fn a_host_copy_that_changed_is_an_error_of_its_tensors_alone() {
        let mut state = device();
        let first = tensor(&mut state, 1, 1.0);
        let second = tensor(&mut state, 2, 2.0);
        let block = match state.table.tensor(first.id) {
            Some(Tensor::Away { block, .. }) => *block,
            _ => panic!("there is room for one"),
        };
        let kept = state.table.stored(block).copy.as_mut().expect("a copy");
        kept.contents.bytes_mut().expect("nobody else reads it")[7] ^= 1;

        let error = state.read(&first).expect_err("damaged").to_string();
        assert!(error.contains("changed while it was on the host"), "{error}");
        let again = state.read(&first).expect_err("still damaged").to_string();
        assert_eq!(error, again);
        assert_eq!(
            state.read(&second).expect("intact").as_slice::<f32>().expect("floats")[0].to_bits(),
            2f32.to_bits()
        );
        assert_eq!(state.pager.ledger().host(), 0);
    }

    #[test]
    fn what_leaves_is_overwritten_only_where_nobody_else_holds_it() {
        let mut state = device();
        let first = tensor(&mut state, 1, 1.0);
        let taken = state.take(&first);
        let Ok(burn_ir::HandleKind::Float(outside)) = taken else { panic!("a float tensor") };
        tensor(&mut state, 2, 2.0);
        assert!(matches!(state.table.tensor(first.id), Some(Tensor::Away { .. })));
        assert_eq!(
            outside.storage::<f32>()[0].to_bits(),
            1f32.to_bits(),
            "whoever took the handle out keeps the contents"
        );
    }
}
