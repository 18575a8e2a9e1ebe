//! Sums whose numbers travel in bf16: half of the exact exchange's bytes.
//!
//! A rank rounds its own sum once. The rank with a slice adds all ranks' sums in f32 and rounds the result once. Every
//! rank gets the same bits; another number of ranks gets others (`bf16_is_off_by_two_roundings_at_most`).

use half::bf16;
use half::slice::HalfFloatSliceExt;

use crate::bucket::{Bucket, to_owners};
use crate::engine::Engine;
use crate::error::Result;
use crate::exact::{add_rows, gather};
use crate::pairwise::{Block, Pairwise};
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
        let bucket = Bucket::new(engine, buffers, owners)?;
        let world = engine.world();
        if world == 1 {
            let Bucket { sum, places } = bucket;
            return Ok(places.split(sum.fold()?));
        }
        let Bucket { sum, places } = bucket;
        let mut whole = narrowed(&sum.fold()?);
        let slices = match &places.owned {
            Some(owned) if places.is_direct(world) => Slices::owned(owned),
            _ => Slices::even(whole.len(), world, 1),
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

/// This rank's slice of the sum.
fn reduce(engine: &mut dyn Engine, own: &[bf16], slices: &Slices) -> Result<Vec<bf16>> {
    let (rank, world) = (engine.rank(), engine.world());
    let send: Vec<&[u8]> = (0..world).map(|peer| bytemuck::cast_slice(&own[slices.of(peer)])).collect();
    let len = slices.of(rank).len();
    let mut rows = vec![bf16::ZERO; len * world];
    let mut rest = rows.as_mut_slice();
    let mut receive: Vec<&mut [u8]> = Vec::with_capacity(world);
    for _ in 0..world {
        let (row, others) = std::mem::take(&mut rest).split_at_mut(len);
        receive.push(bytemuck::cast_slice_mut(row));
        rest = others;
    }
    engine.all_to_all(&send, &mut receive)?;

    let order: Vec<Block> = (0..world as u64).map(|index| Block { level: 0, index }).collect();
    let (mut sum, mut wide) = (Vec::with_capacity(len), Vec::new());
    for begin in (0..len).step_by(CHUNK) {
        let width = CHUNK.min(len - begin);
        wide.resize(width * world, 0.0);
        for (wide, row) in wide.chunks_exact_mut(width).zip(rows.chunks_exact(len)) {
            row[begin..][..width].convert_to_f32_slice(wide);
        }
        let mut added = Vec::with_capacity(width);
        add_rows(&mut wide, width, &order, &mut added);
        sum.extend(narrowed(&added));
    }
    Ok(sum)
}

fn narrowed(numbers: &[f32]) -> Vec<bf16> {
    let mut narrow = vec![bf16::ZERO; numbers.len()];
    narrow.convert_from_f32_slice(numbers);
    narrow
}

fn widened(numbers: &[bf16]) -> Vec<f32> {
    let mut wide = vec![0.0; numbers.len()];
    numbers.convert_to_f32_slice(&mut wide);
    wide
}
