//! A run, described: seven sections of one JSON file.
//!
//! Everything has a default but the model's sizes, and the resolved whole is what a run directory keeps: it alone
//! reproduces the run. Nothing here opens a device, a tokenizer or a data set.

mod sections;

pub(crate) use sections::*;

use models::GptConfig;
use serde::Serialize;

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Config {
    pub(crate) model: GptConfig,
    pub(crate) tokenizer: TokenizerSection,
    pub(crate) data: DataSection,
    pub(crate) train: TrainSection,
    pub(crate) eval: EvalSection,
    pub(crate) checkpoint: CheckpointSection,
    pub(crate) memory: MemorySection,
}

impl Config {
    /// Tokens in one sequence of a batch.
    pub(crate) fn sequence(&self) -> usize {
        self.train.sequence.unwrap_or(self.model.n_positions)
    }

    /// Tokens that one optimizer step learns from.
    pub(crate) fn tokens_per_step(&self) -> u64 {
        (self.train.micro_batch * self.train.accumulate * self.sequence()) as u64
    }
}
