//! Eight-bit numbers for the link: tiles of 128 codes with one f32 scale.
//!
//! The scale is the largest magnitude divided by the largest code. If it is not normal, the tile becomes zero. A tile
//! with NaN or infinity decodes to NaN (`a_diverging_step_is_skipped_although_tiles_cannot_hold_nan`).

use rayon::prelude::*;

use crate::pieces::{PIECE, vectorised};

/// Numbers that share a scale.
pub const TILE: usize = 128;

const TILES: usize = PIECE / TILE;

/// Meaning of a byte, before scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Integer from -127 to 127.
    Int8,
    /// Floating point with four exponent and three mantissa bits (e4m3), up to 448.
    Fp8,
}

impl Code {
    /// Values of all 256 bytes, in order. Unused bytes are NaN.
    pub fn values(self) -> [f32; 256] {
        std::array::from_fn(|byte| match self {
            Self::Int8 => value_of_int8(byte as u8),
            Self::Fp8 => value_of_fp8(byte as u8),
        })
    }

    /// Largest magnitude of a code.
    pub fn top(self) -> f32 {
        match self {
            Self::Int8 => 127.0,
            Self::Fp8 => 448.0,
        }
    }
}

/// Tiles for `len` numbers.
pub fn tiles(len: usize) -> usize {
    len.div_ceil(TILE)
}

/// Bytes of `len` numbers in tiles.
pub fn tile_bytes(len: usize) -> usize {
    (TILE + size_of::<f32>()) * tiles(len)
}

/// For weights whose step failed.
pub(crate) fn nan_tiles(len: usize) -> Vec<u8> {
    let mut encoded = vec![0; TILE * tiles(len)];
    encoded.extend(std::iter::repeat_n(f32::NAN.to_ne_bytes(), tiles(len)).flatten());
    encoded
}

/// Encodes to nearest. Codes past the last number become zero. Panics unless `codes` and `scales` have the lengths for
/// [`tiles`].
pub fn encode(code: Code, numbers: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    assert_eq!((codes.len(), scales.len()), (TILE * tiles(numbers.len()), tiles(numbers.len())));
    let pieces = numbers.par_chunks(PIECE).zip(codes.par_chunks_mut(PIECE)).zip(scales.par_chunks_mut(TILES));
    pieces.for_each(|((numbers, codes), scales)| {
        vectorised(
            #[inline(always)]
            || {
                let tiles = numbers.chunks(TILE).zip(codes.as_chunks_mut::<TILE>().0).zip(scales);
                for ((numbers, codes), scale) in tiles {
                    let mut filled = [0.0; TILE];
                    let tile = <&[f32; TILE]>::try_from(numbers).unwrap_or_else(|_| {
                        filled[..numbers.len()].copy_from_slice(numbers);
                        &filled
                    });
                    *scale = match code {
                        Code::Int8 => encode_tile(tile, code.top(), codes, nearest_int8),
                        Code::Fp8 => encode_tile(tile, code.top(), codes, nearest_fp8),
                    };
                }
            },
        );
    });
}

/// Inverse of [`encode`]; panics like it.
pub fn decode(code: Code, codes: &[u8], scales: &[f32], numbers: &mut [f32]) {
    assert_eq!((codes.len(), scales.len()), (TILE * tiles(numbers.len()), tiles(numbers.len())));
    let pieces = numbers.par_chunks_mut(PIECE).zip(codes.par_chunks(PIECE)).zip(scales.par_chunks(TILES));
    pieces.for_each(|((numbers, codes), scales)| {
        vectorised(
            #[inline(always)]
            || {
                let tiles = numbers.chunks_mut(TILE).zip(codes.as_chunks::<TILE>().0).zip(scales);
                for ((numbers, codes), scale) in tiles {
                    match code {
                        Code::Int8 => decode_tile(codes, *scale, numbers, value_of_int8),
                        Code::Fp8 => decode_tile(codes, *scale, numbers, value_of_fp8),
                    }
                }
            },
        );
    });
}

#[inline(always)]
fn decode_tile(codes: &[u8; TILE], scale: f32, numbers: &mut [f32], value: impl Fn(u8) -> f32) {
    // A loop of constant length.
    if let Ok(numbers) = <&mut [f32; TILE]>::try_from(&mut *numbers) {
        for n in 0..TILE {
            numbers[n] = value(codes[n]) * scale;
        }
    } else {
        numbers.iter_mut().zip(codes).for_each(|(number, code)| *number = value(*code) * scale);
    }
}

#[inline(always)]
fn encode_tile(tile: &[f32; TILE], top: f32, codes: &mut [u8; TILE], nearest: impl Fn(f32) -> u8) -> f32 {
    // NaN has the largest bit pattern.
    let largest = f32::from_bits(tile.iter().fold(0, |most: u32, x| most.max(x.to_bits() & (u32::MAX >> 1))));
    let scale = largest / top;
    if !scale.is_normal() {
        codes.fill(0);
        return if largest.is_finite() { 0.0 } else { f32::NAN };
    }
    for n in 0..TILE {
        codes[n] = nearest(tile[n] / scale);
    }
    scale
}

/// Added to a number below 2²², it leaves the nearest integer in the lowest bits.
const WHOLE: f32 = 12_582_912.0;

#[inline(always)]
fn nearest_int8(share: f32) -> u8 {
    (share + WHOLE).to_bits() as u8
}

/// Bits of an f32 mantissa that e4m3 drops.
const CUT: u32 = 20;
/// Difference of the exponent biases.
const BIAS: u32 = 127 - 7;
const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
/// Codes below `SMALLEST_NORMAL` are multiples of 1 / `STEPS`.
const STEPS: f32 = 512.0;
/// The code of 448; the next one is NaN.
const TOP: u32 = 0x7e;

#[inline(always)]
fn nearest_fp8(share: f32) -> u8 {
    let (bits, sign) = (share.abs().to_bits(), (share.to_bits() >> 24) & 0x80);
    let even = bits.wrapping_add((1 << (CUT - 1)) - 1 + (bits >> CUT & 1));
    let normal = (even >> CUT).wrapping_sub(BIAS << 3);
    let small = (share.abs() * STEPS + WHOLE).to_bits() & 0xff;
    let code = if share.abs() < SMALLEST_NORMAL { small } else { normal.min(TOP) };
    (code | sign) as u8
}

#[inline(always)]
fn value_of_int8(byte: u8) -> f32 {
    if byte == 0x80 { f32::NAN } else { f32::from(byte as i8) }
}

#[inline(always)]
fn value_of_fp8(byte: u8) -> f32 {
    let magnitude = u32::from(byte & 0x7f);
    let small = magnitude as f32 / STEPS;
    let normal = f32::from_bits((magnitude + (BIAS << 3)) << CUT);
    let magnitude = match magnitude {
        0..8 => small,
        0x7f => f32::NAN,
        _ => normal,
    };
    f32::from_bits(magnitude.to_bits() | u32::from(byte & 0x80) << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: [Code; 2] = [Code::Int8, Code::Fp8];

    fn there_and_back(code: Code, numbers: &[f32]) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
        let count = tiles(numbers.len());
        let (mut codes, mut scales) = (vec![0xaa; TILE * count], vec![0.0; count]);
        encode(code, numbers, &mut codes, &mut scales);
        let mut back = vec![0.0; numbers.len()];
        decode(code, &codes, &scales, &mut back);
        (codes, scales, back)
    }

    fn spread(count: usize) -> Vec<f32> {
        (0..count).map(|n| ((n as f32 + 0.5) * 0.754_877_7).fract() * 2.0 - 1.0).collect()
    }

    #[test]
    fn every_finite_code_encodes_back_to_itself() {
        for code in CODES {
            let values = code.values();
            for byte in (0..=255u8).filter(|byte| values[usize::from(*byte)].is_finite()) {
                let value = values[usize::from(byte)];
                let found = if code == Code::Int8 { nearest_int8(value) } else { nearest_fp8(value) };
                assert_eq!(found, byte, "{value}");
            }
            let largest = values.iter().copied().filter(|value| value.is_finite()).fold(0.0, f32::max);
            assert_eq!(largest.to_bits(), code.top().to_bits());
        }
        let unused = |code: Code| (0..=255u8).filter(move |byte| code.values()[usize::from(*byte)].is_nan());
        assert!(unused(Code::Int8).eq([0x80]) && unused(Code::Fp8).eq([0x7f, 0xff]));
        assert_eq!(Code::Fp8.values()[1].to_bits(), (1.0f32 / 512.0).to_bits());
    }

    #[test]
    fn numbers_become_their_nearest_code() {
        for code in CODES {
            let values = code.values();
            let finite: Vec<f32> = values.into_iter().filter(|value| value.is_finite()).collect();
            for share in spread(5000).iter().map(|x| x * code.top()).chain([0.001, -0.0157, 0.0157]) {
                let found = values
                    [usize::from(if code == Code::Int8 { nearest_int8(share) } else { nearest_fp8(share) })];
                let nearest = finite.iter().map(|value| (value - share).abs()).fold(f32::MAX, f32::min);
                assert!((found - share).abs() <= nearest, "{share} became {found}");
            }
        }
    }

    #[test]
    fn decoded_numbers_are_within_half_a_step_at_any_length() {
        for len in [1, 127, 128, 129, 3 * PIECE + 5] {
            let numbers = spread(len);
            let (codes, scales, back) = there_and_back(Code::Int8, &numbers);
            for ((number, back), n) in numbers.iter().zip(&back).zip(0..) {
                assert!((number - back).abs() <= 0.5001 * scales[n / TILE], "{number} came back as {back}");
            }
            assert!(codes[len..].iter().all(|code| *code == 0), "what fills the last tile up is zero");
            let (_, _, back) = there_and_back(Code::Fp8, &numbers);
            for (number, back) in numbers.iter().zip(&back) {
                assert!((number - back).abs() <= number.abs() / 15.9 + 1e-5, "{number} came back as {back}");
            }
        }
    }

    #[test]
    fn an_outlier_costs_precision_in_its_own_tile_alone() {
        let mut numbers = spread(256);
        numbers[5] = 1e6;
        let (_, scales, back) = there_and_back(Code::Int8, &numbers);
        assert!(scales[1] < 0.01 && (back[200] - numbers[200]).abs() < 0.005);
        assert!((back[5] - 1e6).abs() < 1.0, "{}", back[5]);
        let (_, _, back) = there_and_back(Code::Fp8, &[448.0, 0.3]);
        assert!((back[1] - 0.3).abs() < 0.02, "{}", back[1]);
    }

    #[test]
    fn numbers_below_every_normal_scale_become_zero() {
        for code in CODES {
            for tiny in [0.0, -0.0, 1e-40, 1e-37] {
                let (codes, scales, back) = there_and_back(code, &[tiny; 130]);
                assert!(codes.iter().all(|code| *code == 0) && scales.iter().all(|scale| *scale == 0.0));
                assert!(back.iter().all(|back| *back == 0.0));
            }
        }
    }

    #[test]
    fn a_tile_with_nan_or_infinity_is_nan_and_its_neighbour_is_not() {
        for code in CODES {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut numbers = spread(256);
                numbers[3] = bad;
                let (_, _, back) = there_and_back(code, &numbers);
                assert!(
                    back[..TILE].iter().all(|x| x.is_nan()) && back[TILE..].iter().all(|x| x.is_finite())
                );
            }
        }
    }
}
