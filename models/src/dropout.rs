//! Dropout whose bits can be drawn again.
//!
//! Recomputing a block must drop the same features as the first pass did, on another backend (the inner one) and in
//! another order. `nn::Dropout` offers neither: it draws from the backend's process-wide generator and does nothing
//! without autodiff. Here the mask follows from a key naming the seed, the step, the micro-batch and the place.
//!
//! The bits are drawn on the host, a quarter of a 64-bit number each, and uploaded as one byte each. That is the price
//! of having no state; training without dropout, as large models do, pays nothing.

use burn::tensor::{Bool, Tensor, TensorData, backend::Backend};

use crate::random::{Random, combine};

/// Names the random bits of one forward pass. Passes with equal keys drop the same features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutKey {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer step.
    pub step: u64,
    /// Which micro-batch of the step.
    pub micro_batch: u64,
}

/// Where in the network a mask applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// After the embedding.
    Embedding,
    /// On what attention adds in this block.
    Attention(usize),
    /// On what the MLP adds in this block.
    Mlp(usize),
}

impl DropoutKey {
    fn at(self, place: Place) -> u64 {
        let place = match place {
            Place::Embedding => 0,
            Place::Attention(layer) => 1 + 2 * layer as u64,
            Place::Mlp(layer) => 2 + 2 * layer as u64,
        };
        combine(&[self.seed, self.step, self.micro_batch, place])
    }
}

/// Zeroes each element with probability `rate` and scales the rest to keep the mean; without a key, or at rate 0,
/// returns `x` itself.
pub fn dropout<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    rate: f64,
    key: Option<DropoutKey>,
    place: Place,
) -> Tensor<B, D> {
    let Some(key) = key.filter(|_| rate > 0.0) else {
        return x;
    };
    let shape = x.shape();
    let mut random = Random::new(key.at(place));
    let threshold = (rate * f64::from(1_u32 << 16)).round() as u64;
    let mut dropped = Vec::with_capacity(shape.num_elements() + 3);
    while dropped.len() < shape.num_elements() {
        let bits = random.bits();
        dropped.extend((0..4).map(|lane| (bits >> (16 * lane)) & 0xffff < threshold));
    }
    dropped.truncate(shape.num_elements());
    let mask = Tensor::<B, D, Bool>::from_data(TensorData::new(dropped, shape), &x.device());
    x.mask_fill(mask, 0.0).mul_scalar(1.0 / (1.0 - rate))
}
