//! 8-bit tensors on the device: tiles of 128 numbers and a scale.
//!
//! Tests compare them with the host's. A tile with NaN or infinity decodes to NaN
//! (`zeros_stay_zero_and_nan_or_infinity_makes_its_tile_nan`).

use std::ops::Range;

use burn::module::Module;
use burn::tensor::{
    BasicOps, DType, ElementConversion, FloatDType, Int, IntDType, Shape, Tensor, TensorData,
    TensorPrimitive, backend::Backend,
};

use crate::random::{Random, combine};

/// Numbers that share a scale.
pub const TILE: usize = 128;

/// Numbers that share a scale under [`Code::Nf4`].
pub const NF4_TILE: usize = 64;

const TOP: f32 = 127.0;

/// The codes' number system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// An integer from -127 to 127.
    Int8,
    /// An e4m3 float: four exponent bits, three of mantissa, up to 448.
    Fp8,
    /// Two indices of [`NF4`] a byte, the first in the high half.
    Nf4,
}

impl Code {
    fn tile(self) -> usize {
        match self {
            Self::Int8 | Self::Fp8 => TILE,
            Self::Nf4 => NF4_TILE,
        }
    }
}

/// The values of `QLoRA`'s 4-bit codes.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Rounding to an integer code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest.
    Nearest,
    /// To a neighbour at random, unbiased, by the key.
    Random {
        /// Key of the tensor.
        key: u64,
    },
}

impl Rounding {
    fn for_part(self, part: u64) -> Self {
        match self {
            Self::Nearest => self,
            Self::Random { key } => Self::Random { key: combine(&[key, part]) },
        }
    }
}

/// A tensor in tiles, the last padded.
#[derive(Module, Debug)]
pub struct Tiles<B: Backend> {
    /// `[tiles, 128]`, one byte per number; `[tiles, 32]` in [`Code::Nf4`].
    pub codes: Tensor<B, 2, Int>,
    /// `[tiles, 1]`.
    pub scales: Tensor<B, 2>,
}

impl<B: Backend> Tiles<B> {
    /// The numbers, in this shape and type.
    pub fn decode<const D: usize>(&self, code: Code, shape: impl Into<Shape>, kind: DType) -> Tensor<B, D> {
        self.decode_by(DECODED_AT_ONCE, code, shape.into(), kind)
    }

    pub(crate) fn decode_by<const D: usize>(
        &self,
        at_once: usize,
        code: Code,
        shape: Shape,
        kind: DType,
    ) -> Tensor<B, D> {
        let len = shape.num_elements();
        let tiles = self.codes.dims()[0];
        let pieces = ranges(tiles, at_once).map(|range| {
            let piece = Self {
                codes: part(self.codes.clone(), range.clone()),
                scales: part(self.scales.clone(), range),
            };
            piece.numbers(code).cast(kind)
        });
        let flat: Tensor<B, 1> = joined(pieces.collect()).reshape([tiles * code.tile()]);
        part(flat, 0..len).reshape(shape)
    }

    fn numbers(self, code: Code) -> Tensor<B, 2> {
        let shares = match code {
            Code::Int8 => wide(self.codes),
            Code::Fp8 => fp8_values(self.codes),
            Code::Nf4 => nf4_values(self.codes),
        };
        shares * self.scales
    }

    /// NaN or infinity makes its tile's scale NaN.
    pub fn encode<const D: usize>(tensor: Tensor<B, D>, rounding: Rounding) -> Self {
        let len = tensor.shape().num_elements();
        let flat: Tensor<B, 1> = tensor.reshape([len]);
        let parts: Vec<_> = ranges(len, AT_ONCE * TILE).map(|range| part(flat.clone(), range)).collect();
        // Free the copy before encoding the parts.
        drop(flat);
        let pieces = (0..).zip(parts).map(|(n, part)| {
            let Self { codes, scales } = Self::encoded(part, rounding.for_part(n));
            (codes, scales)
        });
        let (codes, scales) = pieces.unzip();
        Self { codes: joined(codes), scales: joined(scales) }
    }

    fn encoded(numbers: Tensor<B, 1>, rounding: Rounding) -> Self {
        let numbers = numbers.cast(DType::F32);
        let (device, [len]) = (numbers.device(), numbers.dims());
        let tiles = len.div_ceil(TILE);
        let zeros = |count: usize| Tensor::zeros([count], (&device, DType::F32));
        let rest = tiles * TILE - len;
        let filled = if rest == 0 { numbers } else { Tensor::cat(vec![numbers, zeros(rest)], 0) };
        let numbers = filled.reshape([tiles, TILE]);
        // Some backends' row maximum ignores NaN.
        let unusable = numbers.clone().mul_scalar(0.0).sum_dim(1);
        let scales = numbers.clone().abs().max_dim(1).div_scalar(TOP);
        let tiny = scales.clone().lower_elem(f32::MIN_POSITIVE);
        let divisors = scales.clone().mask_fill(tiny.clone(), 1.0);
        let shares = (numbers / divisors).mask_fill(tiny.clone(), 0.0);
        let raised = match rounding {
            Rounding::Nearest => shares.add_scalar(0.5),
            Rounding::Random { key } => shares + thresholds::<B>(tiles, key, &device),
        };
        let codes = raised.floor().clamp(-TOP, TOP);
        let codes = B::float_into_int(codes.into_primitive().tensor(), IntDType::I8);
        Self { codes: Tensor::from_primitive(codes), scales: scales.mask_fill(tiny, 0.0) + unusable }
    }
}

/// Tiles encoded at once: each operation holds three tensors of four bytes a number. Affects rounding's random bits.
pub const AT_ONCE: usize = 1 << 15;
/// Tiles decoded at once, few beside the matrix. Affects no bits.
pub const DECODED_AT_ONCE: usize = 1 << 11;

fn ranges(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(most).map(move |start| start..(start + most).min(len))
}

fn part<B: Backend, K: BasicOps<B>, const D: usize>(
    whole: Tensor<B, D, K>,
    range: Range<usize>,
) -> Tensor<B, D, K> {
    if range == (0..whole.dims()[0]) { whole } else { whole.slice_dim(0, range) }
}

fn joined<B: Backend, K: BasicOps<B>>(mut pieces: Vec<Tensor<B, 2, K>>) -> Tensor<B, 2, K> {
    if pieces.len() == 1 { pieces.remove(0) } else { Tensor::cat(pieces, 0) }
}

/// Burn's router cannot cast between integer types.
fn wide<B: Backend>(codes: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    let codes = B::int_into_float(codes.into_primitive(), FloatDType::F32);
    Tensor::from_primitive(TensorPrimitive::Float(codes))
}

/// Decodes by table: bit fields take five times as many passes.
fn fp8_values<B: Backend>(codes: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    by_table(codes, |code| [fp8_value(code)])
}

fn nf4_values<B: Backend>(codes: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    by_table(codes, |code| [code >> 4, code & 15].map(|half| NF4[usize::from(half)]))
}

fn by_table<B: Backend, const N: usize>(
    codes: Tensor<B, 2, Int>,
    values: impl Fn(u8) -> [f32; N],
) -> Tensor<B, 2> {
    let (device, [tiles, width]) = (codes.device(), codes.dims());
    let table = (i8::MIN..=i8::MAX).flat_map(|code| values(code as u8)).collect::<Vec<_>>();
    let table = Tensor::<B, 2>::from_data(TensorData::new(table, [256, N]), (&device, DType::F32));
    let places = wide(codes).sub_scalar(f32::from(i8::MIN));
    let places = B::float_into_int(places.into_primitive().tensor(), IntDType::I32);
    let places = Tensor::<B, 2, Int>::from_primitive(places).reshape([tiles * width]);
    table.select(0, places).reshape([tiles, N * width])
}

fn fp8_value(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    // Subnormal numbers have no leading one.
    let magnitude = if exponent == 0 { mantissa } else { (mantissa + 8.0) * 2_f32.powi(exponent - 1) };
    (if code < 128 { magnitude } else { -magnitude }) / 512.0
}

const RESULTS: i32 = 1 << 16;
const GROUP: usize = 256;

/// Uniform in (0, 1), `[tiles, 128]`:
///
/// ```text
/// ((p · m + a) mod 2¹⁶ + ½) / 2¹⁶          p, m < 2¹⁵, a < 2¹⁶, m odd
/// ```
///
/// The host draws p per column. A tile's m and a sum a draw for its group and one for its place there: little crosses
/// the link.
fn thresholds<B: Backend>(tiles: usize, key: u64, device: &B::Device) -> Tensor<B, 2> {
    let mut random = Random::new(key);
    let mut draw = |count: usize, below: u64| -> Vec<i32> {
        (0..count).map(|_| (random.bits() % below) as i32).collect()
    };
    let list = |numbers: Vec<i32>, shape: [usize; 2]| {
        Tensor::<B, 2, Int>::from_data(TensorData::new(numbers, shape), device)
    };
    let groups = tiles.div_ceil(GROUP);
    let mut per_tile = |below: u64| {
        let per_group = list(draw(groups, below), [groups, 1]);
        let spread = per_group + list(draw(GROUP, below), [1, GROUP]);
        spread.bitwise_and_scalar((below as i32 - 1).elem()).reshape([groups * GROUP, 1]).slice(0..tiles)
    };
    let factors = per_tile(1 << 15).bitwise_or_scalar(1.elem());
    let offsets = per_tile(1 << 16);
    let columns = list(draw(TILE, 1 << 15), [1, TILE]);
    let results = (columns * factors + offsets).bitwise_and_scalar((RESULTS - 1).elem());
    results.float().cast(DType::F32).add_scalar(0.5).div_scalar(RESULTS as f32)
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};

    use super::*;

    fn tensor(numbers: Vec<f32>) -> Tensor<Flex, 1> {
        let len = numbers.len();
        Tensor::from_data(TensorData::new(numbers, [len]), &FlexDevice)
    }

    fn round_trip(numbers: &[f32], key: u64) -> Vec<f32> {
        rounded(numbers, Rounding::Random { key })
    }

    fn rounded(numbers: &[f32], rounding: Rounding) -> Vec<f32> {
        let tiles = Tiles::encode(tensor(numbers.to_vec()), rounding);
        let codes: Vec<i64> = tiles.codes.clone().into_data().iter().collect();
        assert!(codes.iter().all(|code| (-127..=127).contains(code)));
        tiles.decode::<1>(Code::Int8, [numbers.len()], DType::F32).into_data().to_vec().unwrap()
    }

    #[test]
    fn random_rounding_picks_a_neighbour_and_is_unbiased() {
        let numbers: Vec<f32> = (0..300).map(|n| (n as f32 * 0.618).fract() * 2.0 - 1.0).collect();
        let mut sums = vec![0.0; numbers.len()];
        let rounds = 400;
        for key in 0..rounds {
            for (n, back) in round_trip(&numbers, key).into_iter().enumerate() {
                assert!((back - numbers[n]).abs() < 1.0 / 126.9, "{} became {back}", numbers[n]);
                sums[n] += back;
            }
        }
        let errors = sums.iter().zip(&numbers).map(|(sum, number)| sum / rounds as f32 - number);
        let largest = errors.clone().fold(0.0, |most: f32, error| most.max(error.abs()));
        let mean = errors.sum::<f32>() / numbers.len() as f32;
        // Five standard deviations of one rounding, and of the mean of 400.
        assert!(largest < 5.0 / 127.0 / 40.0 && mean.abs() < 1e-4, "{largest} and {mean}");
    }

    #[test]
    fn nearest_rounding_is_at_most_half_a_step_off() {
        let numbers: Vec<f32> = (0..300).map(|n| (n as f32 * 0.618).fract() * 2.0 - 1.0).collect();
        let back = rounded(&numbers, Rounding::Nearest);
        assert!(numbers.iter().zip(&back).all(|(number, back)| (number - back).abs() < 0.5 / 126.9));
    }

    #[test]
    fn equal_keys_round_alike_and_others_do_not() {
        let numbers: Vec<f32> = (0..256).map(|n| (n as f32).sin()).collect();
        assert_eq!(round_trip(&numbers, 1), round_trip(&numbers, 1));
        assert_ne!(round_trip(&numbers, 1), round_trip(&numbers, 2));
    }

    #[test]
    fn neighbours_are_rounded_independently() {
        let same = vec![0.5 / 127.0; 127 * 512];
        let mut numbers = vec![];
        for tile in same.chunks(127) {
            numbers.push(1.0);
            numbers.extend(tile);
        }
        let up: Vec<bool> = round_trip(&numbers, 3).iter().map(|back| *back > 0.0).collect();
        let share = |pairs: &mut dyn Iterator<Item = (bool, bool)>| {
            let (alike, all) =
                pairs.fold((0, 0), |(alike, all), (a, b)| (alike + u32::from(a == b), all + 1));
            f64::from(alike) / f64::from(all)
        };
        let inside = (0..up.len() - 1).filter(|n| n % TILE > 0 && n % TILE < TILE - 1);
        let across = share(&mut inside.map(|n| (up[n], up[n + 1])));
        let below = share(&mut (0..up.len() - TILE).filter(|n| n % TILE > 0).map(|n| (up[n], up[n + TILE])));
        assert!((across - 0.5).abs() < 0.03 && (below - 0.5).abs() < 0.03, "{across} and {below}");
    }

    #[test]
    fn tensors_larger_than_one_part_survive_a_round_trip() {
        let numbers: Vec<f32> = (0..AT_ONCE * TILE + 70).map(|n| (n as f32 * 0.618).fract() - 0.5).collect();
        assert!(numbers.len() > DECODED_AT_ONCE * TILE);
        let back = round_trip(&numbers, 4);
        assert_eq!(back.len(), numbers.len());
        assert!(numbers.iter().zip(&back).all(|(number, back)| (number - back).abs() < 0.5 / 126.0));
    }

    #[test]
    fn zeros_stay_zero_and_nan_or_infinity_makes_its_tile_nan() {
        assert!(round_trip(&[0.0; 130], 5).iter().all(|back| *back == 0.0));
        assert!(round_trip(&[1e-40; 130], 5).iter().all(|back| *back == 0.0));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut numbers = vec![0.25; 300];
            numbers[130] = bad;
            let back = round_trip(&numbers, 7);
            assert!(back[TILE..2 * TILE].iter().all(|x| x.is_nan()), "{bad}");
            assert!(back[..TILE].iter().chain(&back[2 * TILE..]).all(|x| (x - 0.25).abs() < 0.01));
        }
    }

    #[test]
    fn fp8_codes_decode_by_their_bit_fields() {
        let bytes = (0..=255u8).map(|byte| byte as i8).collect();
        let codes = Tensor::<Flex, 2, Int>::from_data(TensorData::new(bytes, [2, TILE]), &FlexDevice);
        let tiles = Tiles { codes, scales: Tensor::from_data([[1.0], [2.0]], &FlexDevice) };
        let read: Vec<f32> =
            tiles.decode::<1>(Code::Fp8, [2 * TILE], DType::F32).into_data().to_vec().unwrap();
        for (byte, value) in [(0, 0.0), (1, 1.0 / 512.0), (7, 7.0 / 512.0), (8, 1.0 / 64.0), (0x38, 1.0)] {
            assert_eq!(read[byte].to_bits(), f32::to_bits(value), "{byte}");
        }
        assert_eq!((read[0x39], read[0x7e], read[0xb8], read[0xfe]), (1.125, 448.0, -2.0, -896.0));
    }
}
