//! Reproducible dropout, on the device.
//!
//! A recomputed block must drop its first pass's features, on another backend. `nn::Dropout` draws from a backend's
//! process-wide generator, only under autodiff. Here a key decides.
//!
//! The host draws an odd factor m and an offset a per row, p per column. The device computes:
//!
//! ```text
//! dropped  ⇔  (p · m + a) mod 2¹⁶ < rate · 2¹⁶          p, m < 2¹⁵, a < 2¹⁶
//! ```
//!
//! No number reaches 2³¹, where backends overflow differently. The remainder is a bit mask: CubeCL's own is inexact. So
//! all backends drop the same features, any two independently.

use burn::tensor::{Bool, ElementConversion, Int, Tensor, TensorData, backend::Backend};

use crate::adapter::Projection;
use crate::random::{Random, combine};

/// A forward pass's random bits; equal keys drop equal features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutKey {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer step.
    pub step: u64,
    /// The micro-batch of the step.
    pub micro_batch: u64,
}

/// Where in the network a mask applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// After the embedding.
    Embedding,
    /// On the output of this block's attention.
    Attention(usize),
    /// On the output of this block's MLP.
    Mlp(usize),
    /// On the followers of tokens.
    Followers,
    /// On the input of this block's adapter.
    Adapter(usize, Projection),
}

/// A mask's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskNumbers {
    /// p of each column; distinct for up to 2¹⁵ columns.
    pub columns: Vec<i32>,
    /// m of each row, odd.
    pub factors: Vec<i32>,
    /// a of each row.
    pub offsets: Vec<i32>,
    /// Smaller results are dropped.
    pub threshold: i32,
}

const COLUMNS: usize = 1 << 15;
const RESULTS: i32 = 1 << 16;

impl DropoutKey {
    fn at(self, place: Place) -> u64 {
        let place = match place {
            Place::Embedding => 0,
            Place::Attention(layer) => 1 + 2 * layer as u64,
            Place::Mlp(layer) => 2 + 2 * layer as u64,
            Place::Followers => u64::MAX,
            Place::Adapter(layer, projection) => u64::MAX - 1 - (7 * layer + projection as usize) as u64,
        };
        combine(&[self.seed, self.step, self.micro_batch, place])
    }

    /// Draws a mask's numbers.
    pub fn numbers(self, place: Place, rows: usize, columns: usize, rate: f64) -> MaskNumbers {
        let mut random = Random::new(self.at(place));
        let columns = without_repetition(&mut random, columns);
        let (factors, offsets) = (0..rows)
            .map(|_| {
                let bits = random.bits();
                (((bits & 0x7fff) | 1) as i32, ((bits >> 16) & 0xffff) as i32)
            })
            .unzip();
        MaskNumbers { columns, factors, offsets, threshold: (rate * f64::from(RESULTS)).round() as i32 }
    }
}

fn without_repetition(random: &mut Random, count: usize) -> Vec<i32> {
    let mut deck: Vec<i32> = (0..COLUMNS as i32).collect();
    let draw = |at: usize| {
        let at = at % COLUMNS;
        let left = (COLUMNS - at) as u64;
        deck.swap(at, at + (random.bits() % left) as usize);
        deck[at]
    };
    (0..count).map(draw).collect()
}

impl MaskNumbers {
    /// Dropped features, `[rows, columns]`.
    pub fn mask<B: Backend>(self, device: &B::Device) -> Tensor<B, 2, Bool> {
        let Self { columns, factors, offsets, threshold } = self;
        let row = |numbers: Vec<i32>| {
            let shape = [1, numbers.len()];
            Tensor::<B, 2, Int>::from_data(TensorData::new(numbers, shape), device)
        };
        let column = |numbers: Vec<i32>| {
            let shape = [numbers.len(), 1];
            Tensor::<B, 2, Int>::from_data(TensorData::new(numbers, shape), device)
        };
        let spread = row(columns) * column(factors) + column(offsets);
        spread.bitwise_and_scalar((RESULTS - 1).elem()).lower_elem(threshold)
    }
}

/// Zeroes elements with probability `rate` and scales the rest to keep the mean. Identity without a key.
pub fn dropout<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    rate: f64,
    key: Option<DropoutKey>,
    place: Place,
) -> Tensor<B, D> {
    let Some(key) = key.filter(|_| rate > 0.0) else {
        return x;
    };
    let shape = x.dims();
    let columns = shape[D - 1];
    let rows = shape.iter().product::<usize>() / columns;
    let mask = key.numbers(place, rows, columns, rate).mask::<B>(&x.device()).reshape(shape);
    x.mask_fill(mask, 0.0).mul_scalar(1.0 / (1.0 - rate))
}
