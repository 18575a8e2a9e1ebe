//! One launch decodes matrices of bytes with a scale per 128, to the processor's bits.

use super::{Machine, Plain, Spilling, Target, children, install, promises};
use crate::child::Facts;
use backend_offload::{Decoding, Managed, stats};
use burn::prelude::*;
use burn::tensor::{DType, TensorPrimitive};

children! { "cube/tiles" => decoded }

promises! {
    stand_in { a_matrix_of_bytes_is_decoded_by_one_launch_to_the_bits_of_the_processor: Every }
    vulkan {}
    full { a_matrix_of_bytes_is_decoded_by_one_launch_to_the_bits_of_the_processor }
}

const TILE: usize = 128;

fn number(code: u8, floating: bool) -> f32 {
    if !floating {
        return f32::from(code as i8);
    }
    let (exponent, mantissa) = (i32::from(code >> 3 & 0xf), f32::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Scales include zero and NaN.
fn tiles(count: usize) -> (Vec<u8>, Vec<f32>) {
    let codes = (0..count * TILE).map(|at| (at * 37 + at / 256) as u8).collect();
    let scales = (0..count).map(|tile| match tile % 5 {
        1 => 0.0,
        3 => f32::NAN,
        _ => 0.3 + tile as f32 / 7.0,
    });
    (codes, scales.collect())
}

/// As words on runtimes without bytes.
fn codes_of<B: Backend>(codes: &[u8], device: &B::Device) -> Tensor<B, 2, Int> {
    let count = codes.len() / TILE;
    let data = if B::supports_dtype(device, DType::I8) {
        TensorData::new(codes.iter().map(|code| *code as i8).collect(), [count, TILE])
    } else {
        let words = codes.as_chunks().0.iter().map(|word| i32::from_le_bytes(*word));
        TensorData::new(words.collect(), [count, TILE / 4])
    };
    Tensor::from_primitive(B::int_from_data(data, device))
}

fn decoded<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    let (mut wrong, mut launches, mut all) = (0, 0, 0);
    let bf16 = Spilling::<T>::supports_dtype(&device, DType::BF16).then_some(DType::BF16);
    for (shape, floating) in [[3, 5], [7, 23], [30, 128], [17, 66], [512, 300]]
        .into_iter()
        .flat_map(|shape| [(shape, false), (shape, true)])
    {
        for kind in [DType::F32].into_iter().chain(bf16) {
            let (found, took) = run::<T>(&device, shape, floating, kind);
            (wrong, launches, all) = (wrong + found, launches + took, all + 1);
        }
    }
    Facts::default().with("wrong", wrong).with("launches", launches).with("matrices", all)
}

fn run<T: Target>(device: &T::Device, shape: [usize; 2], floating: bool, kind: DType) -> (usize, u64) {
    type Numbers<T> = Tensor<Spilling<T>, 2>;
    let len = shape[0] * shape[1];
    let (codes, scales) = tiles(len.div_ceil(TILE));
    let codes_there = codes_of::<Spilling<T>>(&codes, device);
    let scales_there = Numbers::<T>::from_data(TensorData::new(scales.clone(), [scales.len(), 1]), device);
    let sync = || Spilling::<T>::sync(device).expect("nothing has failed");
    sync();
    let before = stats::<Plain<T>>(device).launches;
    let decoding = Decoding { tile: TILE, floating, shape: shape.into(), kind };
    let (codes_there, scales_there) = (codes_there.into_primitive(), scales_there.into_primitive().tensor());
    let numbers = Spilling::<T>::decode_tiles(codes_there, scales_there, &decoding).expect("a kernel");
    sync();
    let launches = stats::<Plain<T>>(device).launches - before;
    let numbers = Numbers::<T>::from_primitive(TensorPrimitive::Float(numbers));
    assert_eq!((numbers.dims(), numbers.dtype()), (shape, kind));
    let expected = (0..len).map(|at| number(codes[at], floating) * scales[at / TILE]);
    let expected = TensorData::new(expected.collect(), [len]).convert_dtype(kind).convert_dtype(DType::F32);
    let found = numbers.into_data().convert_dtype(DType::F32);
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    (found.iter().zip(expected.iter()).filter(|(found, expected)| !same(*found, *expected)).count(), launches)
}

fn a_matrix_of_bytes_is_decoded_by_one_launch_to_the_bits_of_the_processor(machine: &Machine) {
    let tight = machine.child("cube/tiles").with("budget", 1).with("alone", true).with("smallest", 1);
    for child in [machine.child("cube/tiles"), tight] {
        let report = machine.run(child);
        assert_eq!((report.number("wrong"), report.number("launches")), (0, report.number("matrices")));
    }
}
