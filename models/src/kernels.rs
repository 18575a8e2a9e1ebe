//! The two places where a GPT's training memory is decided, behind one small value.
//!
//! [`Plain`] is written in ordinary tensor operations and runs on every backend. It works in chunks, so that without a
//! tape attention never builds a T×T matrix nor the loss all logits; under autodiff the tape keeps what every chunk made.
//! [`Lean`] is implemented for `Autodiff` alone: there the same two operations are single nodes of the tape with a
//! backward written by hand, which keeps what [`crate::attention`] and [`crate::loss`] say and nothing else. The forward
//! pass takes the value as an argument, so the network is one piece of code for both.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::{Tensor, backend::Backend};

use crate::attention::{self, AttentionOptions};
use crate::loss::{self, LossOptions, Targets};

/// Attention and loss as the network calls them.
pub trait Kernels<B: Backend>: Clone + std::fmt::Debug + Send + Sync {
    /// Causal attention. `q` is `[batch, heads, time, width]`; `k` and `v` have as many or fewer heads, each serving a
    /// run of consecutive query heads, and may be longer in time: the queries are then the last positions. All three are
    /// in the type `options.compute` names; the result is wide.
    fn attention(
        &self,
        q: Tensor<B, 4>,
        k: Tensor<B, 4>,
        v: Tensor<B, 4>,
        options: &AttentionOptions,
    ) -> Tensor<B, 4>;

    /// Mean negative log-likelihood of the targets under `softmax(hidden · headᵀ)`; `hidden` is `[tokens, width]`,
    /// `head` is `[vocabulary, width]`.
    fn loss(
        &self,
        hidden: Tensor<B, 2>,
        head: Tensor<B, 2>,
        targets: Targets<B>,
        options: &LossOptions,
    ) -> Tensor<B, 1>;
}

/// How much is computed at once. Results depend on it only through rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunks {
    /// Query positions per step of attention: the largest score tensor is `batch × heads × queries × time`.
    pub queries: usize,
    /// Tokens per step of the loss: the largest logit tensor is `tokens × vocabulary`.
    pub tokens: usize,
}

impl Chunks {
    /// Everything in one step.
    pub const WHOLE: Self = Self { queries: usize::MAX, tokens: usize::MAX };
}

impl Default for Chunks {
    fn default() -> Self {
        Self { queries: 128, tokens: 512 }
    }
}

/// Ordinary tensor operations, on any backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain(pub Chunks);

/// Hand-written backward passes that save little, on `Autodiff` over any backend.
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
        attention::forward(&q, &k, &v, options, self.0.queries, None).output
    }

    fn loss(
        &self,
        hidden: Tensor<B, 2>,
        head: Tensor<B, 2>,
        targets: Targets<B>,
        options: &LossOptions,
    ) -> Tensor<B, 1> {
        loss::plain(hidden, head, &targets, options, self.0.tokens)
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
        attention::lean(q, k, v, options, self.0.queries)
    }

    fn loss(
        &self,
        hidden: Tensor<Autodiff<I, C>, 2>,
        head: Tensor<Autodiff<I, C>, 2>,
        targets: Targets<Autodiff<I, C>>,
        options: &LossOptions,
    ) -> Tensor<Autodiff<I, C>, 1> {
        loss::lean(hidden, head, targets, options, self.0.tokens)
    }
}
