//! A kernel that decodes tiles of 128 codes with a scale each, without intermediate memory
//! (`a_matrix_of_bytes_is_decoded_by_one_launch_to_the_bits_of_the_processor`).
//!
//! It reads words of four codes: not every runtime has bytes.

#![expect(
    clippy::used_underscore_binding,
    reason = "the kernel's macro reads the type that its body only names"
)]

use crate::backend::Decoding;
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::cubecl::{self, calculate_cube_count_elemwise, prelude::*};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionHandle};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use std::marker::PhantomData;

const WORD: usize = 4;

/// Each position decodes `V` numbers; `V` divides [`WORD`].
#[cube(launch)]
fn decode<N: Numeric, V: Size>(
    words: &Array<u32>,
    scales: &Array<f32>,
    numbers: &mut Array<Vector<N, V>>,
    #[comptime] tile: usize,
    #[comptime] floating: bool,
    #[define(N)] _kind: StorageType,
) {
    if ABSOLUTE_POS >= numbers.len() {
        terminate!();
    }
    let first = ABSOLUTE_POS * V::value();
    let word = words[first / WORD] >> (8 * (first % WORD) as u32);
    let scale = scales[first / tile];
    let mut decoded = Vector::<f32, V>::empty();
    #[unroll]
    for lane in 0..V::value() {
        let code = (word >> (8 * lane as u32)) & 0xff;
        let number = if floating { floating_number(code) } else { whole_number(code) };
        decoded[lane] = number * scale;
    }
    numbers[ABSOLUTE_POS] = Vector::cast_from(decoded);
}

#[cube]
fn whole_number(code: u32) -> f32 {
    f32::cast_from(code) - f32::cast_from((code >> 7) * 256)
}

/// Sign, four bits of exponent, three of mantissa. No operation rounds.
#[cube]
fn floating_number(code: u32) -> f32 {
    let exponent = (code >> 3) & 0xf;
    let normal = u32::cast_from(exponent != 0);
    // Subnormal numbers have the exponent of the smallest normal one.
    let mantissa = ((code & 7) + 8 * normal) << (exponent + 1 - normal);
    let sign = 1.0f32 - 2.0f32 * f32::cast_from(code >> 7);
    f32::cast_from(mantissa) * sign / 1024.0f32
}

fn launch<R: CubeRuntime>(codes: CubeTensor<R>, scales: CubeTensor<R>, decoding: &Decoding) -> CubeTensor<R> {
    let Decoding { tile, floating, ref shape, kind } = *decoding;
    let (client, device) = (codes.client.clone(), codes.device.clone());
    let numbers = empty_device_contiguous_dtype(client.clone(), device, shape.clone(), kind);
    let len = shape.num_elements();
    let widths = client.io_optimized_vector_sizes(kind.size());
    let width = widths.into_iter().find(|width| *width <= WORD && len % width == 0).unwrap_or(1);
    let positions = len / width;
    let cube_dim = CubeDim::new(&client, positions);
    let cubes = calculate_cube_count_elemwise(&client, positions, cube_dim);

    let tiles = len.div_ceil(tile);
    // SAFETY: codes and scales suffice for `len` numbers, by the caller, and all three buffers are contiguous.
    let [words, scales, out] = unsafe {
        [
            ArrayArg::from_raw_parts(codes.handle, tiles * tile / WORD),
            ArrayArg::from_raw_parts(scales.handle, tiles),
            ArrayArg::from_raw_parts(numbers.handle.clone(), len),
        ]
    };
    decode::launch(&client, cubes, cube_dim, width, words, scales, out, tile, floating, kind.into());
    numbers
}

pub(super) fn decoded<R: CubeRuntime>(
    codes: CubeTensor<R>,
    scales: CubeTensor<R>,
    decoding: &Decoding,
) -> CubeTensor<R> {
    launch(into_contiguous(codes), into_contiguous(scales), decoding)
}

/// Fusion sees only the kernel's inputs and outputs.
pub(super) fn decoded_behind_fusion<B: Kernel>(
    codes: IntTensor<Fusion<B>>,
    scales: FloatTensor<Fusion<B>>,
    decoding: &Decoding,
) -> FloatTensor<Fusion<B>> {
    let client = codes.client.clone();
    let streams = OperationStreams::with_inputs([&codes, &scales]);
    let numbers = TensorIr::uninit(client.create_empty_handle(), decoding.shape.clone(), decoding.kind);
    let operation = CustomOpIr::new("decode tiles", &[codes.into_ir(), scales.into_ir()], &[numbers]);
    let run = Behind::<B> { operation: operation.clone(), decoding: decoding.clone(), backend: PhantomData };
    client.register(streams, OperationIr::Custom(operation), run).remove(0)
}

pub(super) trait Kernel: FusionBackend {
    fn decoded(codes: IntTensor<Self>, scales: FloatTensor<Self>, decoding: &Decoding) -> FloatTensor<Self>;
}

impl<R, F, I, B> Kernel for CubeBackend<R, F, I, B>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    fn decoded(codes: IntTensor<Self>, scales: FloatTensor<Self>, decoding: &Decoding) -> FloatTensor<Self> {
        decoded(codes, scales, decoding)
    }
}

#[derive(Debug)]
struct Behind<B> {
    operation: CustomOpIr,
    decoding: Decoding,
    backend: PhantomData<B>,
}

impl<B: Kernel> Operation<B::FusionRuntime> for Behind<B> {
    fn execute(&self, handles: &mut HandleContainer<FusionHandle<B::FusionRuntime>>) {
        let ([codes, scales], [numbers]) = self.operation.as_fixed();
        let codes = handles.get_int_tensor::<B>(codes);
        let scales = handles.get_float_tensor::<B>(scales);
        let decoded = B::decoded(codes, scales, &self.decoding);
        handles.register_float_tensor::<B>(&numbers.id, decoded);
    }
}
