//! Makes storages resident on device or host.

use super::failures::Failure;
use super::state::State;
use super::storage::SharedStorage;
use crate::error::OffloadError;
use crate::tiers::Lease;
use pager::BlockId;
use std::sync::Arc;

impl<B: SharedStorage> State<B> {
    pub(super) fn make_resident(
        &mut self,
        operands: &[BlockId],
        name: &dyn Fn() -> String,
    ) -> Result<(), Failure> {
        let resident = self.paging.make_resident(&mut self.heap, operands, name);
        resident.map_err(|error| Failure::Memory(self.report(error)))
    }

    /// If contents changed on the host, all tensors of the storage return the error.
    pub(super) fn verified_copy(&mut self, block: BlockId) -> Result<Lease, Arc<OffloadError>> {
        let loaded = self.paging.load_to_host(&mut self.heap, block, &|| "reading a tensor".to_owned());
        loaded.map_err(|error| self.report(error))?;
        self.paging.tiers().verified(block).map_err(|error| {
            let damaged = matches!(error, OffloadError::HostCopyDamaged { .. });
            let error = self.report(error);
            if damaged {
                self.heap.lose(&mut self.paging, block, &error);
            }
            error
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OffloadConfig;
    use crate::faults::Injector;
    use crate::flex::table::Tensor;
    use crate::paging::PagingSettings;
    use crate::registry::Settings;
    use crate::tiers::HostPool;
    use burn_backend::{Shape, TensorData};
    use burn_flex::{Flex, FlexDevice};
    use burn_ir::{BackendIr, TensorId, TensorIr, TensorStatus};
    use pager::{Limit, Oversized, Preference, Tier};

    const BYTES: usize = 4096;

    /// A paranoid device with room for one tensor of [`BYTES`].
    fn device() -> State<Flex> {
        State::new(FlexDevice, &settings())
    }

    fn settings() -> Settings {
        Settings {
            paging: PagingSettings {
                device_budget: Limit::bytes(BYTES as u64),
                policy: OffloadConfig::new().policy,
                oversized: Oversized::Refuse,
                host: HostPool::new(Limit::NONE, Limit::NONE),
                disk: None,
                paranoid: true,
                dry_run: false,
                trace: None,
            },
            smallest_block: 1,
            max_bindings: None,
            exact_f32: false,
            overlap: true,
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

    fn use_on_device(state: &mut State<Flex>, tensor: &TensorIr) {
        let block = state.heap.table.tensor(tensor.id).and_then(Tensor::block).expect("a block");
        assert!(state.make_resident(&[block], &|| "a test".to_owned()).is_ok());
    }

    #[test]
    fn new_data_on_a_full_device_evicts_no_tensor() {
        let mut state = device();
        let first = tensor(&mut state, 1, 1.0);
        let second = tensor(&mut state, 2, 2.0);
        assert!(matches!(state.heap.table.tensor(first.id), Some(Tensor::Here { .. })));
        assert!(matches!(state.heap.table.tensor(second.id), Some(Tensor::Away { .. })));
        assert_eq!(state.paging.pager().counters().link.evictions, 0);
    }

    #[test]
    fn new_data_reaches_the_device_when_device_and_host_are_full() {
        let mut settings = settings();
        settings.paging.host = HostPool::new(Limit::bytes(BYTES as u64), Limit::NONE);
        let mut state = State::new(FlexDevice, &settings);
        let first = tensor(&mut state, 1, 1.0);
        let second = tensor(&mut state, 2, 2.0);
        use_on_device(&mut state, &second);
        assert!(matches!(state.heap.table.tensor(first.id), Some(Tensor::Away { .. })));
        assert!(matches!(state.heap.table.tensor(second.id), Some(Tensor::Here { .. })));
    }

    #[test]
    fn a_host_copy_that_changed_is_an_error_of_its_tensors_alone() {
        let mut state = device();
        let first = tensor(&mut state, 1, 1.0);
        let second = tensor(&mut state, 2, 2.0);
        use_on_device(&mut state, &second);
        let block = match state.heap.table.tensor(first.id) {
            Some(Tensor::Away { block, .. }) => *block,
            _ => panic!("there is room for one"),
        };
        state.paging.corrupt(block);

        let error = state.read(&first).expect_err("damaged").to_string();
        assert!(error.contains("changed while it was on the host"), "{error}");
        let again = state.read(&first).expect_err("still damaged").to_string();
        assert_eq!(error, again);
        let last = TensorIr { status: TensorStatus::ReadWrite, ..first.clone() };
        state.read(&last).expect_err("damaged, and its last use");
        assert!(state.heap.table.tensor(first.id).is_none(), "nobody can use it again");
        assert_eq!(
            state.read(&second).expect("intact").as_slice::<f32>().expect("floats")[0].to_bits(),
            2f32.to_bits()
        );
        assert_eq!(
            state.paging.pager().ledger().held(Tier::Host),
            BYTES as u64,
            "the copy of the second alone"
        );
    }

    #[test]
    fn a_dry_device_records_host_tensors_and_reads_without_touching_them() {
        let mut settings = settings();
        let PagingSettings { dry_run, paranoid, device_budget, .. } = &mut settings.paging;
        (*dry_run, *paranoid, *device_budget) = (true, false, Limit::NONE);
        let mut state = State::new(FlexDevice, &settings);
        state.paging.start_recording();
        state.paging.prefer_for_new(Preference::Host);
        let made = tensor(&mut state, 1, 1.0);
        assert!(matches!(state.heap.table.tensor(made.id), Some(Tensor::Away { .. })));
        let read = state.read(&made).expect("zeros");
        assert_eq!(read.as_slice::<f32>().expect("floats"), [0.0; BYTES / 4]);
        let recording = pager::Recording::from_bytes(&state.paging.recorder().expect("it records").take())
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
        assert!(matches!(state.heap.table.tensor(first.id), Some(Tensor::Away { .. })));
        assert_eq!(
            outside.storage::<f32>()[0].to_bits(),
            1f32.to_bits(),
            "the handle outside keeps the contents"
        );
    }
}
