//! The client that Burn's router calls.

use super::failures::Failure;
use super::operation::data_refusal;
use super::scratch::upload;
use super::state::State;
use super::storage::SharedStorage;
use crate::error::OffloadError;
use crate::registry::Settings;
use burn_backend::{DType, DTypeUsageSet, ExecutionError, Shape, TensorData, TensorMetadata};
use burn_ir::{OperationIr, TensorId, TensorIr};
use burn_router::{RouterTensor, Runner, RunnerClient};
use burn_std::future::DynFut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A simulated device, shared by clones.
pub struct OffloadClient<B: SharedStorage> {
    state: Arc<Mutex<State<B>>>,
    device: B::Device,
}

impl<B: SharedStorage> Clone for OffloadClient<B> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), device: self.device.clone() }
    }
}

impl<B: SharedStorage> OffloadClient<B> {
    pub(crate) fn new(device: B::Device, settings: &Settings) -> Self {
        let state = State::new(device.clone(), settings);
        Self { state: Arc::new(Mutex::new(state)), device }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<B>> {
        // The backend's panics are caught inside; others leave the state intact.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, tensor: &TensorIr) -> B::Handle {
        let taken = self.state().take(tensor);
        taken.unwrap_or_else(|error| raise(&error))
    }

    pub(super) fn put(&self, handle: B::Handle, shape: Shape, dtype: DType) -> RouterTensor<Self> {
        self.create(shape, dtype, |_| handle)
    }

    fn create(
        &self,
        shape: Shape,
        dtype: DType,
        make: impl FnOnce(&B::Device) -> B::Handle,
    ) -> RouterTensor<Self> {
        let id = self.create_empty_handle();
        let created = self.state().create(&TensorIr::uninit(id, shape.clone(), dtype), make);
        surface(created);
        RouterTensor::new(id, shape, dtype, self.clone())
    }

    fn changed(&self, inputs: &[TensorIr], work: &mut dyn FnMut(&mut [&mut [f32]])) -> Tensors<B> {
        let output =
            |input: &TensorIr| TensorIr::uninit(self.create_empty_handle(), input.shape.clone(), input.dtype);
        let outputs: Vec<TensorIr> = inputs.iter().map(output).collect();
        let changed = self.state().change(inputs, &outputs, work);
        surface(changed);
        let tensor =
            |output: TensorIr| RouterTensor::new(output.id, output.shape, output.dtype, self.clone());
        outputs.into_iter().map(tensor).collect()
    }
}

type Tensors<B> = Vec<RouterTensor<OffloadClient<B>>>;

/// Copies are separate operations: `work` needs no other tensors.
pub(super) fn in_place<B: SharedStorage>(
    tensors: Tensors<B>,
    work: &mut dyn FnMut(&mut [&mut [f32]]),
) -> Result<Tensors<B>, Tensors<B>> {
    let Some(client) = tensors.first().map(|tensor| tensor.client.clone()) else { return Ok(tensors) };
    if tensors.iter().any(|tensor| tensor.dtype() != DType::F32) {
        return Err(tensors);
    }
    let inputs = tensors.into_iter().map(|tensor| {
        let input = tensor.into_ir();
        let stays = client.state().keeps_storage(&input);
        if stays { input } else { client.changed(&[input], &mut |_| {}).remove(0).into_ir() }
    });
    let inputs: Vec<TensorIr> = inputs.collect();
    Ok(client.changed(&inputs, work))
}

impl<B: SharedStorage> RunnerClient for OffloadClient<B> {
    type Device = B::Device;

    fn register_op(&self, operation: OperationIr) {
        let executed = self.state().execute(&operation);
        surface(executed);
    }

    fn read_tensor_async(&self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        let data = self.state().read(&tensor);
        Box::pin(async move { data })
    }

    fn sync(&self) -> Result<(), ExecutionError> {
        self.state().take_failure()?;
        B::sync(&self.device)
    }

    fn create_empty_handle(&self) -> TensorId {
        // The counter is process-wide.
        Runner::<B>::new(self.device.clone()).create_empty_handle()
    }

    fn register_tensor_data(&self, data: TensorData) -> RouterTensor<Self> {
        if let Some(error) = data_refusal(data.dtype) {
            raise(&error);
        }
        self.create(data.shape.clone(), data.dtype, |device| upload::<B>(data, device))
    }

    fn device(&self) -> Self::Device {
        self.device.clone()
    }

    fn seed(&self, seed: u64) {
        B::seed(&self.device, seed);
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        if data_refusal(dtype).is_some() {
            DTypeUsageSet::empty()
        } else {
            B::dtype_usage(&self.device, dtype)
        }
    }
}

/// Panics on the caller's thread, without the lock.
fn surface(result: Result<(), Failure>) {
    match result {
        Ok(()) => {}
        Err(Failure::Memory(error)) => raise(&error),
        Err(Failure::Refused(error)) => raise(&error),
        Err(Failure::Panicked(panic)) => std::panic::resume_unwind(panic),
    }
}

/// This adapter's only panic.
pub(super) fn raise(error: &OffloadError) -> ! {
    panic!("{error}")
}
