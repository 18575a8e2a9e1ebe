//! Eight-bit codes of moments: floating point with three mantissa bits, relative to a block's largest.
//!
//! A number's position is its upper bits, down to three mantissa bits. Its code is the position minus the block's base,
//! or 0 for zero. Seven bits span 16 powers of two, eight span 32.
//!
//! A second moment is a divisor: above about 1e-39 it rounds up to the smallest code, not to zero.

/// Elements whose 8-bit moments share bases.
pub(crate) const BLOCK: usize = 256;
pub(crate) const BASES: usize = size_of::<[u16; 2]>();

/// Bits of an f32 mantissa that a code drops.
const CUT: u32 = 20;
/// Bits of a [`rounded`] number below its position.
const BELOW: u32 = CUT - 16;
const SIGN: u16 = 1 << 15;
/// Without the sign bit.
const TOP_SIGNED: u16 = 0x7f;
const TOP_POSITIVE: u16 = 0xff;

/// As `noise`, it rounds to nearest.
pub(crate) const NEAREST: u32 = 1 << (CUT - 1);
/// Upper half of infinity. NaN is equal or above.
pub(crate) const INFINITY: u16 = (f32::INFINITY.to_bits() >> 16) as u16;
pub(crate) const NAN: u16 = (f32::NAN.to_bits() >> 16) as u16;

/// Of the shared bits, the first moment has the lowest, the second the highest.
#[inline(always)]
pub(crate) fn noises(drawn: u32) -> [u32; 2] {
    [drawn >> (32 - CUT), drawn & ((1 << CUT) - 1)]
}

/// Upper half of `value`, with the position rounded by the 20 bits of `noise`. NaN survives only if its highest
/// mantissa bit alone is set.
#[inline(always)]
pub(crate) fn rounded(value: f32, noise: u32) -> u16 {
    (value.to_bits().wrapping_add(noise) >> 16) as u16
}

#[inline(always)]
pub(crate) fn position(rounded: u16) -> u16 {
    (rounded & !SIGN) >> BELOW
}

#[inline(always)]
pub(crate) fn signed_base(largest: u16) -> u16 {
    largest.saturating_sub(TOP_SIGNED)
}

#[inline(always)]
pub(crate) fn positive_base(largest: u16) -> u16 {
    largest.saturating_sub(TOP_POSITIVE)
}

/// Sign and seven bits. Zero has two codes.
#[inline(always)]
pub(crate) fn encode_signed(rounded: u16, base: u16) -> u8 {
    (position(rounded).saturating_sub(base) | (rounded & SIGN) >> 8) as u8
}

#[inline(always)]
pub(crate) fn encode_positive(rounded: u16, base: u16) -> u8 {
    let position = position(rounded);
    position.saturating_sub(base).max(position.min(1)) as u8
}

#[inline(always)]
pub(crate) fn decode_signed(code: u8, base: u16) -> f32 {
    // Sign extension copies the sign to the exponent; the mask clears that.
    let extended = (i32::from(code as i8) << CUT) as u32;
    let magnitude = extended & u32::from(TOP_SIGNED) << CUT;
    let number = (magnitude | extended & 1 << 31) + (u32::from(base) << CUT);
    f32::from_bits(if magnitude == 0 { 0 } else { number })
}

#[inline(always)]
pub(crate) fn decode_positive(code: u8, base: u16) -> f32 {
    let number = (u32::from(code) + u32::from(base)) << CUT;
    f32::from_bits(if code == 0 { 0 } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u16 = (1.0f32.to_bits() >> CUT) as u16;
    const MOST: u32 = (1 << CUT) - 1;

    fn signed(value: f32, noise: u32, base: u16) -> u8 {
        encode_signed(rounded(value, noise), base)
    }

    fn positive(value: f32, noise: u32, base: u16) -> u8 {
        encode_positive(rounded(value, noise), base)
    }

    #[test]
    fn decoding_and_encoding_return_every_code_for_every_base() {
        for largest in [0, 1, 0x7f, 0xff, 0x100, ONE, (f32::MAX.to_bits() >> CUT) as u16] {
            let base = positive_base(largest);
            for code in (0..=255u8).filter(|code| u16::from(*code) + base <= largest) {
                let value = decode_positive(code, base);
                for noise in [0, NEAREST, MOST] {
                    assert_eq!(positive(value, noise, base), code, "{value}");
                }
            }
            let base = signed_base(largest);
            for code in (0..=255u8).filter(|code| u16::from(code & 0x7f) + base <= largest && *code != 0x80) {
                let value = decode_signed(code, base);
                assert_eq!(value.is_sign_negative(), code > 0x80);
                for noise in [0, NEAREST, MOST] {
                    assert_eq!(signed(value, noise, base), code, "{value}");
                }
            }
        }
        let (signed, positive) = (signed_base(ONE), positive_base(ONE));
        let tops = (decode_positive(255, positive), decode_signed(127, signed), decode_signed(255, signed));
        assert_eq!(tops, (1.0, 1.0, -1.0));
    }

    #[test]
    fn numbers_between_two_codes_become_either_and_keep_their_mean() {
        let share = 0.5 + 0.25 * 0.0625;
        let rounds = 1u32 << 10;
        let base = positive_base(ONE);
        let sum: f32 = (0..rounds).map(|n| decode_positive(positive(share, n << 10, base), base)).sum();
        assert!((sum / rounds as f32 - share).abs() < 1e-4, "{}", sum / rounds as f32);
        let base = signed_base(ONE);
        let sum: f32 = (0..rounds).map(|n| decode_signed(signed(-share, n << 10, base), base)).sum();
        assert!((sum / rounds as f32 + share).abs() < 1e-4, "{}", sum / rounds as f32);
    }

    #[test]
    fn a_nonzero_second_moment_never_becomes_zero() {
        let base = positive_base(ONE);
        for small in [1e-30, 1e-38] {
            assert!(decode_positive(positive(small, 0, base), base) > 0.0);
        }
        assert_eq!(positive(0.0, MOST, base), 0);
        assert_eq!(signed(1e-30, 0, signed_base(ONE)), 0);
    }

    #[test]
    fn the_relative_error_of_the_nearest_code_is_at_most_a_sixteenth() {
        let base = signed_base(ONE);
        for n in 1..4000 {
            let share = n as f32 / 4000.0;
            let error = (decode_signed(signed(-share, NEAREST, base), base) + share).abs() / share;
            assert!(error <= 1.0 / 16.0, "{share}: {error}");
        }
    }

    #[test]
    fn nan_and_infinity_survive_coding() {
        for noise in [0, NEAREST, MOST] {
            let coded = |value: f32| {
                let rounded = rounded(value, noise);
                let base = signed_base(position(rounded));
                decode_signed(encode_signed(rounded, base), base)
            };
            assert!(coded(f32::NAN).is_nan() && coded(-f32::NAN).is_nan());
            assert_eq!((coded(f32::INFINITY), coded(f32::NEG_INFINITY)), (f32::INFINITY, f32::NEG_INFINITY));
        }
    }
}
