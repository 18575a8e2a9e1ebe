//! Cross-entropy over a large vocabulary, in chunks of tokens.
//!
//! Logits are a small GPT's largest tensor: 8 × 1,024 tokens over 50,257 words are 1.6 GB in f32, and ordinary code
//! holds three. Each chunk frees its logits; under autodiff, only `lean.rs` does.

mod lean;

use std::ops::Range;

use burn::tensor::{Int, Tensor, backend::Backend};

use crate::attention::soft_cap;
use crate::precision::Compute;
pub(crate) use lean::lean;

/// The tokens to predict.
#[derive(Debug, Clone)]
pub struct Targets<B: Backend> {
    /// One per row of the hidden states.
    pub ids: Tensor<B, 1, Int>,
    /// Each token's weight; 0 for prompts and padding.
    pub mask: Option<Tensor<B, 1>>,
}

/// Settings of the loss.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossOptions {
    /// `c * tanh(logit / c)` on the logits.
    pub soft_cap: Option<f64>,
    /// Weight of the squared log-partition function, which keeps logits from drifting.
    pub z_loss: f64,
    /// Divisor of the sum; `None` for the mask's sum. Micro-batches share the whole batch's count.
    pub divisor: Option<f64>,
    /// Type of the product with the head.
    pub compute: Compute,
}

fn logits<B: Backend>(hidden: Tensor<B, 2>, head: Tensor<B, 2>, options: &LossOptions) -> Tensor<B, 2> {
    soft_cap(options.compute.product(hidden, head.transpose()), options.soft_cap)
}

/// Terms of some rows, `[rows, 1]` except `exponentials`.
struct TokenLoss<B: Backend> {
    loss: Tensor<B, 2>,
    log_sum: Tensor<B, 2>,
    /// `exp(logit - highest)`, and their sum.
    exponentials: Tensor<B, 2>,
    total: Tensor<B, 2>,
}

fn token_loss<B: Backend>(
    logits: Tensor<B, 2>,
    ids: Tensor<B, 2, Int>,
    options: &LossOptions,
) -> TokenLoss<B> {
    let right = logits.clone().gather(1, ids);
    let highest = logits.clone().detach().max_dim(1);
    let exponentials = (logits - highest.clone()).exp();
    let total = exponentials.clone().sum_dim(1);
    let log_sum = total.clone().log() + highest;
    let mut loss = log_sum.clone() - right;
    if options.z_loss != 0.0 {
        loss = loss + log_sum.clone().powi_scalar(2).mul_scalar(options.z_loss);
    }
    TokenLoss { loss, log_sum, exponentials, total }
}

impl<B: Backend> Targets<B> {
    fn rows(&self, rows: Range<usize>) -> (Tensor<B, 2, Int>, Option<Tensor<B, 2>>) {
        let column = [rows.len(), 1];
        let ids = self.ids.clone().slice_dim(0, rows.clone()).reshape(column);
        (ids, self.mask.clone().map(|mask| mask.slice_dim(0, rows).reshape(column)))
    }

    /// `[1]`, in the type of `like`. An all-zero mask gives loss 0, not NaN.
    fn weight(&self, options: &LossOptions, like: &Tensor<B, 2>) -> Tensor<B, 1> {
        let one = Tensor::<B, 1>::ones([1], &like.device()).cast(like.dtype());
        match (options.divisor, self.mask.clone()) {
            (Some(divisor), _) => one.div_scalar(divisor),
            (None, Some(mask)) => one / mask.sum().clamp_min(1e-9),
            (None, None) => one.div_scalar(self.ids.dims()[0] as f64),
        }
    }
}

fn chunks(tokens: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    let size = size.clamp(1, tokens);
    (0..tokens).step_by(size).map(move |start| start..(start + size).min(tokens))
}

pub(crate) fn plain<B: Backend>(
    hidden: Tensor<B, 2>,
    head: Tensor<B, 2>,
    targets: &Targets<B>,
    options: &LossOptions,
    chunk_size: usize,
) -> Tensor<B, 1> {
    let weight = targets.weight(options, &hidden);
    let hidden = options.compute.narrow(hidden);
    let head = options.compute.narrow(head);
    let sums = chunks(hidden.dims()[0], chunk_size).map(|rows| {
        let (ids, mask) = targets.rows(rows.clone());
        let logits = logits(hidden.clone().slice_dim(0, rows), head.clone(), options);
        let TokenLoss { loss, .. } = token_loss(logits, ids, options);
        match mask {
            Some(mask) => (loss * mask).sum(),
            None => loss.sum(),
        }
    });
    let total = sums.reduce(|sum, part| sum + part).expect("a batch has at least one token");
    total * weight
}
