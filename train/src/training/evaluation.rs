//! The validation loss over fixed sequences.

use anyhow::{bail, ensure};
use burn::tensor::backend::Backend;
use burn_dataset::Dataset;
use burn_train::InferenceStep;
use serde::Serialize;
use tokenizer::Tokenizer;

use super::{Learner, Validation};
use crate::data::ValidationWindows;

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Evaluation {
    /// Mean negative log-likelihood of the targets that count, in nats.
    pub(crate) loss: f64,
    pub(crate) perplexity: f64,
    /// `None` where no target stands for text.
    pub(crate) bits_per_byte: Option<f64>,
    pub(crate) sequences: u64,
}

/// Runs over `windows`, at most `batches` of them, and tells `observe` of each.
pub(crate) fn evaluate<B: Backend>(
    learner: &Learner<B>,
    windows: &ValidationWindows,
    tokenizer: &Tokenizer,
    batches: usize,
    mut observe: impl FnMut(&Validation),
) -> anyhow::Result<Evaluation> {
    let (mut sum, mut counted, mut text, mut sequences) = (0.0, 0.0, 0, 0);
    for micro_batch in windows.iter().take(batches) {
        sequences += micro_batch.rows as u64;
        text += bytes(tokenizer, micro_batch.counted_targets())?;
        let validation = learner.step(micro_batch);
        if let Some(failure) = &validation.failure {
            bail!("validation could not run: {failure}");
        }
        observe(&validation);
        sum += validation.sum;
        counted += validation.counted;
    }
    if let Some(failure) = windows.failure() {
        return Err(failure.into());
    }
    ensure!(counted > 0.0, "no token of the validation data counts: it holds no answer to learn from");
    let loss = sum / counted;
    let bits_per_byte = (text > 0).then(|| sum / std::f64::consts::LN_2 / text as f64);
    Ok(Evaluation { loss, perplexity: loss.exp(), bits_per_byte, sequences })
}

/// Bytes of the text that `ids` stand for; control tokens stand for none.
fn bytes(tokenizer: &Tokenizer, ids: impl Iterator<Item = u32>) -> Result<usize, tokenizer::Error> {
    let words: Vec<u32> = ids.filter(|id| !tokenizer.specials().contains(*id)).collect();
    Ok(tokenizer.decode_bytes(&words)?.len())
}
