//! How a fresh model's numbers are drawn: one table, one row per family.
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
//! r is `initializer_range`. `scale_residual_init` turns the division by √(2 `n_layer`) on or off for the first two
//! families. Each tensor is drawn on the host from (seed, its name), so the numbers are the same on every backend and
//! do not change when another tensor is added.

use burn::module::{Param, ParamId};
use burn::tensor::{Tensor, TensorData, backend::Backend};

use crate::config::{Family, GptConfig};
use crate::random::Random;

/// The role of a matrix, which decides its first values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Embedding,
    Head,
    Hidden,
    Residual,
    Follower,
}

/// Draws parameters for one model.
pub(crate) struct Filler<'a, B: Backend> {
    pub(crate) config: &'a GptConfig,
    /// Without a seed nothing is drawn, and each parameter is allocated when it is first used.
    pub(crate) seed: Option<u64>,
    pub(crate) device: &'a B::Device,
}

impl GptConfig {
    /// Standard deviation of a matrix `[inputs, outputs]` by the table above.
    pub(crate) fn deviation(&self, role: Role, [inputs, outputs]: [usize; 2]) -> f64 {
        let range = self.initializer_range;
        match (self.init, role) {
            (Family::Nanochat, Role::Embedding) => 1.0,
            (Family::Nanochat, Role::Head) => 0.001,
            // With no followers known, the model begins as the one that does not read any.
            (_, Role::Follower) | (Family::Nanochat, Role::Residual) => 0.0,
            (Family::Nanochat, Role::Hidden) => {
                (outputs as f64 / inputs as f64).sqrt().min(1.0) / (inputs as f64).sqrt()
            }
            (_, Role::Residual) if self.scale_residual_init => range / (2.0 * self.n_layer as f64).sqrt(),
            _ => range,
        }
    }

    /// Standard deviation of the output head's first weights: with it, the loss of an untrained model is about
    /// `ln(vocab_size) + deviation² · n_embd / 2`.
    pub fn head_deviation(&self) -> f64 {
        let role = if self.tie_word_embeddings { Role::Embedding } else { Role::Head };
        self.deviation(role, [self.n_embd, self.vocab_size])
    }
}

impl<B: Backend> Filler<'_, B> {
    pub(crate) fn matrix(&mut self, name: &str, role: Role, shape: [usize; 2]) -> Param<Tensor<B, 2>> {
        let Some(seed) = self.seed else { return self.unfilled(shape) };
        let deviation = self.config.deviation(role, shape);
        if deviation <= 0.0 {
            return Param::from_tensor(Tensor::zeros(shape, self.device));
        }
        let mut random = Random::named(seed, name);
        let values: Vec<f32> =
            (0..shape[0] * shape[1]).map(|_| (random.normal() * deviation) as f32).collect();
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
