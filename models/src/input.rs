//! The input of a model: tokens, and their followers where it has `longest_match`.

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};

use crate::dropout::{DropoutKey, Place};
use crate::rows::NamedRows;

/// Sequences of tokens, and for a model with `longest_match` what it looked up beside them.
#[derive(Debug, Clone)]
pub struct Input<B: Backend> {
    /// `[B, T]`.
    pub tokens: Tensor<B, 2, Int>,
    /// `[B, T]`: what followed the longest match up to each token, `vocab_size` where there is none. Without it no token
    /// has a match. A model without `longest_match` does not read it.
    pub followers: Option<Tensor<B, 2, Int>>,
    /// Rows of the embedding, where its table is elsewhere: tokens are then numbers of these.
    pub rows: Option<NamedRows<B>>,
}

impl<B: Backend> From<Tensor<B, 2, Int>> for Input<B> {
    fn from(tokens: Tensor<B, 2, Int>) -> Self {
        Self { tokens, followers: None, rows: None }
    }
}

impl<B: AutodiffBackend> Input<B> {
    /// The same on the tape's backend.
    pub fn from_inner(input: Input<B::InnerBackend>) -> Self {
        Self {
            tokens: Tensor::from_inner(input.tokens),
            followers: input.followers.map(Tensor::from_inner),
            rows: input.rows.map(NamedRows::from_inner),
        }
    }
}

impl<B: Backend> Input<B> {
    /// The same with some followers, of a share `rate`, replaced by `none`; without a key as it is. The model learns to do
    /// without.
    pub(crate) fn dropped(self, rate: f64, key: Option<DropoutKey>, none: usize) -> Self {
        let Some(key) = key.filter(|_| rate > 0.0) else { return self };
        let dropped = |followers: Tensor<B, 2, Int>| {
            let [rows, time] = followers.dims();
            let mask = key.numbers(Place::Followers, rows, time, rate).mask::<B>(&followers.device());
            followers.mask_fill(mask, none as i64)
        };
        Self { followers: self.followers.map(dropped), ..self }
    }
}
