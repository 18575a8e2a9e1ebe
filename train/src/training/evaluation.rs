//! The validation loss over fixed sequences.

use anyhow::bail;
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

/// Bytes of text behind each id; control tokens stand for none.
#[derive(Debug, Clone)]
pub(crate) struct TokenBytes(Vec<u32>);

impl TokenBytes {
    pub(crate) fn of(tokenizer: &Tokenizer) -> Self {
        let bytes = |id: u32| {
            let control = tokenizer.specials().contains(id);
            if control { 0 } else { tokenizer.decode_bytes(&[id]).map_or(0, |bytes| bytes.len() as u32) }
        };
        Self((0..tokenizer.vocab_size()).map(bytes).collect())
    }
}

/// Runs over `windows`, at most `batches` of them, and tells `observe` of each.
pub(crate) fn evaluate<B: Backend>(
    learner: &Learner<B>,
    windows: &ValidationWindows,
    bytes: &TokenBytes,
    batches: usize,
    mut observe: impl FnMut(&Validation),
) -> anyhow::Result<Evaluation> {
    let (mut sum, mut counted, mut text, mut sequences) = (0.0, 0.0, 0_u64, 0);
    for micro_batch in windows.iter().take(batches) {
        sequences += micro_batch.rows as u64;
        text += micro_batch.counted_targets().map(|id| u64::from(bytes.0[id as usize])).sum::<u64>();
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
    let loss = sum / f64::max(counted, 1.0);
    let bits_per_byte = (text > 0).then(|| sum / std::f64::consts::LN_2 / text as f64);
    Ok(Evaluation { loss, perplexity: loss.exp(), bits_per_byte, sequences })
}
