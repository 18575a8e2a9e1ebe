//! Loops over a parameter's elements: in pieces, on all threads of the pool, with the widest vectors the processor has.
//!
//! The pool is rayon's global one, which Burn's CPU backend computes on too, so that the two never use more threads than
//! there are processors. No piece reads what another writes; only sums of squares combine pieces, and those are added in the
//! pieces' order. How many threads take part therefore changes no bit.

use half::bf16;
use pulp::Arch;
use rayon::prelude::*;

use crate::adamw::{Element, Factors};
use crate::codes::{decode_positive, decode_signed, encode_positive, encode_signed, noises};
use crate::format::BLOCK;
use crate::noise::Noise;
use crate::numbers::{Number, completed, nearest, split};

/// Elements of one task. A multiple of [`BLOCK`]; six arrays of this length fit a second-level cache.
pub(crate) const PIECE: usize = 1 << 14;

/// Runs `work` compiled for the vectors of this processor.
#[inline(always)]
pub(crate) fn vectorised<T>(work: impl FnOnce() -> T) -> T {
    Arch::new().dispatch(work)
}

/// One step of a parameter with a master weight of its own. `weights` get the masters in their type.
pub(crate) fn step_wide<G: Number, M: Number, W: Rounded>(
    factors: Factors,
    noise: Noise,
    masters: &mut [f32],
    [first, second]: [&mut [M]; 2],
    gradient: &[G],
    weights: &mut [W],
) {
    let moments = first.par_chunks_mut(PIECE).zip(second.par_chunks_mut(PIECE));
    let outside = gradient.par_chunks(PIECE).zip(weights.par_chunks_mut(PIECE));
    let pieces = masters.par_chunks_mut(PIECE).zip(moments).zip(outside);
    pieces.enumerate().for_each(|(n, ((masters, (first, second)), (gradient, weights)))| {
        let begin = (n * PIECE) as u32;
        vectorised(
            #[inline(always)]
            || {
                let len = masters.len();
                let (first, second) = (&mut first[..len], &mut second[..len]);
                let (gradient, weights) = (&gradient[..len], &mut weights[..len]);
                for n in 0..len {
                    let noise = noise.of(begin.wrapping_add(n as u32));
                    let element =
                        Element { weight: masters[n], first: first[n].wide(), second: second[n].wide() };
                    let stepped = factors.step(element, gradient[n].wide());
                    masters[n] = stepped.weight;
                    first[n] = M::rounded(stepped.first, noise);
                    second[n] = M::rounded(stepped.second, noise << 16);
                    weights[n] = W::from_master(stepped.weight);
                }
            },
        );
    });
}

/// A type that weights are given to a device in.
pub(crate) trait Rounded: Copy + Send + Sync {
    fn from_master(master: f32) -> Self;
}

/// Given to nobody.
impl Rounded for () {
    #[inline(always)]
    fn from_master(_master: f32) -> Self {}
}

impl Rounded for f32 {
    #[inline(always)]
    fn from_master(master: f32) -> Self {
        master
    }
}

impl Rounded for bf16 {
    #[inline(always)]
    fn from_master(master: f32) -> Self {
        nearest(master)
    }
}

/// The parts of a parameter in the compact format.
pub(crate) struct Compact<'a> {
    /// Bits that complete the weights.
    pub(crate) low: &'a mut [i16],
    /// Codes of the first moments, with their sign.
    pub(crate) first: &'a mut [u8],
    pub(crate) second: &'a mut [u8],
    /// Largest first and second moment of each block.
    pub(crate) scales: &'a mut [[f32; 2]],
}

/// One step of a parameter whose masters are its bf16 `weights`, completed.
pub(crate) fn step_compact<G: Number>(
    factors: Factors,
    noise: Noise,
    Compact { low, first, second, scales }: Compact<'_>,
    gradient: &[G],
    weights: &mut [bf16],
) {
    let codes = first.par_chunks_mut(PIECE).zip(second.par_chunks_mut(PIECE));
    let state = low.par_chunks_mut(PIECE).zip(codes).zip(scales.par_chunks_mut(PIECE / BLOCK));
    let outside = gradient.par_chunks(PIECE).zip(weights.par_chunks_mut(PIECE));
    state.zip(outside).enumerate().for_each(
        |(n, (((low, (first, second)), scales), (gradient, weights)))| {
            let begin = n * PIECE;
            vectorised(
                #[inline(always)]
                || {
                    let mut wide = WideBlock::ZERO;
                    let codes = first.chunks_mut(BLOCK).zip(second.chunks_mut(BLOCK));
                    let state = low.chunks_mut(BLOCK).zip(codes).zip(scales);
                    let blocks = state.zip(gradient.chunks(BLOCK).zip(weights.chunks_mut(BLOCK)));
                    for (n, (((low, (first, second)), scales), (gradient, weights))) in blocks.enumerate() {
                        let begin = (begin + n * BLOCK) as u32;
                        let drawn = |n: usize| noises(noise.of(begin.wrapping_add(n as u32)));
                        let state = (low, first, second, scales);
                        wide.step(&factors, drawn, state, gradient, weights);
                    }
                },
            );
        },
    );
}

/// One block of the compact format, in f32.
struct WideBlock {
    masters: [f32; BLOCK],
    gradients: [f32; BLOCK],
    moments: [[f32; BLOCK]; 2],
}

impl WideBlock {
    const ZERO: Self = Self { masters: [0.0; BLOCK], gradients: [0.0; BLOCK], moments: [[0.0; BLOCK]; 2] };

    /// Each loop reads and writes few arrays, most of them this block's own: only so are all of them vectorised.
    #[inline(always)]
    fn step<G: Number>(
        &mut self,
        factors: &Factors,
        noise: impl Fn(usize) -> [u32; 2],
        (low, first, second, scales): (&mut [i16], &mut [u8], &mut [u8], &mut [f32; 2]),
        gradient: &[G],
        weights: &mut [bf16],
    ) {
        // At most a block, which the compiler has to be told: a check of each index keeps it from vectors.
        let len = low.len().min(BLOCK);
        let (low, first, second) = (&mut low[..len], &mut first[..len], &mut second[..len]);
        let (gradient, weights) = (&gradient[..len], &mut weights[..len]);
        let Self { masters, gradients, moments: [firsts, seconds] } = self;
        let [of_first, of_second] = *scales;
        for n in 0..len {
            masters[n] = completed(weights[n], low[n]);
        }
        for n in 0..len {
            firsts[n] = decode_signed(first[n]) * of_first;
        }
        for n in 0..len {
            seconds[n] = decode_positive(second[n]) * of_second;
        }
        for n in 0..len {
            gradients[n] = gradient[n].wide();
        }
        for n in 0..len {
            let element = Element { weight: masters[n], first: firsts[n], second: seconds[n] };
            let stepped = factors.step(element, gradients[n]);
            masters[n] = stepped.weight;
            (firsts[n], seconds[n]) = (stepped.first, stepped.second);
        }
        for n in 0..len {
            (weights[n], low[n]) = split(masters[n]);
        }
        // The last block is shorter than the one before it.
        firsts[len..].fill(0.0);
        seconds[len..].fill(0.0);
        *scales = encode_block(&self.moments, first, second, noise);
    }
}

/// Codes a block's moments, padded with zeros; returns their scales. `noise` rounds both moments of an element.
#[inline(always)]
pub(crate) fn encode_block(
    moments: &[[f32; BLOCK]; 2],
    first: &mut [u8],
    second: &mut [u8],
    noise: impl Fn(usize) -> [u32; 2],
) -> [f32; 2] {
    // Magnitudes are in the order of their bits, and of integers a vector unit finds the largest.
    let largest = |moment: &[f32; BLOCK]| {
        f32::from_bits(moment.iter().fold(0, |most: u32, x| most.max(x.to_bits() & (u32::MAX >> 1))))
    };
    let scales = [largest(&moments[0]), largest(&moments[1])];
    // A block of zeros has codes of zero, whatever they are a share of.
    let divisors = scales.map(|scale| if scale > 0.0 { scale } else { 1.0 });
    let len = first.len().min(BLOCK);
    let (first, second) = (&mut first[..len], &mut second[..len]);
    for n in 0..len {
        first[n] = encode_signed(moments[0][n] / divisors[0], noise(n)[0]);
    }
    for n in 0..len {
        second[n] = encode_positive(moments[1][n] / divisors[1], noise(n)[1]);
    }
    scales
}

/// The sum of squares, in an order that is always the same.
pub(crate) fn squares<G: Number>(gradient: &[G]) -> f64 {
    let pieces: Vec<f64> = gradient.par_chunks(PIECE).map(|piece| vectorised(|| squares_of(piece))).collect();
    pieces.iter().sum()
}

#[inline(always)]
fn squares_of<G: Number>(piece: &[G]) -> f64 {
    const LANES: usize = 16;
    let (rows, rest) = piece.as_chunks::<LANES>();
    let mut sums = [0.0f64; LANES];
    for row in rows {
        for lane in 0..LANES {
            let x = f64::from(row[lane].wide());
            sums[lane] += x * x;
        }
    }
    let rest: f64 = rest.iter().map(|x| f64::from(x.wide()) * f64::from(x.wide())).sum();
    sums.iter().sum::<f64>() + rest
}

/// Adds `more` to `sum`.
pub(crate) fn add<G: Number>(sum: &mut [f32], more: &[G]) {
    sum.par_chunks_mut(PIECE).zip(more.par_chunks(PIECE)).for_each(|(sum, more)| {
        vectorised(|| sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more.wide()));
    });
}

/// Copies bytes on all threads: one alone does not reach the memory's speed.
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    const BYTES: usize = 1 << 18;
    to.par_chunks_mut(BYTES).zip(from.par_chunks(BYTES)).for_each(|(to, from)| to.copy_from_slice(from));
}

/// Numbers in another type.
pub(crate) fn convert<F: Number, T: Copy + Send + Sync>(
    to: &mut [T],
    from: &[F],
    each: impl Fn(f32) -> T + Sync,
) {
    to.par_chunks_mut(PIECE).zip(from.par_chunks(PIECE)).for_each(|(to, from)| {
        vectorised(|| to.iter_mut().zip(from).for_each(|(to, from)| *to = each(from.wide())));
    });
}
