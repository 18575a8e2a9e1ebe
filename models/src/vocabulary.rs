//! Growing a trained model: more tokens, or followers of longest matches.

use burn::module::Param;
use burn::tensor::{Tensor, backend::Backend};

use crate::gpt::Gpt;

impl<B: Backend> Gpt<B> {
    /// The same model with `vocab_size` tokens. Known tokens keep their ids. New ones start as the mean of the known,
    /// in embeddings and head, so that they are neither likely nor unlikely.
    ///
    /// # Panics
    /// If the model has more tokens than that, or was narrowed for inference.
    #[must_use]
    pub fn with_vocabulary(mut self, vocab_size: usize) -> Self {
        let known = self.config.vocab_size;
        assert!(self.narrow_head.is_none(), "a model narrowed for inference keeps its vocabulary");
        assert!(vocab_size >= known, "a vocabulary of {known} does not shrink to {vocab_size}");
        if vocab_size > known {
            let more = vocab_size - known;
            self.wte = widened(self.wte, known, more);
            self.lm_head = self.lm_head.map(|head| widened(head, known, more));
            self.followers = self.followers.map(|table| widened(table, known, more));
            self.config.vocab_size = vocab_size;
        }
        self
    }

    /// The same model with `longest_match`, a share `match_pdrop` of its matches hidden in training. A new table starts
    /// as zeros, so results stay the same until it has learned.
    ///
    /// # Panics
    /// If the model was narrowed for inference.
    #[must_use]
    pub fn with_longest_match(mut self, match_pdrop: f64) -> Self {
        assert!(self.narrow_head.is_none(), "a model narrowed for inference learns nothing more");
        if self.followers.is_none() {
            let (rows, width) = (self.config.vocab_size + 1, self.config.n_embd);
            let table = Tensor::zeros([rows, width], &self.wte.val().device());
            self.followers = Some(Param::from_tensor(table));
            self.config.longest_match = true;
        }
        self.config.match_pdrop = match_pdrop;
        self
    }
}

/// Inserts `more` rows after the first `known`. A row for no match stays last.
fn widened<B: Backend>(rows: Param<Tensor<B, 2>>, known: usize, more: usize) -> Param<Tensor<B, 2>> {
    rows.map(|rows| {
        let all = rows.dims()[0];
        let tokens = rows.clone().slice_dim(0, 0..known);
        let mean = tokens.clone().mean_dim(0).repeat_dim(0, more);
        let mut parts = vec![tokens, mean];
        if all > known {
            parts.push(rows.slice_dim(0, known..all));
        }
        // The new matrix is the leaf that learns, without a history.
        Tensor::cat(parts, 0).detach().require_grad()
    })
}
