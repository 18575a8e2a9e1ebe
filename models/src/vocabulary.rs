//! Grows a trained model: more tokens, or followers of longest matches.

use std::ops::Range;

use burn::module::Param;
use burn::tensor::{Tensor, backend::Backend};

use crate::gpt::Gpt;

impl<B: Backend> Gpt<B> {
    /// The same model with tokens `new`, in tables of `rows` rows. Tokens below `new` keep their rows. All others start
    /// as the mean of these: neither likely nor unlikely.
    ///
    /// # Panics
    /// If the model has more than `rows` rows, fewer than `new.start`, or was narrowed for inference.
    #[must_use]
    pub fn with_vocabulary(mut self, new: Range<usize>, rows: usize) -> Self {
        let known = self.config.vocab_size;
        assert!(self.narrow_head.is_none(), "a model narrowed for inference keeps its vocabulary");
        assert!(rows >= known.max(new.end), "a vocabulary of {known} with {new:?} does not fit {rows} rows");
        assert!(new.start <= known, "tokens from {} on leave a gap after {known} rows", new.start);
        if new.is_empty() && rows == known {
            return self;
        }
        self.wte = renewed(self.wte, &new, known, rows);
        self.lm_head = self.lm_head.map(|head| renewed(head, &new, known, rows));
        self.followers = self.followers.map(|table| renewed(table, &new, known, rows));
        self.config.vocab_size = rows;
        self
    }

    /// The same model with `longest_match`; training hides a share `match_pdrop` of matches. Its table of zeros changes
    /// no result.
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

/// Rows of `new`, and from `known` to `wanted`, become the mean of rows before `new`. The row for no match stays last.
fn renewed<B: Backend>(
    table: Param<Tensor<B, 2>>,
    new: &Range<usize>,
    known: usize,
    wanted: usize,
) -> Param<Tensor<B, 2>> {
    table.map(|rows| {
        let all = rows.dims()[0];
        let trained = rows.clone().slice_dim(0, 0..new.start);
        let mean = trained.clone().mean_dim(0);
        let kept = new.end.max(new.start).min(known)..known;
        let appended = wanted - known.max(new.end);
        let mut parts = vec![trained];
        for (more, old) in [(new.len(), kept), (appended, known..all)] {
            if more > 0 {
                parts.push(mean.clone().repeat_dim(0, more));
            }
            if !old.is_empty() {
                parts.push(rows.clone().slice_dim(0, old));
            }
        }
        // A leaf without history.
        Tensor::cat(parts, 0).detach().require_grad()
    })
}
