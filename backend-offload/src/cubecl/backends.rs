//! The supported CubeCL backends, with and without fusion, plain and offloaded.

use super::adapter::CubeDoor;
use super::inner::{InnerRuntime, Reaches};
use super::runtime::OffloadRuntime;
use super::tiles;
use crate::backend::{Decoding, Managed, Offloadable, Spilling, sealed};
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_backend::{DeviceOps, TensorMetadata};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, FloatElement, IntElement};
use burn_fusion::Fusion;
use pager::Preference;

impl<R: InnerRuntime> sealed::Sealed for OffloadRuntime<R> {}

impl<R: InnerRuntime> Reaches for OffloadRuntime<R> {
    type Inner = R;
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
