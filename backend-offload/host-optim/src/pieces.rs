//! Loops over a parameter's elements, in pieces on rayon's global threads, which Burn's CPU backend also uses.
//!
//! No piece reads data that another writes, and sums of squares add pieces in order. So the number of threads changes
//! no bit.

use half::bf16;
use pulp::Arch;
use rayon::prelude::*;

use crate::numbers::{Number, Values, nearest};

/// A multiple of a [block](crate::codes::BLOCK). Six such arrays fit a second-level cache.
pub(crate) const PIECE: usize = 1 << 14;

/// Compiles `work` for this processor's vectors.
#[inline(always)]
pub(crate) fn vectorised<T>(work: impl FnOnce() -> T) -> T {
    Arch::new().dispatch(work)
}

/// The type in which the device receives weights.
pub(crate) trait DeviceWeight: Copy + Send + Sync {
    fn from_master(master: f32) -> Self;
}

impl DeviceWeight for () {
    #[inline(always)]
    fn from_master(_master: f32) -> Self {}
}

impl DeviceWeight for f32 {
    #[inline(always)]
    fn from_master(master: f32) -> Self {
        master
    }
}

impl DeviceWeight for bf16 {
    #[inline(always)]
    fn from_master(master: f32) -> Self {
        nearest(master)
    }
}

impl Values<'_> {
    /// Sum of squares.
    pub fn squares(&self) -> f64 {
        match self {
            Self::F32(values) => squares(values),
            Self::Bf16(values) => squares(values),
        }
    }
}

fn squares<G: Number>(gradient: &[G]) -> f64 {
    let pieces: Vec<f64> =
        gradient.par_chunks(PIECE).map(|piece| vectorised(|| piece_squares(piece))).collect();
    pieces.iter().sum()
}

/// [`squares`] of `len` numbers, zero except in `rows`, to the same bits.
pub(crate) fn squares_of_rows(rows: &[u32], width: usize, len: usize, numbers: &[f32]) -> f64 {
    let mut runs = Vec::new();
    for (row, numbers) in rows.iter().zip(numbers.chunks_exact(width)) {
        let begin = *row as usize * width;
        let mut at = 0;
        while at < width {
            let place = begin + at;
            let end = width.min(at + PIECE - place % PIECE);
            runs.push((place, &numbers[at..end]));
            at = end;
        }
    }
    let of_piece = |runs: &[(usize, &[f32])]| {
        let first = runs[0].0 / PIECE * PIECE;
        let mut piece = vec![0.0f32; PIECE.min(len - first)];
        for (at, run) in runs {
            piece[at - first..][..run.len()].copy_from_slice(run);
        }
        vectorised(|| piece_squares(&piece))
    };
    let pieces: Vec<_> = runs.chunk_by(|(one, _), (other, _)| one / PIECE == other / PIECE).collect();
    let pieces: Vec<f64> = pieces.into_par_iter().map(of_piece).collect();
    pieces.iter().sum()
}

#[inline(always)]
fn piece_squares<G: Number>(piece: &[G]) -> f64 {
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

pub(crate) fn add<G: Number>(sum: &mut [f32], more: &[G]) {
    sum.par_chunks_mut(PIECE).zip(more.par_chunks(PIECE)).for_each(|(sum, more)| {
        vectorised(|| sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more.wide()));
    });
}

/// One thread does not saturate the memory.
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    const BYTES: usize = 1 << 18;
    to.par_chunks_mut(BYTES).zip(from.par_chunks(BYTES)).for_each(|(to, from)| to.copy_from_slice(from));
}

pub(crate) fn convert<F: Number, T: Copy + Send + Sync>(
    to: &mut [T],
    from: &[F],
    each: impl Fn(f32) -> T + Sync,
) {
    to.par_chunks_mut(PIECE).zip(from.par_chunks(PIECE)).for_each(|(to, from)| {
        vectorised(|| to.iter_mut().zip(from).for_each(|(to, from)| *to = each(from.wide())));
    });
}
