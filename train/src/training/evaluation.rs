//! The validation loss over fixed sequences; with lookups also without copies of training text
//! (`validation_is_reported_with_and_without_copies_of_training_text`).

use std::fmt;
use std::ops::Range;

use anyhow::{bail, ensure};
use backend_offload::Offloadable;
use burn::data::dataloader::Progress as Items;
use burn::module::AutodiffModule;
use burn::tensor::backend::Backend;
use burn_dataset::Dataset;
use burn_train::{EventProcessorTraining, InferenceStep, LearnerEvent, TrainingItem};
use bytemuck::{Pod, Zeroable};
use runs::BadInput;
use serde::Serialize;
use serde_json::json;
use tokenizer::Tokenizer;

use super::pipeline::Measuring;
use super::samples::{prompts, speaker};
use super::session::Best;
use super::strategy::{Events, Tape};
use super::{Learner, Session, Trainer};
use crate::data::{MicroBatch, ValidationWindows, questions};
use crate::optimizer::GatherSession;
use crate::progress::Validation;
use crate::ranks::Ranks;

const TRIAL_BATCHES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Evaluation {
    /// Mean over counted targets, in nats.
    pub(crate) loss: f64,
    pub(crate) perplexity: f64,
    /// `None` if no target stands for text.
    pub(crate) bits_per_byte: Option<f64>,
    pub(crate) sequences: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) without_copies: Option<Fresh>,
}

/// Results without copies of indexed documents, whose tokens the model looks up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Fresh {
    /// `None` if all targets are in copies.
    pub(crate) loss: Option<f64>,
    pub(crate) perplexity: Option<f64>,
    /// Targets in copies, and all that count.
    pub(crate) copied_targets: u64,
    pub(crate) targets: u64,
}

impl Fresh {
    fn new(sum: f64, counted: f64, all: f64) -> Self {
        let loss = (counted > 0.0).then(|| sum / counted);
        let (copied_targets, targets) = ((all - counted) as u64, all as u64);
        Self { loss, perplexity: loss.map(f64::exp), copied_targets, targets }
    }
}

impl fmt::Display for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copied = 100.0 * self.copied_targets as f64 / self.targets.max(1) as f64;
        match (self.loss, self.perplexity) {
            _ if self.copied_targets == 0 => f.write_str("no copies of indexed documents"),
            (Some(loss), Some(perplexity)) => {
                write!(
                    f,
                    "without the {copied:.1} % in copies of indexed documents: loss {loss:.4} | perplexity {perplexity:.2}"
                )
            }
            _ => f.write_str("all of it copies of indexed documents"),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Measured {
    sum: f64,
    counted: f64,
    fresh: [f64; 2],
    sequences: u64,
    bytes: u64,
}

pub(crate) fn evaluate<B: Backend>(
    learner: &Learner<B>,
    windows: &ValidationWindows,
    tokenizer: &Tokenizer,
    batches: usize,
) -> anyhow::Result<Evaluation> {
    let all = 0..windows.len().min(batches);
    Evaluation::of(&measure(|batch| learner.step(batch), windows, tokenizer, all, |_| {})?, windows)
}

fn measure(
    mut pass: impl FnMut(MicroBatch) -> Validation,
    windows: &ValidationWindows,
    tokenizer: &Tokenizer,
    batches: Range<usize>,
    mut observe: impl FnMut(&Validation),
) -> anyhow::Result<Vec<Measured>> {
    let mut step = |batch: MicroBatch| {
        let validation = pass(batch);
        match &validation.failure {
            Some(failure) => bail!("validation could not run: {failure}"),
            None => Ok(validation),
        }
    };

    let mut all = Vec::with_capacity(batches.len());
    for index in batches {
        let Some(micro_batch) = windows.get(index) else { break };
        let (sequences, bytes) =
            (micro_batch.rows as u64, bytes(tokenizer, micro_batch.counted_targets())? as u64);
        let without_copies = windows.without_copies(index, &micro_batch);
        let validation = step(micro_batch)?;
        observe(&validation);
        let (sum, counted) = (validation.sum, validation.counted);
        let fresh = match without_copies {
            Some(batch) if batch.counted() > 0.0 => step(batch).map(|fresh| [fresh.sum, fresh.counted])?,
            Some(_all_copied) => [0.0; 2],
            None => [sum, counted],
        };
        all.push(Measured { sum, counted, fresh, sequences, bytes });
    }
    windows.failure().map_or(Ok(all), |failure| Err(failure.into()))
}

fn readable(windows: &ValidationWindows, tokenizer: &Tokenizer, batches: Range<usize>) -> anyhow::Result<()> {
    for index in batches {
        let Some(batch) = windows.get(index) else { break };
        bytes(tokenizer, batch.counted_targets())?;
    }
    windows.failure().map_or(Ok(()), |failure| Err(failure.into()))
}

fn passes(windows: &ValidationWindows, batches: Range<usize>) -> u64 {
    let of_batch = |index: usize| {
        let fresh = windows.get(index).and_then(|batch| windows.without_copies(index, &batch));
        1 + u64::from(fresh.is_some_and(|batch| batch.counted() > 0.0))
    };
    batches.map(of_batch).sum()
}

impl Evaluation {
    /// To the bits of one process.
    fn of(batches: &[Measured], windows: &ValidationWindows) -> anyhow::Result<Self> {
        let all = batches.iter().fold(Measured::default(), |all, one| Measured {
            sum: all.sum + one.sum,
            counted: all.counted + one.counted,
            fresh: [all.fresh[0] + one.fresh[0], all.fresh[1] + one.fresh[1]],
            sequences: all.sequences + one.sequences,
            bytes: all.bytes + one.bytes,
        });
        let Measured { sum, counted, fresh, sequences, bytes } = all;
        ensure!(counted > 0.0, "no token of the validation data counts: it holds no answer to learn from");
        let loss = sum / counted;
        let bits_per_byte = (bytes > 0).then(|| sum / std::f64::consts::LN_2 / bytes as f64);
        let without_copies = windows.know_copies().then(|| Fresh::new(fresh[0], fresh[1], counted));
        Ok(Self { loss, perplexity: loss.exp(), bits_per_byte, sequences, without_copies })
    }
}

/// Before step 1, so that its failures show early.
pub(crate) fn trial<I: Offloadable>(
    model: &Learner<Tape<I>>,
    session: &Session,
    is_whole: bool,
) -> anyhow::Result<()> {
    let Session { config, data, validation, .. } = session;
    let inner = model.valid();
    if is_whole {
        evaluate(&inner, validation, &data.tokenizer, TRIAL_BATCHES)?;
    }
    let speaker = speaker(&inner.gpt, data, &config.eval, config.train.seed);
    let words = prompts(&speaker, &config.eval).and_then(|_| {
        let asks = config.quiz() > 0;
        Ok(asks.then(|| questions(&data.tokenizer, 1)).transpose()?)
    });
    words
        .map_err(|error| BadInput(format!("the tokenizer cannot express what `eval` asks for: {error:#}")))?;
    Ok(())
}

pub(crate) fn trial_of_stages<I: Offloadable>(
    model: &Learner<Tape<I>>,
    session: &Session,
    ranks: &mut Ranks,
) -> anyhow::Result<()> {
    let Session { data, validation, .. } = session;
    let all = 0..validation.len().min(TRIAL_BATCHES);
    let measured = measured_by_stages(&model.valid(), (validation, &data.tokenizer), all, |_| {}, ranks)?;
    Evaluation::of(&measured, validation).map(drop)
}

fn measured_by_stages<B: Backend>(
    model: &Learner<B>,
    (windows, tokenizer): (&ValidationWindows, &Tokenizer),
    batches: Range<usize>,
    observe: impl FnMut(&Validation),
    ranks: &mut Ranks,
) -> anyhow::Result<Vec<Measured>> {
    // Stages wait for each other's batches, so all have to know.
    ranks.if_all_succeeded(readable(windows, tokenizer, batches.clone()))?;
    let mut stage = Measuring::begin(model, ranks)?;
    let measured = measure(|batch| stage.step(&batch), windows, tokenizer, batches, observe);
    stage.end(measured, ranks)
}

impl<I: Offloadable> Trainer<I> {
    /// Returns the loss to rank 0 if it is the lowest yet. Repeats after a survivable loss of ranks.
    pub(super) fn evaluate(&mut self, events: &mut Events<I>) -> anyhow::Result<Option<Best>> {
        self.optimizer.settle()?;
        let evaluation = loop {
            match self.measured_by_all(events) {
                Ok(batches) => break Evaluation::of(&batches, &self.session.validation)?,
                Err(error) => self.repeat_after(error)?,
            }
        };
        if self.ranks.leads() { Ok(self.report_evaluation(evaluation)) } else { Ok(None) }
    }

    fn measured_by_all(&mut self, events: &mut Events<I>) -> anyhow::Result<Vec<Measured>> {
        let Session { data, validation, progress, .. } = &self.session;
        let share = self.ranks.share(validation.len()).range();
        let own = share.start as usize..share.end as usize;
        let (mut seen, all) = (0, own.len());
        let step = progress.step as usize;
        let show = |validation: &Validation| {
            seen += 1;
            let items = Items::new(seen, all);
            let item = TrainingItem::new(validation.clone(), items.clone(), items, Some(step), None);
            events.process_valid(LearnerEvent::ProcessedItem(item));
        };
        let model = self.model.valid();
        if self.ranks.form_pipelines() {
            let texts = (&**validation, &data.tokenizer);
            return measured_by_stages(&model, texts, own, show, &mut self.ranks);
        }
        let Some(window) = self.optimizer.window.clone() else {
            let measured = measure(|batch| model.step(batch), validation, &data.tokenizer, own, show);
            return self.ranks.joined(measured);
        };

        // Ranks with fewer passes, or with a failure, gather for the others.
        let passes = self.ranks.gathered_alike(passes(validation, own.clone()))?;
        let most = passes.into_iter().max().unwrap_or_default() as usize;
        let session = GatherSession::begin(Some(&window), &mut self.ranks)?;
        let measured = measure(|batch| model.step(batch), validation, &data.tokenizer, own, show);
        window.idle_until(most);
        let measured = session.end(measured, &mut self.ranks);
        self.ranks.joined(measured)
    }

    fn report_evaluation(&mut self, evaluation: Evaluation) -> Option<Best> {
        let progress = &self.session.progress;
        let step = progress.step;
        let better = progress.better(evaluation.loss);
        let bits = evaluation.bits_per_byte.map_or(String::new(), |bits| format!(" | {bits:.4} bits/byte"));
        let fresh = evaluation.without_copies.map_or(String::new(), |fresh| format!(" | {fresh}"));
        self.say(&format!(
            "step {step}: validation loss {:.4} | perplexity {:.2}{bits}{fresh}{}",
            evaluation.loss,
            evaluation.perplexity,
            if better.is_some() { " | best so far" } else { "" }
        ));
        let mut record = json!(evaluation);
        record["step"] = json!(step);
        record["best"] = json!(better.is_some());
        self.tell("eval", &record);
        self.metrics.evaluation = Some(evaluation);
        better
    }
}

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
    use crate::data;
    use runs::config::Config;

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
        let windows = ValidationWindows::open(&config, &data, None, None, &AtomicBool::new(false))
            .expect("there are some");
        let mut gpt = Gpt::<Flex>::new(&config.model, 1, &FlexDevice).expect("valid");

        // Zeros in the head make 16 ids equally likely: four bits a target.
        gpt.wte = Param::from_tensor(gpt.wte.val().zeros_like());
        let learner = Learner::new(gpt, &config);
        let measured = evaluate(&learner, &windows, &data.tokenizer, usize::MAX).expect("measured");
        assert!((measured.loss - 16_f64.ln()).abs() < 1e-5, "{measured:?}");
        // Every target is an é, two bytes in UTF-8.
        assert!((measured.bits_per_byte.expect("text") - 2.0).abs() < 1e-5, "{measured:?}");
    }
}
