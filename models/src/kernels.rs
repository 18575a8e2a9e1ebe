//! Operations that decide a GPT's training memory.
//!
//! [`Plain`] never builds a T×T matrix or all logits, but autodiff keeps every result on the tape. [`Lean`] runs the
//! same forward passes, bit for bit, as single tape nodes. Each `lean.rs` names the kept tensors.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::{Tensor, backend::Backend};

use crate::activation::{self, Pointwise};
use crate::attention::{self, AttentionOptions};
use crate::loss::{self, LossOptions, Targets};
use crate::norm;
use crate::norm::NormKind;
use crate::on_demand::{self, OnDemand};
use crate::packed::{self, Packed};
use crate::precision::Compute;

/// Operations whose tape would be too large.
pub trait Kernels<B: Backend>: Clone + std::fmt::Debug + Send + Sync {
    /// Causal attention, wide. `q` is `[batch, heads, time, width]`. `k` and `v` may have earlier positions, and fewer
    /// heads, each for consecutive query heads.
    fn attention(
        &self,
        q: Tensor<B, 4>,
        k: Tensor<B, 4>,
        v: Tensor<B, 4>,
        options: &AttentionOptions,
    ) -> Tensor<B, 4>;

    /// Mean negative log-likelihood under `softmax(hidden · headᵀ)`: `[tokens, width]` and `[vocabulary, width]`.
    fn loss(
        &self,
        hidden: Tensor<B, 2>,
        head: Tensor<B, 2>,
        targets: Targets<B>,
        options: &LossOptions,
    ) -> Tensor<B, 1>;

    /// Scales the last dimension to unit variance or mean square, plus `epsilon`.
    fn normalise<const D: usize>(&self, x: Tensor<B, D>, kind: NormKind, epsilon: f64) -> Tensor<B, D>;

    /// Applies `function` elementwise.
    fn pointwise(&self, x: Tensor<B, 3>, function: Pointwise) -> Tensor<B, 3>;

    /// `gate · sigmoid(gate) · up`.
    fn swiglu(&self, gate: Tensor<B, 3>, up: Tensor<B, 3>) -> Tensor<B, 3>;

    /// `x · weights`, wide, with weights made for this use. `leaf` gets their gradient.
    fn product(
        &self,
        x: Tensor<B, 2>,
        leaf: Tensor<B, 2>,
        weights: &OnDemand,
        compute: Compute,
    ) -> Tensor<B, 2>;

    /// `x · weights`, wide, with frozen weights.
    fn packed_product(&self, x: Tensor<B, 2>, weights: &Packed<B>) -> Tensor<B, 2>;
}

/// Chunk sizes change rounding: they follow from the batch's shape, not from budgets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chunks {
    queries: Option<usize>,
    tokens: Option<usize>,
}

impl Chunks {
    /// One chunk for everything.
    pub const WHOLE: Self = Self::of(usize::MAX, usize::MAX);

    /// Query positions per step of attention, and tokens per step of the loss.
    pub const fn of(queries: usize, tokens: usize) -> Self {
        Self { queries: Some(queries), tokens: Some(tokens) }
    }

    /// Query positions per step. The largest score tensor is `batch × heads × queries × time`.
    pub fn queries(self, time: usize) -> usize {
        self.queries.unwrap_or(QUERIES).clamp(1, time.max(1))
    }

    /// Tokens per step; the largest logit tensor is `tokens × vocabulary`. Few steps are better: each adds to the
    /// head's whole gradient. Logits take at most the MLP activations' bytes, above a minimum.
    pub fn tokens(self, all: usize, width: usize, vocabulary: usize) -> usize {
        let by_shape = || (4 * width).saturating_mul(all) / vocabulary.max(1);
        self.tokens.unwrap_or_else(|| by_shape().max(LEAST_TOKENS)).clamp(1, all.max(1))
    }

    fn tokens_of<B: Backend>(self, hidden: &Tensor<B, 2>, head: &Tensor<B, 2>) -> usize {
        let ([tokens, width], [vocabulary, _]) = (hidden.dims(), head.dims());
        self.tokens(tokens, width, vocabulary)
    }
}

const QUERIES: usize = 128;
const LEAST_TOKENS: usize = 512;

/// Ordinary tensor operations on any backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain(pub Chunks);

/// Hand-written backward passes with small tapes, for `Autodiff`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lean(pub Chunks);

impl<B: Backend> Kernels<B> for Plain {
    fn attention(
        &self,
        q: Tensor<B, 4>,
        k: Tensor<B, 4>,
        v: Tensor<B, 4>,
        options: &AttentionOptions,
    ) -> Tensor<B, 4> {
        let chunk = self.0.queries(q.dims()[2]);
        attention::forward(&q, &k, &v, options, chunk, None).output
    }

    fn loss(
        &self,
        hidden: Tensor<B, 2>,
        head: Tensor<B, 2>,
        targets: Targets<B>,
        options: &LossOptions,
    ) -> Tensor<B, 1> {
        let chunk = self.0.tokens_of(&hidden, &head);
        loss::plain(hidden, head, &targets, options, chunk)
    }

    fn normalise<const D: usize>(&self, x: Tensor<B, D>, kind: NormKind, epsilon: f64) -> Tensor<B, D> {
        norm::forward(x, kind, epsilon).rows
    }

    fn pointwise(&self, x: Tensor<B, 3>, function: Pointwise) -> Tensor<B, 3> {
        activation::forward(x, function)
    }

    fn swiglu(&self, gate: Tensor<B, 3>, up: Tensor<B, 3>) -> Tensor<B, 3> {
        activation::swiglu(gate, up)
    }

    fn product(
        &self,
        x: Tensor<B, 2>,
        _leaf: Tensor<B, 2>,
        weights: &OnDemand,
        compute: Compute,
    ) -> Tensor<B, 2> {
        compute.product(x, compute.narrow(weights.weights()))
    }

    fn packed_product(&self, x: Tensor<B, 2>, weights: &Packed<B>) -> Tensor<B, 2> {
        weights.product(x)
    }
}

impl<I: Backend, C: CheckpointStrategy> Kernels<Autodiff<I, C>> for Lean {
    fn attention(
        &self,
        q: Tensor<Autodiff<I, C>, 4>,
        k: Tensor<Autodiff<I, C>, 4>,
        v: Tensor<Autodiff<I, C>, 4>,
        options: &AttentionOptions,
    ) -> Tensor<Autodiff<I, C>, 4> {
        let chunk = self.0.queries(q.dims()[2]);
        attention::lean(q, k, v, options, chunk)
    }

    fn loss(
        &self,
        hidden: Tensor<Autodiff<I, C>, 2>,
        head: Tensor<Autodiff<I, C>, 2>,
        targets: Targets<Autodiff<I, C>>,
        options: &LossOptions,
    ) -> Tensor<Autodiff<I, C>, 1> {
        let chunk = self.0.tokens_of(&hidden, &head);
        loss::lean(hidden, head, targets, options, chunk)
    }

    fn normalise<const D: usize>(
        &self,
        x: Tensor<Autodiff<I, C>, D>,
        kind: NormKind,
        epsilon: f64,
    ) -> Tensor<Autodiff<I, C>, D> {
        norm::lean(x, kind, epsilon)
    }

    fn pointwise(&self, x: Tensor<Autodiff<I, C>, 3>, function: Pointwise) -> Tensor<Autodiff<I, C>, 3> {
        activation::lean(x, function)
    }

    fn swiglu(
        &self,
        gate: Tensor<Autodiff<I, C>, 3>,
        up: Tensor<Autodiff<I, C>, 3>,
    ) -> Tensor<Autodiff<I, C>, 3> {
        activation::lean_swiglu(gate, up)
    }

    fn product(
        &self,
        x: Tensor<Autodiff<I, C>, 2>,
        leaf: Tensor<Autodiff<I, C>, 2>,
        weights: &OnDemand,
        compute: Compute,
    ) -> Tensor<Autodiff<I, C>, 2> {
        on_demand::product(x, leaf, weights, compute)
    }

    fn packed_product(
        &self,
        x: Tensor<Autodiff<I, C>, 2>,
        weights: &Packed<Autodiff<I, C>>,
    ) -> Tensor<Autodiff<I, C>, 2> {
        packed::product(x, weights)
    }
}
