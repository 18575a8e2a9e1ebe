//! Sums whose numbers travel in bf16: half of the exact exchange's bytes.
//!
//! A rank rounds its own sum once. The rank with a slice adds all ranks' sums in f32 and rounds the result once. Every
//! rank gets the same bits; another number of ranks gets others (`bf16_is_off_by_two_roundings_at_most`).

use crate::bucket::{Bucket, to_owners};
use crate::engine::Engine;
use crate::error::Result;
use crate::exact::{add_rows, gather};
use crate::pairwise::{Pairwise, one_each};
use crate::slices::Slices;

/// Elements that are widened at once.
const CHUNK: usize = 1 << 15;

/// A world of one sends nothing and is exact.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bf16;

impl Bf16 {
    /// As [`Exact::sum_all`](crate::Exact::sum_all), rounded.
    pub fn sum_all(
        self,
        engine: &mut dyn Engine,
        buffers: Vec<Pairwise>,
        owners: Option<&[usize]>,
    ) -> Result<Vec<Vec<f32>>> {
        let Bucket { sum, places } = Bucket::new(engine, buffers, owners)?;
        let own = sum.fold()?;
        if engine.world() == 1 {
            return Ok(places.split(own));
        }
        let mut whole = narrowed(&own);
        let even = Slices::even(whole.len(), engine.world(), 1);
        let slices = match &places.owned {
            Some(owned) => even.for_owners(owned),
            None => even,
        };
        let slice = reduce(engine, &whole, &slices)?;
        let numbers = match &places.owned {
            None => {
                whole[slices.of(engine.rank())].copy_from_slice(&slice);
                gather(engine, &mut whole, &slices)?;
                whole
            }
            Some(owned) => to_owners(engine, slice, &slices, owned)?,
        };
        Ok(places.split(widened(&numbers)))
    }
}

fn reduce(engine: &mut dyn Engine, own: &[u16], slices: &Slices) -> Result<Vec<u16>> {
    let (rank, world) = (engine.rank(), engine.world());
    let send: Vec<&[u8]> = (0..world).map(|peer| bytemuck::cast_slice(&own[slices.of(peer)])).collect();
    let len = slices.of(rank).len();
    let mut rows = vec![0; len * world];
    let mut rest = rows.as_mut_slice();
    let mut receive: Vec<&mut [u8]> = Vec::with_capacity(world);
    for _ in 0..world {
        let (row, others) = std::mem::take(&mut rest).split_at_mut(len);
        receive.push(bytemuck::cast_slice_mut(row));
        rest = others;
    }
    engine.all_to_all(&send, &mut receive)?;

    let order = one_each(world);
    let (mut sum, mut wide) = (Vec::with_capacity(len), Vec::new());
    for begin in (0..len).step_by(CHUNK) {
        let width = CHUNK.min(len - begin);
        wide.resize(width * world, 0.0);
        for (wide, row) in wide.chunks_exact_mut(width).zip(rows.chunks_exact(len)) {
            wide.iter_mut().zip(&row[begin..]).for_each(|(wide, narrow)| *wide = widen(*narrow));
        }
        let mut added = Vec::with_capacity(width);
        add_rows(&mut wide, width, &order, &mut added);
        sum.extend(narrowed(&added));
    }
    Ok(sum)
}

fn narrowed(numbers: &[f32]) -> Vec<u16> {
    numbers.iter().map(|number| narrow(*number)).collect()
}

fn widened(numbers: &[u16]) -> Vec<f32> {
    numbers.iter().map(|number| widen(*number)).collect()
}

/// To the nearest, ties to even.
fn narrow(number: f32) -> u16 {
    let bits = number.to_bits();
    let half = 0x7fff + (bits >> 16 & 1);
    // A NaN of low bits alone would become infinite.
    if number.is_nan() { (bits >> 16) as u16 | 0x40 } else { ((bits + half) >> 16) as u16 }
}

fn widen(number: u16) -> f32 {
    f32::from_bits(u32::from(number) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_rounded_to_the_nearest_of_its_neighbours_and_ties_to_even() {
        let rounded = |number: f32| widen(narrow(number));
        let step = 2_f32.powi(-7);
        for (number, nearest) in [
            (0.0, 0.0),
            (-1.0, -1.0),
            (1.0 + 0.49 * step, 1.0),
            (1.0 + 0.5 * step, 1.0),
            (1.0 + 1.5 * step, 1.0 + 2.0 * step),
            (-1.0 - 0.51 * step, -1.0 - step),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
            (f32::from_bits(1), 0.0),
        ] {
            assert_eq!(rounded(number).to_bits(), nearest.to_bits(), "{number}");
        }
        assert!(rounded(f32::from_bits(0x7f80_0001)).is_nan() && rounded(-f32::NAN).is_nan());
    }
}
