//! A fresh model's initialisation, one column per family.
//!
//! | | `gpt2` | `llama` | `nanochat` |
//! |---|---|---|---|
//! | token embedding | N(0, r) | N(0, r) | N(0, 1) |
//! | position embedding | N(0, r) | – | – |
//! | head, where untied | N(0, r) | N(0, r) | N(0, 0.001) |
//! | matrices inside a block | N(0, r) | N(0, r) | N(0, s), s = min(1, √(out / in)) / √in |
//! | matrices onto the residual stream | N(0, r / √(2 `n_layer`)) | as `scale_residual_init` says | 0 |
//! | norm scales, all offsets | 1, 0 | 1, 0 | 1, 0 |
//! | embedding of followers | 0 | 0 | 0 |
//!
//! r is `initializer_range`; `scale_residual_init` switches the division by √(2 `n_layer`). Each tensor depends on seed
//! and name alone.

use burn::module::{Param, ParamId};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use rayon::prelude::*;

use crate::config::{Family, GptConfig};
use crate::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Embedding,
    Head,
    Hidden,
    Residual,
    Follower,
}

/// Whether a process needs a named parameter's numbers.
pub type Holds<'h> = &'h dyn Fn(&str) -> bool;

pub(crate) struct Filler<'a, B: Backend> {
    pub(crate) config: &'a GptConfig,
    /// `None`: zeros, allocated at first use.
    pub(crate) seed: Option<u64>,
    pub(crate) holds: Holds<'a>,
    pub(crate) device: &'a B::Device,
}

impl GptConfig {
    pub(crate) fn deviation(&self, role: Role, [inputs, outputs]: [usize; 2]) -> f64 {
        let range = self.initializer_range;
        match (self.init, role) {
            (Family::Nanochat, Role::Embedding) => 1.0,
            (Family::Nanochat, Role::Head) => 0.001,
            // Zeros: at first a model without followers.
            (_, Role::Follower) | (Family::Nanochat, Role::Residual) => 0.0,
            (Family::Nanochat, Role::Hidden) => {
                (outputs as f64 / inputs as f64).sqrt().min(1.0) / (inputs as f64).sqrt()
            }
            (_, Role::Residual) if self.scale_residual_init => range / (2.0 * self.n_layer as f64).sqrt(),
            _ => range,
        }
    }

    /// Standard deviation of the head. An untrained loss is about `ln(vocab_size) + deviation² · n_embd / 2`.
    pub fn head_deviation(&self) -> f64 {
        let role = if self.tie_word_embeddings { Role::Embedding } else { Role::Head };
        self.deviation(role, [self.n_embd, self.vocab_size])
    }
}

fn normals(random: &Random, count: usize, deviation: f64) -> Vec<f32> {
    const PIECE: usize = 1 << 14;
    let mut values = vec![0.0; count];
    values.par_chunks_mut(PIECE).enumerate().for_each(|(n, values)| {
        let mut random = random.after(2 * (n * PIECE) as u64);
        for value in values {
            *value = (random.normal() * deviation) as f32;
        }
    });
    values
}

impl<B: Backend> Filler<'_, B> {
    pub(crate) fn matrix(&mut self, name: &str, role: Role, shape: [usize; 2]) -> Param<Tensor<B, 2>> {
        let Some(seed) = self.seed.filter(|_| (self.holds)(name)) else { return self.unfilled(shape) };
        let deviation = self.config.deviation(role, shape);
        if deviation <= 0.0 {
            return Param::from_tensor(Tensor::zeros(shape, self.device));
        }
        let values = normals(&Random::named(seed, name), shape[0] * shape[1], deviation);
        Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), self.device))
    }

    pub(crate) fn vector(&mut self, width: usize, value: f32) -> Param<Tensor<B, 1>> {
        if self.seed.is_none() {
            return self.unfilled([width]);
        }
        Param::from_tensor(Tensor::full([width], value, self.device))
    }

    fn unfilled<const D: usize>(&self, shape: [usize; D]) -> Param<Tensor<B, D>> {
        let zeros = move |device: &B::Device, require_grad| {
            Tensor::zeros(shape, device).set_require_grad(require_grad)
        };
        Param::uninitialized(ParamId::new(), zeros, self.device.clone(), true, shape.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_draws_equal_sequential_draws() {
        let mut random = Random::named(7, "wte");
        let drawn = normals(&random, 40_000, 0.02);
        for (n, value) in drawn.into_iter().enumerate() {
            assert_eq!(value.to_bits(), ((random.normal() * 0.02) as f32).to_bits(), "number {n}");
        }
    }
}
