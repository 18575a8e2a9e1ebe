//! The channel by which Burn's router finds these devices.

use super::client::{OffloadClient, raise};
use super::storage::SharedStorage;
use super::{Simulated, facts, key};
use crate::registry;
use burn_backend::{DType, Shape};
use burn_ir::{TensorHandle, TensorIr};
use burn_router::{MultiBackendBridge, RouterTensor, RunnerChannel};
use std::marker::PhantomData;

pub struct OffloadChannel<B>(PhantomData<fn() -> B>);

impl<B> Clone for OffloadChannel<B> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<B: SharedStorage> RunnerChannel for OffloadChannel<B> {
    type Device = B::Device;
    type Bridge = BetweenDevices<B>;
    type Client = OffloadClient<B>;
    type FloatElem = B::FloatElem;
    type IntElem = B::IntElem;
    type BoolElem = B::BoolElem;

    fn name(device: &Self::Device) -> String {
        format!("offload<{}>", B::name(device))
    }

    fn init_client(device: &Self::Device) -> Self::Client {
        let key = key::<Simulated<B>, _>(device);
        if let Err(error) = registry::prepare(key, || Ok(facts::<B>(device))) {
            raise(&error);
        }
        let settings = registry::start(key).expect("prepared above, and the router starts a device once");
        OffloadClient::new(device.clone(), &settings)
    }

    fn get_tensor_handle(tensor: &TensorIr, client: &Self::Client) -> B::Handle {
        client.take(tensor)
    }

    fn register_tensor(
        client: &Self::Client,
        handle: B::Handle,
        shape: Shape,
        dtype: DType,
    ) -> RouterTensor<Self::Client> {
        client.put(handle, shape, dtype)
    }
}

/// As the backend moves them.
pub struct BetweenDevices<B>(PhantomData<fn() -> B>);

impl<B: SharedStorage> MultiBackendBridge for BetweenDevices<B> {
    type TensorHandle = B::Handle;
    type Device = B::Device;

    fn change_backend_float(handle: B::Handle, shape: Shape, target: &B::Device) -> B::Handle {
        let tensor = B::float_tensor(TensorHandle { handle, shape });
        B::float_tensor_handle(B::float_to_device(tensor, target))
    }

    fn change_backend_int(handle: B::Handle, shape: Shape, target: &B::Device) -> B::Handle {
        let tensor = B::int_tensor(TensorHandle { handle, shape });
        B::int_tensor_handle(B::int_to_device(tensor, target))
    }

    fn change_backend_bool(handle: B::Handle, shape: Shape, target: &B::Device) -> B::Handle {
        let tensor = B::bool_tensor(TensorHandle { handle, shape });
        B::bool_tensor_handle(B::bool_to_device(tensor, target))
    }
}
