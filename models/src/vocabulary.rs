//! Models that get more tokens than they were made with.

use burn::module::Param;
use burn::tensor::{Tensor, backend::Backend};

use crate::gpt::Gpt;

impl<B: Backend> Gpt<B> {
    /// The same model with `vocab_size` tokens. Those it had keep their ids; every new one begins as their mean, in the
    /// embedding and in the head, so that it is neither likely nor unlikely.
    ///
    /// # Panics
    /// Where the model has more tokens than that, or was narrowed for inference.
    #[must_use]
    pub fn with_vocabulary(mut self, vocab_size: usize) -> Self {
        let known = self.config.vocab_size;
        assert!(self.narrow_head.is_none(), "a model narrowed for inference keeps its vocabulary");
        assert!(vocab_size >= known, "a vocabulary of {known} does not shrink to {vocab_size}");
        if vocab_size > known {
            self.wte = widened(self.wte, vocab_size);
            self.lm_head = self.lm_head.map(|head| widened(head, vocab_size));
            self.config.vocab_size = vocab_size;
        }
        self
    }
}

fn widened<B: Backend>(rows: Param<Tensor<B, 2>>, wanted: usize) -> Param<Tensor<B, 2>> {
    rows.map(|rows| {
        let known = rows.dims()[0];
        let mean = rows.clone().mean_dim(0).repeat_dim(0, wanted - known);
        // What learns is the new matrix, not the road to it.
        Tensor::cat(vec![rows, mean], 0).detach().require_grad()
    })
}
