//! Runs one operation on the backend underneath.
//!
//! Burn's [`Runner`] hides its handles and is lost after a panic, so it serves one operation. Handles move in and out
//! under the operation's ids, which keeps reference counts for updates in place.

use burn_backend::Shape;
use burn_backend::{ExecutionError, TensorData};
use burn_ir::{BackendIr, BaseOperationIr, OperationIr, PermuteOpIr, TensorHandle, TensorIr, TensorStatus};
use burn_router::{Runner, RunnerClient};

pub struct Scratch<B: BackendIr>(Runner<B>);

impl<B: BackendIr> Scratch<B> {
    pub fn new(device: &B::Device) -> Self {
        Self(Runner::new(device.clone()))
    }

    pub fn put(&self, ir: &TensorIr, handle: B::Handle) {
        let parked = self.0.register_tensor(handle, ir.shape.clone(), ir.dtype, self.0.clone()).into_ir();
        // Callers choose ids of registered handles, not of outputs: permute by the identity.
        let rename = BaseOperationIr::Permute(PermuteOpIr {
            input: parked,
            out: TensorIr { status: TensorStatus::NotInit, ..ir.clone() },
            axes: (0..ir.shape.num_dims()).collect(),
        });
        self.0.register_op(if ir.dtype.is_float() {
            OperationIr::BaseFloat(rename)
        } else if ir.dtype.is_bool() {
            OperationIr::BaseBool(rename)
        } else {
            OperationIr::BaseInt(rename)
        });
    }

    pub fn run(&self, operation: OperationIr) {
        self.0.register_op(operation);
    }

    pub fn take(&self, ir: &TensorIr) -> B::Handle {
        self.0.get_tensor_handle(&TensorIr { status: TensorStatus::ReadWrite, ..ir.clone() })
    }
}

/// The runner's upload loses unsigned integers.
pub fn upload<B: BackendIr>(data: TensorData, device: &B::Device) -> B::Handle {
    if data.dtype.is_float() {
        B::float_tensor_handle(B::float_from_data(data, device))
    } else if data.dtype.is_bool() {
        B::bool_tensor_handle(B::bool_from_data(data, device))
    } else {
        B::int_tensor_handle(B::int_from_data(data, device))
    }
}

pub fn download<B: BackendIr>(
    handle: B::Handle,
    shape: Shape,
    dtype: burn_backend::DType,
) -> Result<TensorData, ExecutionError> {
    let handle = TensorHandle { handle, shape };
    if dtype.is_float() {
        wait(B::float_into_data(B::float_tensor(handle)))
    } else if dtype.is_bool() {
        wait(B::bool_into_data(B::bool_tensor(handle)))
    } else {
        wait(B::int_into_data(B::int_tensor(handle)))
    }
}

fn wait(
    read: impl Future<Output = Result<TensorData, ExecutionError>>,
) -> Result<TensorData, ExecutionError> {
    burn_backend::try_read_sync(read).expect("a backend in this process can be waited for")
}
