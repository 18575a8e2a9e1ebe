//! Eight-bit codes of moments: floating-point numbers below a block's largest, with three bits of mantissa.
//!
//! A code counts the representable numbers from the smallest up to 1. Seven bits reach over 16 binary orders of
//! magnitude, eight over 32. A second moment is a divisor, so one that is not zero never becomes zero: rounded up to the
//! smallest code it makes its step shorter, never longer.

/// Bits of an f32 below the three that a code keeps of the mantissa.
const CUT: u32 = 20;
/// Position of 1 among all numbers with three bits of mantissa.
const ONE: u32 = 1.0f32.to_bits() >> CUT;

/// The code of `share`, between 0 and 1, counted up to `top`, which stands for 1. It is rounded up where `noise`, 20 random
/// bits, says so.
#[inline(always)]
fn encoded(share: f32, top: u32, noise: u32) -> u32 {
    let position = (share.to_bits().wrapping_add(noise)) >> CUT;
    (position.max(ONE - top) - (ONE - top)).min(top)
}

#[inline(always)]
fn decoded(code: u32, top: u32) -> f32 {
    let value = f32::from_bits((code + (ONE - top)) << CUT);
    if code == 0 { 0.0 } else { value }
}

/// Half of the distance between two codes: as `noise` it rounds to the nearest.
pub(crate) const NEAREST: u32 = 1 << (CUT - 1);

/// The random bits that round one element's moments, taken from the 32 drawn for it.
#[inline(always)]
pub(crate) fn noises(drawn: u32) -> [u32; 2] {
    [(drawn >> 16) << 4, (drawn & 0xffff) << 4]
}

/// A first moment as a share of the largest magnitude of its block: a sign and seven bits.
#[inline(always)]
pub(crate) fn encode_signed(share: f32, noise: u32) -> u8 {
    let sign = (share.to_bits() >> 24) & 0x80;
    (encoded(share.abs(), 127, noise) | sign) as u8
}

#[inline(always)]
pub(crate) fn decode_signed(code: u8) -> f32 {
    let code = u32::from(code);
    f32::from_bits(decoded(code & 0x7f, 127).to_bits() | (code & 0x80) << 24)
}

/// A second moment as a share of the largest of its block: eight bits.
#[inline(always)]
pub(crate) fn encode_positive(share: f32, noise: u32) -> u8 {
    let code = encoded(share, 255, noise);
    (if share > 0.0 { code.max(1) } else { 0 }) as u8
}

#[inline(always)]
pub(crate) fn decode_positive(code: u8) -> f32 {
    decoded(u32::from(code), 255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_code_of_its_own_number() {
        for code in 0..=255u8 {
            let value = decode_positive(code);
            for noise in [0, NEAREST, (1 << CUT) - 1] {
                assert_eq!(encode_positive(value, noise), code, "{value}");
            }
            let value = decode_signed(code);
            assert_eq!(encode_signed(value, NEAREST), code, "{value}");
        }
        assert_eq!((decode_positive(255), decode_signed(127), decode_signed(255)), (1.0, 1.0, -1.0));
    }

    #[test]
    fn numbers_between_two_codes_become_either_and_keep_their_mean() {
        let share = 0.5 + 0.25 * 0.0625;
        let rounds = 1u32 << 10;
        let sum: f32 = (0..rounds).map(|n| decode_positive(encode_positive(share, n << 10))).sum();
        assert!((sum / rounds as f32 - share).abs() < 1e-4, "{}", sum / rounds as f32);
    }

    #[test]
    fn a_divisor_that_is_not_zero_stays_so() {
        assert!(decode_positive(encode_positive(1e-30, 0)) > 0.0);
        assert_eq!(encode_positive(0.0, (1 << CUT) - 1), 0);
        assert_eq!(encode_signed(1e-30, 0), 0);
    }

    #[test]
    fn the_relative_error_of_the_nearest_code_is_at_most_a_sixteenth() {
        for n in 1..4000 {
            let share = n as f32 / 4000.0;
            let error = (decode_signed(encode_signed(-share, NEAREST)) + share).abs() / share;
            assert!(error <= 1.0 / 16.0, "{share}: {error}");
        }
    }
}
