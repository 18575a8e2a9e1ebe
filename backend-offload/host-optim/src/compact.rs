//! Steps of parameters in the compact format, block by block.
//!
//! One loop computes elements; a second encodes moments once their largest is known. The first is vectorised only
//! because each slice is an argument of constant length.

use bytemuck::Pod;
use half::bf16;
use rayon::prelude::*;

use crate::adamw::{Element, Factors, Folded};
use crate::codes::{
    BLOCK, INFINITY, NAN, NEAREST, decode_positive, decode_signed, encode_positive, encode_signed, noises,
    position, positive_base, rounded, signed_base,
};
use crate::noise::{BlockNoise, Noise};
use crate::numbers::{Number, completed, split_unless_nan};
use crate::pieces::{PIECE, vectorised};

pub(crate) struct Compact<'a> {
    pub(crate) low: &'a mut [i16],
    /// With sign.
    pub(crate) first: &'a mut [u8],
    pub(crate) second: &'a mut [u8],
    /// One pair per block.
    pub(crate) bases: &'a mut [[u16; 2]],
}

type Moments = [[u16; BLOCK]; 2];

/// Masters are the completed bf16 `weights`.
pub(crate) fn step_compact<G: Number>(
    factors: &Factors,
    noise: Noise,
    Compact { low, first, second, bases }: Compact<'_>,
    gradient: &[G],
    weights: &mut [bf16],
) {
    let factors = factors.folded();
    let codes = first.par_chunks_mut(PIECE).zip(second.par_chunks_mut(PIECE));
    let state = low.par_chunks_mut(PIECE).zip(codes).zip(bases.par_chunks_mut(PIECE / BLOCK));
    let outside = gradient.par_chunks(PIECE).zip(weights.par_chunks_mut(PIECE));
    state.zip(outside).enumerate().for_each(|(n, (((low, (first, second)), bases), (gradient, weights)))| {
        vectorised(
            #[inline(always)]
            || {
                step_piece(
                    &factors,
                    noise,
                    n * PIECE,
                    Compact { low, first, second, bases },
                    gradient,
                    weights,
                );
            },
        );
    });
}

#[inline(always)]
fn step_piece<G: Number>(
    factors: &Folded,
    noise: Noise,
    begin: usize,
    Compact { low, first, second, bases }: Compact<'_>,
    gradient: &[G],
    weights: &mut [bf16],
) {
    let mut moments = [[0; BLOCK]; 2];
    let drawn = |n: usize| noise.block((begin + n * BLOCK) as u32);
    let (low, last_low) = low.as_chunks_mut::<BLOCK>();
    let (first, last_first) = first.as_chunks_mut::<BLOCK>();
    let (second, last_second) = second.as_chunks_mut::<BLOCK>();
    let (gradient, last_gradient) = gradient.as_chunks::<BLOCK>();
    let (weights, last_weights) = weights.as_chunks_mut::<BLOCK>();

    let whole = low.len();
    let state = low.iter_mut().zip(first).zip(second).zip(&mut *bases);
    for (n, ((((low, first), second), bases), (gradient, weights))) in
        state.zip(gradient.iter().zip(weights)).enumerate()
    {
        step_block(factors, drawn(n), low, first, second, bases, gradient, weights, &mut moments);
    }

    let len = last_low.len();
    if len > 0 {
        let (mut low, mut weights) = (padded(last_low), padded(last_weights));
        let (mut first, mut second) = (padded(last_first), padded(last_second));
        let (gradient, bases) = (padded(last_gradient), &mut bases[whole]);
        let drawn = drawn(whole);
        step_block(
            factors,
            drawn,
            &mut low,
            &mut first,
            &mut second,
            bases,
            &gradient,
            &mut weights,
            &mut moments,
        );
        last_low.copy_from_slice(&low[..len]);
        last_first.copy_from_slice(&first[..len]);
        last_second.copy_from_slice(&second[..len]);
        last_weights.copy_from_slice(&weights[..len]);
    }
}

fn padded<T: Pod>(last: &[T]) -> [T; BLOCK] {
    let mut block = [T::zeroed(); BLOCK];
    block[..last.len()].copy_from_slice(last);
    block
}

/// `moments` receives unencoded moments.
#[inline(always)]
#[expect(
    clippy::too_many_arguments,
    reason = "the compiler cannot rule out that references in a struct alias"
)]
fn step_block<G: Number>(
    factors: &Folded,
    drawn: BlockNoise,
    low: &mut [i16; BLOCK],
    first: &mut [u8; BLOCK],
    second: &mut [u8; BLOCK],
    bases: &mut [u16; 2],
    gradient: &[G; BLOCK],
    weights: &mut [bf16; BLOCK],
    moments: &mut Moments,
) {
    fetch_ahead(low);
    fetch_ahead(first);
    fetch_ahead(second);
    fetch_ahead(gradient);
    fetch_ahead(weights);

    let [first_base, second_base] = *bases;
    let [firsts, seconds] = moments;
    for n in 0..BLOCK {
        let element = Element {
            weight: completed(weights[n], low[n]),
            first: decode_signed(first[n], first_base),
            second: decode_positive(second[n], second_base),
        };
        let stepped = factors.step(element, gradient[n].wide());
        (weights[n], low[n]) = split_unless_nan(stepped.weight);
        let noise = noises(drawn.draw(n));
        firsts[n] = rounded(stepped.first, noise[0]);
        seconds[n] = rounded(stepped.second, noise[1]);
    }

    // A gradient's NaN may have any bits, and could round to a number.
    if gradient.iter().fold(0, |most, x| x.upper_magnitude().max(most)) >= INFINITY {
        for n in (0..BLOCK).filter(|n| gradient[*n].wide().is_nan()) {
            (weights[n], low[n], firsts[n], seconds[n]) = (bf16::NAN, 0, NAN, NAN);
        }
    }

    *bases = encode(moments, first, second);
}

#[inline(always)]
fn encode([firsts, seconds]: &Moments, first: &mut [u8], second: &mut [u8]) -> [u16; 2] {
    let largest = |moments: &[u16; BLOCK]| moments.iter().fold(0, |most: u16, x| position(*x).max(most));
    let bases = [signed_base(largest(firsts)), positive_base(largest(seconds))];
    for (code, moment) in first.iter_mut().zip(firsts) {
        *code = encode_signed(*moment, bases[0]);
    }
    for (code, moment) in second.iter_mut().zip(seconds) {
        *code = encode_positive(*moment, bases[1]);
    }
    bases
}

/// Encodes at most one block to nearest.
pub(crate) fn encode_nearest(moments: [&[f32]; 2], first: &mut [u8], second: &mut [u8]) -> [u16; 2] {
    let nearest = moments.map(|moments| {
        let mut block = [0; BLOCK];
        for (rounded_to, moment) in block.iter_mut().zip(moments) {
            *rounded_to = if moment.is_nan() { NAN } else { rounded(*moment, NEAREST) };
        }
        block
    });
    encode(&nearest, first, second)
}

/// Prefetches a later block: the processor does not prefetch past a page's end.
#[inline(always)]
fn fetch_ahead<T>(block: &[T; BLOCK]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const BLOCKS: usize = 4;
        const LINE: usize = 64;
        let ahead = block.as_ptr().wrapping_add(BLOCKS * BLOCK).cast::<i8>();
        for line in 0..size_of::<[T; BLOCK]>() / LINE {
            // SAFETY: a prefetch has no visible effect and faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(LINE * line)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adamw::{AdamW, Stride};

    const RULE: AdamW = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
    const LEN: usize = 3 * BLOCK + 45;

    struct Buffers {
        low: Vec<i16>,
        first: Vec<u8>,
        second: Vec<u8>,
        bases: Vec<[u16; 2]>,
        weights: Vec<bf16>,
    }

    impl Buffers {
        fn new() -> Self {
            Self {
                low: vec![0; LEN],
                first: vec![0; LEN],
                second: vec![0; LEN],
                bases: vec![[0; 2]; LEN.div_ceil(BLOCK)],
                weights: (0..LEN).map(|n| bf16::from_f32(n as f32 / LEN as f32 - 0.3)).collect(),
            }
        }

        fn parts(&mut self) -> (Compact<'_>, &mut [bf16]) {
            let Self { low, first, second, bases, weights } = self;
            (Compact { low, first, second, bases }, weights)
        }

        fn first_moments(&self) -> impl Iterator<Item = f32> {
            self.first.iter().zip(0..).map(|(code, n)| decode_signed(*code, self.bases[n / BLOCK][0]))
        }
    }

    fn gradient(time: u32) -> Vec<f32> {
        let noise = Noise::new(1, time);
        (0..LEN as u32)
            .map(|n| (noise.draw(n) as i32 as f32) * 0.5f32.powi(33 + (noise.draw(n + 9) % 14) as i32))
            .collect()
    }

    #[test]
    fn vectors_of_every_width_end_with_the_same_bits() {
        let (mut wide, mut narrow) = (Buffers::new(), Buffers::new());
        for time in 1..=6 {
            let factors = RULE.factors(Stride { lr: 1e-3, scale: 0.5 }, time);
            let (noise, gradient) = (Noise::new(7, time), gradient(time));
            let (state, weights) = wide.parts();
            step_compact(&factors, noise, state, &gradient, weights);
            // Not dispatched: compiled for the oldest processor.
            let (state, weights) = narrow.parts();
            step_piece(&factors.folded(), noise, 0, state, &gradient, weights);
        }
        assert_eq!((wide.low, wide.first, wide.second), (narrow.low, narrow.first, narrow.second));
        assert_eq!((wide.bases, wide.weights), (narrow.bases, narrow.weights));
    }

    #[test]
    fn any_nan_gradient_makes_its_own_element_alone_nan() {
        for bits in [f32::NAN.to_bits(), u32::MAX, 0x7fff_ffff, 0x7f80_0001] {
            let mut kept = Buffers::new();
            let mut gradient = gradient(1);
            let bad = [5, LEN - 1];
            for n in bad {
                gradient[n] = f32::from_bits(bits);
            }
            let factors = RULE.factors(Stride { lr: 1e-3, scale: 1.0 }, 1);
            let (state, weights) = kept.parts();
            step_compact(&factors, Noise::new(7, 1), state, &gradient, weights);
            for (n, (weight, first)) in kept.weights.iter().zip(kept.first_moments()).enumerate() {
                assert_eq!((weight.is_nan(), first.is_nan()), (bad.contains(&n), bad.contains(&n)), "{n}");
            }
        }
    }

    #[test]
    fn decoded_moments_encode_to_the_same_numbers() {
        let mut kept = Buffers::new();
        for time in 1..=6 {
            let factors = RULE.factors(Stride { lr: 1e-3, scale: 1.0 }, time);
            let (state, weights) = kept.parts();
            step_compact(&factors, Noise::new(7, time), state, &gradient(time), weights);
            let codes = kept.first.chunks(BLOCK).zip(kept.second.chunks(BLOCK));
            for ((first, second), bases) in codes.zip(&kept.bases) {
                let decoded = |first: &[u8], second: &[u8], bases: [u16; 2]| {
                    let firsts: Vec<f32> = first.iter().map(|code| decode_signed(*code, bases[0])).collect();
                    let seconds: Vec<f32> =
                        second.iter().map(|code| decode_positive(*code, bases[1])).collect();
                    [firsts, seconds]
                };
                let moments = decoded(first, second, *bases);
                let (mut first, mut second) = (vec![0; first.len()], vec![0; first.len()]);
                let found = encode_nearest(moments.each_ref().map(Vec::as_slice), &mut first, &mut second);
                assert_eq!((found, decoded(&first, &second, found)), (*bases, moments));
            }
        }
    }

    #[test]
    fn scaling_prevents_overflow_of_squared_gradients() {
        let stepped = |size: f32, scale: f64| {
            let mut kept = Buffers::new();
            let gradient: Vec<f32> = gradient(1).iter().map(|x| x * size).collect();
            let factors = RULE.factors(Stride { lr: 1e-3, scale }, 1);
            let (state, weights) = kept.parts();
            step_compact(&factors, Noise::new(7, 1), state, &gradient, weights);
            kept.weights
        };
        let power = 2f32.powi(90);
        assert!(stepped(power, f64::from(power).recip()) == stepped(1.0, 1.0));
    }
}
