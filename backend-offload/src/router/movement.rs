//! Movement: storages are evicted and loaded again, as the loop in [`drive`](crate::drive) asks.

use super::failures::Failure;
use super::state::State;
use super::storage::SharedStorage;
use crate::drive::{self, Device, MoveFailure, Progress};
use crate::error::OffloadError;
use crate::journal::Journal;
use crate::report::Counts;
use crate::tiers::{Lease, Tiers};
use pager::{BlockId, Outcome, Pager, Tier, Token};
use std::sync::Arc;
use std::time::Duration;

/// Overwrites evicted storages in paranoid mode: as a float a large odd number, as an index out of every range.
const PARANOID_FILL: u8 = 0xa5;

impl<B: SharedStorage> State<B> {
    pub(super) fn make_resident(
        &mut self,
        operands: &[BlockId],
        name: &dyn Fn() -> String,
    ) -> Result<(), Failure> {
        drive::make_resident(self, operands, name).map_err(|error| Failure::Memory(self.report(error)))
    }

    /// The contents on the host. If they changed there, the storage is lost, and all its tensors return the error.
    pub(super) fn verified_copy(&mut self, block: BlockId) -> Result<Lease, Arc<OffloadError>> {
        drive::load_to_host(self, block, &|| "reading a tensor".to_owned())
            .map_err(|error| self.report(error))?;
        self.tiers.verified(block).map_err(|error| {
            let damaged = matches!(error, OffloadError::HostCopyDamaged { .. });
            let error = self.report(error);
            if damaged {
                self.lose(block, &error);
            }
            error
        })
    }

    fn copy_out(&mut self, block: BlockId) -> Result<(), String> {
        if self.injector.breaks_copy_out() {
            return Err("a copy broken on purpose".to_owned());
        }
        let storage = self.table.reference(block).expect("a storage on the device has a tensor");
        let contents = B::bytes(&storage);
        let mut draft = self.tiers.draft(contents.len())?;
        if !self.dry {
            draft.copy_from_slice(contents);
        }
        self.tiers.keep(block, draft);
        Ok(())
    }
}

impl<B: SharedStorage> Device for State<B> {
    fn pager(&mut self) -> &mut Pager {
        &mut self.pager
    }

    fn tiers(&mut self) -> &mut Tiers {
        &mut self.tiers
    }

    fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The heap keeps no spare slices.
    fn trim_allocator(&mut self) {}

    fn leave(&mut self, _: Token, block: BlockId, copy: Option<Tier>) -> Result<Progress, MoveFailure> {
        if copy.is_some() {
            self.copy_out(block)?;
        }
        Ok(Progress::Landed)
    }

    /// The backend allocates the memory itself.
    fn take_memory(&mut self, _: BlockId) -> bool {
        !self.injector.refuses_allocation()
    }

    fn fill(&mut self, _: Token, block: BlockId, _: Tier) -> Result<Progress, MoveFailure> {
        if self.injector.breaks_copy_in() {
            return Err("an upload broken on purpose".to_owned().into());
        }
        match self.tiers.verified(block) {
            Ok(copy) => {
                let contents = copy.bytes();
                let storage = if self.dry { B::untouched(contents.len()) } else { B::allocate(contents) };
                self.table.bring_back(block, &storage);
                Ok(Progress::Landed)
            }
            Err(error) => {
                self.lose(block, &Arc::new(error.clone()));
                Err(error.into())
            }
        }
    }

    fn settle(&mut self, _: Token, outcome: Outcome) {
        let Outcome::Left { block, .. } = outcome else { return };
        let mut storage = self.table.send_away(block);
        if self.paranoid
            && let Some(bytes) = storage.as_mut().and_then(B::bytes_mut)
        {
            bytes.fill(PARANOID_FILL);
        }
    }

    fn waited(&mut self, time: Duration) {
        self.counts.stall += time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OffloadConfig;
    use crate::faults::Injector;
    use crate::registry::Settings;
    use crate::router::table::Tensor;
    use crate::tiers::HostPool;
    use burn_backend::{Shape, TensorData};
    use burn_flex::{Flex, FlexDevice};
    use burn_ir::{BackendIr, TensorId, TensorIr, TensorStatus};
    use pager::{Limit, Oversized, Preference};

    const BYTES: usize = 4096;

    /// A paranoid device with room for one tensor of [`BYTES`].
    fn device() -> State<Flex> {
        State::new(FlexDevice, settings())
    }

    fn settings() -> Settings {
        Settings {
            overlap: true,
            device_budget: Limit::bytes(BYTES as u64),
            policy: OffloadConfig::new().policy,
            oversized: Oversized::Refuse,
            max_bindings: None,
            smallest_block: 1,
            paranoid: true,
            exact_f32: false,
            trace: None,
            dry_run: false,
            host: HostPool::new(Limit::NONE, Limit::NONE),
            disk: None,
            device_memory: None,
            injector: Injector::default(),
            #[cfg(feature = "test-util")]
            watch_runtime: false,
        }
    }

    fn tensor(state: &mut State<Flex>, number: u64, value: f32) -> TensorIr {
        let ir = TensorIr::uninit(TensorId::new(number), Shape::from([BYTES / 4]), burn_backend::DType::F32);
        let data = TensorData::new(vec![value; BYTES / 4], [BYTES / 4]);
        let made = state.create(&ir, |_| Flex::float_tensor_handle(burn_flex::FlexTensor::from_data(data)));
        assert!(made.is_ok());
        TensorIr { status: TensorStatus::ReadOnly, ..ir }
    }

    /// Makes the tensor resident as the operand of an operation that only reads it.
    fn use_on_device(state: &mut State<Flex>, tensor: &TensorIr) {
        let block = state.table.tensor(tensor.id).and_then(Tensor::block).expect("a block");
        assert!(state.make_resident(&[block], &|| "a test".to_owned()).is_ok());
    }

    #[test]
    fn new_data_on_a_full_device_evicts_no_tensor() {
        let mut state = device();
        let first = tensor(&mut state, 1, 1.0);
        let second = tensor(&mut state, 2, 2.0);
        assert!(matches!(state.table.tensor(first.id), Some(Tensor::Here { .. })));
        assert!(matches!(state.table.tensor(second.id), Some(Tensor::Away { .. })));
        assert_eq!(state.pager.counters().evictions, 0);
    }

    #[test]
    fn a_host_copy_that_changed_is_an_error_of_its_tensors_alone() {
        let mut state = device();
        let first = tensor(&mut state, 1, 1.0);
        let second = tensor(&mut state, 2, 2.0);
        use_on_device(&mut state, &second);
        let block = match state.table.tensor(first.id) {
            Some(Tensor::Away { block, .. }) => *block,
            _ => panic!("there is room for one"),
        };
        state.tiers.corrupt(block);

        let error = state.read(&first).expect_err("damaged").to_string();
        assert!(error.contains("changed while it was on the host"), "{error}");
        let again = state.read(&first).expect_err("still damaged").to_string();
        assert_eq!(error, again);
        assert_eq!(
            state.read(&second).expect("intact").as_slice::<f32>().expect("floats")[0].to_bits(),
            2f32.to_bits()
        );
        assert_eq!(state.pager.ledger().held(Tier::Host), BYTES as u64, "the copy of the second alone");
    }

    #[test]
    fn a_dry_device_records_host_tensors_and_reads_without_touching_them() {
        let settings = Settings { dry_run: true, paranoid: false, device_budget: Limit::NONE, ..settings() };
        let mut state = State::new(FlexDevice, settings);
        state.pager.record();
        state.new_data = Preference::Host;
        let made = tensor(&mut state, 1, 1.0);
        assert!(matches!(state.table.tensor(made.id), Some(Tensor::Away { .. })));
        let read = state.read(&made).expect("zeros");
        assert_eq!(read.as_slice::<f32>().expect("floats"), [0.0; BYTES / 4]);
        let recording = pager::Recording::from_bytes(&state.pager.recorder().expect("it records").take())
            .expect("a recording");
        let born = pager::Event::Born { bytes: BYTES as u64, arena: pager::Arena::UNPOOLED };
        let read = pager::Event::Read { block: 0, bytes: BYTES as u64 };
        assert_eq!(recording.events, [born, pager::Event::WrittenInTier(0), read]);
    }

    #[test]
    fn evicted_storage_is_overwritten_unless_an_outside_handle_shares_it() {
        let mut state = device();
        let first = tensor(&mut state, 1, 1.0);
        let taken = state.take(&first);
        let Ok(burn_ir::HandleKind::Float(outside)) = taken else { panic!("a float tensor") };
        let second = tensor(&mut state, 2, 2.0);
        use_on_device(&mut state, &second);
        assert!(matches!(state.table.tensor(first.id), Some(Tensor::Away { .. })));
        assert_eq!(
            outside.storage::<f32>()[0].to_bits(),
            1f32.to_bits(),
            "the handle outside keeps the contents"
        );
    }
}
