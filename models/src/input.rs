//! A model's input: tokens, followers, embedding rows.

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};

use crate::dropout::{DropoutKey, Place};
use crate::rows::NamedRows;

/// Sequences of tokens, with followers for `longest_match`.
#[derive(Debug, Clone)]
pub struct Input<B: Backend> {
    /// `[B, T]`.
    pub tokens: Tensor<B, 2, Int>,
    /// Each token's follower, `[B, T]`; `vocab_size` for no match. `None` matches nothing.
    pub followers: Option<Tensor<B, 2, Int>>,
    /// Embedding rows fetched on demand; `tokens` are then indices into them.
    pub rows: Option<NamedRows<B>>,
}

impl<B: Backend> From<Tensor<B, 2, Int>> for Input<B> {
    fn from(tokens: Tensor<B, 2, Int>) -> Self {
        Self { tokens, followers: None, rows: None }
    }
}

impl<B: AutodiffBackend> Input<B> {
    /// The same input on the autodiff backend.
    pub fn from_inner(input: Input<B::InnerBackend>) -> Self {
        Self {
            tokens: Tensor::from_inner(input.tokens),
            followers: input.followers.map(Tensor::from_inner),
            rows: input.rows.map(NamedRows::from_inner),
        }
    }
}

impl<B: Backend> Input<B> {
    /// Hides a share `rate` of followers: the model learns to do without.
    pub(crate) fn drop_followers(self, rate: f64, key: Option<DropoutKey>, none: usize) -> Self {
        let Some(key) = key.filter(|_| rate > 0.0) else { return self };
        let dropped = |followers: Tensor<B, 2, Int>| {
            let [rows, time] = followers.dims();
            let mask = key.numbers(Place::Followers, rows, time, rate).mask::<B>(&followers.device());
            followers.mask_fill(mask, none as i64)
        };
        Self { followers: self.followers.map(dropped), ..self }
    }
}
