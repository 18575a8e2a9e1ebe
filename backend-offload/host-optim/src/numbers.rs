//! Types of weights, moments and gradients, and rounding to bf16.

use std::ops::Range;

use bytemuck::Pod;
use half::bf16;

/// Numbers read from a device.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Upper half of an f32.
    Bf16(&'a [bf16]),
}

/// Numbers to be written to a device.
#[derive(Debug)]
pub enum ValuesMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Upper half of an f32.
    Bf16(&'a mut [bf16]),
}

impl Values<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the type is bf16.
    pub fn is_narrow(&self) -> bool {
        matches!(self, Self::Bf16(_))
    }

    pub(crate) fn part(&self, range: Range<usize>) -> Values<'_> {
        match self {
            Self::F32(values) => Values::F32(&values[range]),
            Self::Bf16(values) => Values::Bf16(&values[range]),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::Bf16(values) => bytemuck::cast_slice(values),
        }
    }
}

impl ValuesMut<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.values().len()
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn part(&mut self, range: Range<usize>) -> ValuesMut<'_> {
        match self {
            Self::F32(values) => ValuesMut::F32(&mut values[range]),
            Self::Bf16(values) => ValuesMut::Bf16(&mut values[range]),
        }
    }

    pub(crate) fn fill_with_nan(&mut self) {
        match self {
            Self::F32(values) => values.fill(f32::NAN),
            Self::Bf16(values) => values.fill(bf16::NAN),
        }
    }

    pub(crate) fn values(&self) -> Values<'_> {
        match self {
            Self::F32(values) => Values::F32(values),
            Self::Bf16(values) => Values::Bf16(values),
        }
    }
}

/// A storage type; arithmetic is in f32.
pub(crate) trait Number: Pod + Send + Sync {
    fn wide(self) -> f32;
    /// Rounds up or down by `noise`. The mean over random `noise` is `value`.
    fn rounded(value: f32, noise: u32) -> Self;
    /// Infinity and NaN have the highest magnitudes.
    #[inline(always)]
    fn upper_magnitude(self) -> u16 {
        (self.wide().to_bits() >> 16) as u16 & 0x7fff
    }
}

impl Number for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn rounded(value: f32, _noise: u32) -> Self {
        value
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn rounded(value: f32, noise: u32) -> Self {
        let bits = value.to_bits();
        let noisy = bits.wrapping_add(noise >> 16);
        // Infinity must not become NaN, nor NaN finite.
        let bits = if value.is_finite() { noisy } else { bits };
        Self::from_bits((bits >> 16) as u16)
    }
}

/// Ties go away from zero: the difference fits 16 signed bits.
#[inline(always)]
pub(crate) fn nearest(value: f32) -> bf16 {
    let bits = value.to_bits();
    let carried = bits.wrapping_add(0x8000);
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { carried };
    bf16::from_bits((bits >> 16) as u16)
}

/// Inverse of [`split`].
#[inline(always)]
pub(crate) fn completed(weight: bf16, low: i16) -> f32 {
    let high = u32::from(weight.to_bits()) << 16;
    f32::from_bits(high.wrapping_add(i32::from(low) as u32))
}

#[inline(always)]
pub(crate) fn split(master: f32) -> (bf16, i16) {
    let weight = nearest(master);
    let high = u32::from(weight.to_bits()) << 16;
    (weight, master.to_bits().wrapping_sub(high) as i16)
}

/// [`split`], but of NaNs only for those that arithmetic produces.
#[inline(always)]
pub(crate) fn split_unless_nan(master: f32) -> (bf16, i16) {
    let bits = master.to_bits();
    (bf16::from_bits((bits.wrapping_add(0x8000) >> 16) as u16), bits as i16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_weight_is_completed_to_the_bit() {
        let mut bits = 1u32;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(0x915f_77f5).wrapping_add(0x6a09_e667);
            let master = f32::from_bits(bits);
            if master.is_nan() {
                continue;
            }
            let (weight, low) = split(master);
            assert_eq!(completed(weight, low).to_bits(), bits, "{master}");
            assert_eq!(split_unless_nan(master), (weight, low), "{master}");
        }
        assert!(split_unless_nan(f32::NAN).0.is_nan() && split_unless_nan(-f32::NAN).0.is_nan());
        for master in [0.0, -0.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x3f80_8000)] {
            let (weight, low) = split(master);
            assert_eq!(completed(weight, low).to_bits(), master.to_bits(), "{master}");
        }
    }

    #[test]
    fn the_nearest_bf16_differs_from_the_standard_one_in_ties_only() {
        let mut bits = 1u32;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(0x915f_77f5).wrapping_add(0x6a09_e667);
            let value = f32::from_bits(bits);
            if bits & 0xffff != 0x8000 && !value.is_nan() {
                assert_eq!(nearest(value), bf16::from_f32(value), "{value}");
            }
        }
        assert!(nearest(f32::NAN).is_nan());
    }

    #[test]
    fn random_rounding_keeps_the_mean_and_exact_values() {
        let value = 1.0 + 0.3 / 128.0;
        let up = (0..1u32 << 16).filter(|n| bf16::rounded(value, n << 16).to_f32() > 1.0).count();
        let share = up as f64 / 65_536.0;
        assert!((0.299..0.301).contains(&share), "{share}");
        for exact in [0.0f32, 1.0, -1.5, f32::INFINITY] {
            assert_eq!(bf16::rounded(exact, u32::MAX).to_f32().to_bits(), exact.to_bits());
        }
    }
}
