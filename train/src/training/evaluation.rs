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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use burn::backend::{Flex, flex::FlexDevice};
    use burn::module::Param;
    use models::Gpt;

    use super::*;
    use crate::config::Config;
    use crate::data;

    #[test]
    fn bits_per_byte_count_the_bytes_of_the_text_and_not_its_tokens() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("in.txt");
        std::fs::write(&text, "é".repeat(400)).expect("writing");
        let description = serde_json::json!({
            "model": {"n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 8, "vocab_size": 16},
            "tokenizer": {"kind": "characters", "chat": false},
            "data": {"source": "text", "path": text, "split": "position", "val_fraction": 0.5},
        });
        let config = Config::from_text(&description.to_string(), "a tiny run", &[]).expect("valid");
        let data = data::prepare(&config, folder.path(), None, &AtomicBool::new(false)).expect("prepared");
        let windows = ValidationWindows::open(&config, &data, None).expect("there are some");
        let mut gpt = Gpt::<Flex>::new(&config.model, 1, &FlexDevice).expect("valid");
        // With a head of zeros each of the 16 ids is as likely as any other: four bits a target.
        gpt.wte = Param::from_tensor(gpt.wte.val().zeros_like());
        let learner = Learner::new(gpt, &config);
        let measured = evaluate(&learner, &windows, &data.tokenizer, usize::MAX, |_| {}).expect("measured");
        assert!((measured.loss - 16_f64.ln()).abs() < 1e-5, "{measured:?}");
        // Every target is an é, which UTF-8 writes in two bytes.
        assert!((measured.bits_per_byte.expect("text") - 2.0).abs() < 1e-5, "{measured:?}");
    }
}
