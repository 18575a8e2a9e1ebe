//! The supported CubeCL backends, with and without fusion, plain and offloaded.

use super::adapter::CubeDoor;
use super::inner::{InnerRuntime, Reaches};
use super::runtime::OffloadRuntime;
use super::server::OffloadServer;
use super::tiles;
use crate::backend::{Decoding, Managed, Offloadable, Spilling, sealed};
use burn_backend::ops::{FloatTensorOps, IntTensorOps};
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_backend::{DType, DeviceOps, Shape, TensorData, TensorMetadata};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, FloatElement, IntElement};
use burn_fusion::stream::OperationStreams;
use burn_fusion::{Fusion, FusionBackend, FusionHandle, FusionTensor, NoOp, get_client};
use burn_ir::{BackendIr, InitOperationIr, OperationIr};
use cubecl_common::bytes::Bytes;
use cubecl_common::device::Device;
use cubecl_common::device_handle::DeviceHandle;
use cubecl_core::client::ComputeClient;
use cubecl_core::server::{ComputeServer, CopyDescriptor, MemoryLayout};
use cubecl_core::zspace::metadata::Metadata;
use pager::Preference;

impl<R: InnerRuntime> sealed::Sealed for OffloadRuntime<R> {}

impl<R: InnerRuntime> Reaches for OffloadRuntime<R> {
    type Inner = R;

    fn create(
        client: &ComputeClient<Self>,
        device: &R::Device,
        bytes: Bytes,
        shape: &Shape,
        elem_size: usize,
    ) -> Result<MemoryLayout, Bytes> {
        let layout = client.empty_tensor(shape.clone(), elem_size);
        let (handle, strides) = (layout.memory.clone(), layout.strides.clone());
        let stream = handle.stream;
        let descriptor = CopyDescriptor::new(handle.binding(), shape.clone(), strides, elem_size);
        DeviceHandle::<OffloadServer<R>>::new(device.to_id())
            .submit(move |server| server.write(vec![(descriptor, bytes)], stream));
        Ok(layout)
    }
}

fn without_copy<R: Reaches>(data: TensorData, device: &R::Device) -> Result<CubeTensor<R>, TensorData>
where
    R::Device: DeviceOps,
{
    let TensorData { bytes, shape, dtype } = data;
    let client = R::client(device);
    match R::create(&client, device, bytes, &shape, dtype.size()) {
        Ok(MemoryLayout { memory, strides }) => {
            Ok(CubeTensor::new(client, memory, Metadata::new(shape, strides), device.clone(), dtype))
        }
        Err(bytes) => Err(TensorData { bytes, shape, dtype }),
    }
}

/// A tensor behind fusion.
fn registered<B: FusionBackend>(
    handle: FusionHandle<B::FusionRuntime>,
    (shape, dtype): (Shape, DType),
    device: &B::Device,
) -> FusionTensor<B::FusionRuntime> {
    let client = get_client::<B>(device);
    let operation = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
    client.register(OperationStreams::default(), OperationIr::Init(operation), NoOp::<B>::new()).remove(0)
}

impl<R, F, I, B> sealed::Sealed for CubeBackend<R, F, I, B>
where
    R: Reaches,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
}

impl<R, F, I, B> Managed for CubeBackend<R, F, I, B>
where
    R: Reaches,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    type Door = CubeDoor<R::Inner>;

    fn float_without_copy(data: TensorData, device: &R::Device) -> FloatTensor<Self> {
        without_copy::<R>(data, device).unwrap_or_else(|data| Self::float_from_data(data, device))
    }

    fn int_without_copy(data: TensorData, device: &R::Device) -> IntTensor<Self> {
        without_copy::<R>(data, device).unwrap_or_else(|data| Self::int_from_data(data, device))
    }

    fn decode_tiles(
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        decoding: &Decoding,
    ) -> Option<FloatTensor<Self>> {
        let fits = decoding.fits(bytes(&codes), scales.shape().num_elements());
        fits.then(|| tiles::decoded(codes, scales, decoding))
    }
}

impl<R, F, I, B> Spilling for CubeBackend<OffloadRuntime<R>, F, I, B>
where
    R: InnerRuntime,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    fn prefer(tensor: FloatTensor<Self>, preference: Preference) {
        let CubeTensor { handle, device, .. } = tensor;
        super::adapter::prefer::<R>(&device, &handle.binding(), preference);
    }
}

impl<R, F, I, B> Offloadable for CubeBackend<R, F, I, B>
where
    R: InnerRuntime,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    type Offloaded = CubeBackend<OffloadRuntime<R>, F, I, B>;
}

impl<R, F, I, B> sealed::Sealed for Fusion<CubeBackend<R, F, I, B>>
where
    R: Reaches,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
}

impl<R, F, I, B> Managed for Fusion<CubeBackend<R, F, I, B>>
where
    R: Reaches,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    type Door = CubeDoor<R::Inner>;

    fn float_without_copy(data: TensorData, device: &R::Device) -> FloatTensor<Self> {
        let kind = (data.shape.clone(), data.dtype);
        let tensor = CubeBackend::<R, F, I, B>::float_without_copy(data, device);
        let handle = CubeBackend::<R, F, I, B>::float_tensor_handle(tensor);
        registered::<CubeBackend<R, F, I, B>>(handle, kind, device)
    }

    fn int_without_copy(data: TensorData, device: &R::Device) -> IntTensor<Self> {
        let kind = (data.shape.clone(), data.dtype);
        let tensor = CubeBackend::<R, F, I, B>::int_without_copy(data, device);
        let handle = CubeBackend::<R, F, I, B>::int_tensor_handle(tensor);
        registered::<CubeBackend<R, F, I, B>>(handle, kind, device)
    }

    fn decode_tiles(
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        decoding: &Decoding,
    ) -> Option<FloatTensor<Self>> {
        let fits = decoding.fits(bytes(&codes), scales.shape().num_elements());
        fits.then(|| tiles::decoded_behind_fusion::<CubeBackend<R, F, I, B>>(codes, scales, decoding))
    }
}

fn bytes(tensor: &impl TensorMetadata) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

impl<R, F, I, B> Spilling for Fusion<CubeBackend<OffloadRuntime<R>, F, I, B>>
where
    R: InnerRuntime,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    /// Has fusion compute the tensor first: without memory it has no place.
    fn prefer(tensor: FloatTensor<Self>, preference: Preference) {
        let client = tensor.client.clone();
        let tensor = client.resolve_tensor_float::<CubeBackend<OffloadRuntime<R>, F, I, B>>(tensor);
        CubeBackend::<OffloadRuntime<R>, F, I, B>::prefer(tensor, preference);
    }
}

impl<R, F, I, B> Offloadable for Fusion<CubeBackend<R, F, I, B>>
where
    R: InnerRuntime,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    type Offloaded = Fusion<CubeBackend<OffloadRuntime<R>, F, I, B>>;
}
