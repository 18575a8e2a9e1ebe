//! Step after step: learn, measure, sample, save, until done or asked to stop.

use std::path::Path;
use std::time::Instant;

use anyhow::anyhow;
use backend_offload::{Offload, Offloadable, mark_step, stats};
use burn::data::dataloader::{DataLoader, Progress as Items};
use burn::module::AutodiffModule;
use burn::tensor::backend::Backend;
use burn_train::{EventProcessorTraining, Interrupter, LearnerEvent, TrainStep, TrainingItem};
use serde_json::json;

use super::evaluation::{Evaluation, TokenBytes, evaluate};
use super::samples::Speaker;
use super::snapshot;
use super::strategy::{Display, Events, Taken, Tape};
use super::{Learner, Report, Session, Validation};
use crate::checkpoint::Checkpoints;
use crate::data::StepData;
use crate::exit::Ending;
use crate::journal::Journal;
use crate::optimizer::{Optimizer, Stride};

/// Batches validated before step 1, so that a lack of memory there does not wait for the first evaluation.
const TRIAL_BATCHES: usize = 2;

/// A run in progress.
pub(crate) struct Run<I: Offloadable> {
    pub(crate) session: Session,
    pub(crate) optimizer: Optimizer<Offload<I>>,
    pub(crate) journal: Journal,
    pub(crate) device: I::Device,
    pub(super) bytes: TokenBytes,
    pub(super) last_loss: Option<f32>,
    pub(super) taken: Vec<Taken>,
    pub(super) checkpoint_bytes: Option<u64>,
    pub(super) evaluation: Option<Evaluation>,
    checkpoints: Checkpoints,
    pub(super) display: Display,
}

impl<I: Offloadable> Run<I> {
    pub(crate) fn new(
        session: Session,
        optimizer: Optimizer<Offload<I>>,
        journal: Journal,
        device: I::Device,
        display: Display,
    ) -> Self {
        let bytes = TokenBytes::of(&session.data.tokenizer);
        let checkpoints = Checkpoints::in_run(&session.run);
        Self {
            session,
            optimizer,
            journal,
            device,
            bytes,
            last_loss: None,
            taken: Vec::new(),
            checkpoint_bytes: None,
            evaluation: None,
            checkpoints,
            display,
        }
    }

    pub(super) fn all_steps(
        &mut self,
        mut model: Learner<Tape<I>>,
        loader: &dyn DataLoader<Tape<I>, StepData>,
        events: &mut Events<I>,
        interrupter: &Interrupter,
    ) -> (Learner<Tape<I>>, anyhow::Result<Ending>) {
        if let Err(error) = self.trial(&model) {
            return (model, Err(error));
        }
        let mut items = loader.iter();
        loop {
            if self.session.progress.step >= self.session.steps() {
                let ending = self.finish(&model, events);
                return (model, ending);
            }
            let Some(data) = items.next() else {
                let failure = self.session.training.failure();
                let error = failure.map_or_else(|| anyhow!("the training data ended early"), Into::into);
                return (model, Err(error));
            };
            let done;
            (model, done) = self.step(model, data, events);
            let ending = done.and_then(|()| self.between_steps(&model, events, interrupter));
            match ending {
                Ok(None) => {}
                Ok(Some(ending)) => return (model, Ok(ending)),
                Err(error) => return (model, Err(error)),
            }
        }
    }

    /// One update, or none where its numbers are no numbers.
    fn step(
        &mut self,
        model: Learner<Tape<I>>,
        data: StepData,
        events: &mut Events<I>,
    ) -> (Learner<Tape<I>>, anyhow::Result<()>) {
        let before = stats::<I>(&self.device);
        let begun = Instant::now();
        let step = data.step;
        let output = TrainStep::step(&model, data);
        let mut report = output.item;
        if let Some(failure) = report.failure.take() {
            return (model, Err(anyhow!("step {step} could not run: {failure}")));
        }
        let share = self.session.config.train.schedule.share(step, self.session.steps());
        let usable = report.loss.is_finite() && report.gnorm.is_finite();
        let model = if usable {
            let norm = f64::from(report.gnorm);
            let scale = self.session.config.train.grad_clip.map_or(1.0, |limit| limit / norm.max(limit));
            let optimizer = &mut self.optimizer;
            model.map_gpt(|gpt| optimizer.step(gpt, output.grads, Stride { share, scale }))
        } else {
            model
        };
        // Where an update could not run, here is who is told; no later step may use its weights.
        if let Err(error) = Offload::<I>::sync(&self.device) {
            return (model, Err(anyhow!("the update of step {step} could not run: {error}")));
        }
        let seconds = begun.elapsed().as_secs_f64();
        mark_step::<I>(&self.device);
        report.lr = self.session.config.train.lr * share;
        report.memory(&before, &stats::<I>(&self.device));
        (model, self.account(report, seconds, usable, events))
    }

    fn account(
        &mut self,
        mut report: Report,
        seconds: f64,
        usable: bool,
        events: &mut Events<I>,
    ) -> anyhow::Result<()> {
        let cursor = self.session.training.cursor(report.step);
        self.session.progress.advance(report.loss, seconds, cursor);
        self.taken.push(Taken { seconds, bytes_in: report.bytes_in, bytes_out: report.bytes_out });
        self.last_loss = Some(report.loss);
        let tokens = self.session.config.tokens_per_step();
        let (flops, possible) = self.session.flops;
        report.steps = self.session.steps();
        report.ms = seconds * 1e3;
        report.tokens = tokens * report.step;
        report.tokens_per_second = tokens as f64 / seconds;
        report.mfu = possible.map(|possible| flops / seconds / possible);
        report.seconds = self.session.progress.seconds;
        self.journal.write("step", &report)?;
        if usable {
            self.session.progress.withheld = 0;
        } else {
            self.session.progress.withheld += 1;
            let reason = "the loss or a gradient is not a finite number; the weights are as before";
            self.say(&format!(
                "step {}: loss {}, gradient norm {}: {reason}",
                report.step, report.loss, report.gnorm
            ));
            let record =
                json!({ "step": report.step, "loss": report.loss, "gnorm": report.gnorm, "reason": reason });
            self.journal.write("withheld", &record)?;
        }
        let items = Items::new(report.step as usize, report.steps as usize);
        let (step, lr) = (report.step as usize, report.lr);
        let item = TrainingItem::new(report, items.clone(), items, Some(step), Some(lr));
        events.process_train(LearnerEvent::ProcessedItem(item));
        Ok(())
    }

    /// What is due after a step; an ending if it was the last one for whatever reason.
    fn between_steps(
        &mut self,
        model: &Learner<Tape<I>>,
        events: &mut Events<I>,
        interrupter: &Interrupter,
    ) -> anyhow::Result<Option<Ending>> {
        let config = &self.session.config;
        let (evaluates, samples) = (config.eval.every, config.eval.sample_every);
        if self.session.progress.withheld >= config.train.bad_steps {
            self.save(model);
            return Ok(Some(Ending::Diverged));
        }
        let mut save = self.session.due(config.checkpoint.every);
        let mut best = false;
        if self.session.due(evaluates) {
            best = self.evaluate(model, events)?;
            save |= best;
        }
        if self.session.due(samples) {
            self.sample(model)?;
        }
        let last = self.session.progress.step >= self.session.steps();
        let stop = !last && (self.session.should_stop() || interrupter.should_stop());
        if (save || stop) && self.save(model) && best {
            self.checkpoints.mark_best(self.session.progress.step)?;
        }
        if stop {
            return if self.saved_now()? { Ok(Some(Ending::Interrupted)) } else { Err(self.unsaved()) };
        }
        Ok(None)
    }

    fn finish(&mut self, model: &Learner<Tape<I>>, events: &mut Events<I>) -> anyhow::Result<Ending> {
        let best = self.evaluate(model, events)?;
        self.sample(model)?;
        if self.session.config.checkpoint.last {
            self.save(model);
            if !self.saved_now()? {
                return Err(self.unsaved());
            }
            if best {
                self.checkpoints.mark_best(self.session.progress.step)?;
            }
        }
        Ok(Ending::Done)
    }

    fn trial(&mut self, model: &Learner<Tape<I>>) -> anyhow::Result<()> {
        let windows = &self.session.validation;
        evaluate(&model.valid(), windows, &self.bytes, TRIAL_BATCHES, |_| {})?;
        Ok(())
    }

    /// Whether the loss is the lowest so far.
    fn evaluate(&mut self, model: &Learner<Tape<I>>, events: &mut Events<I>) -> anyhow::Result<bool> {
        let step = self.session.progress.step;
        let (mut seen, all) = (0, self.session.validation.sequences as usize);
        let show = |validation: &Validation| {
            seen += 1;
            let items = Items::new(seen, all);
            let item = TrainingItem::new(validation.clone(), items.clone(), items, Some(step as usize), None);
            events.process_valid(LearnerEvent::ProcessedItem(item));
        };
        let windows = &self.session.validation;
        let evaluation = evaluate(&model.valid(), windows, &self.bytes, usize::MAX, show)?;
        let best = self.session.progress.is_best(evaluation.loss);
        let bits = evaluation.bits_per_byte.map_or(String::new(), |bits| format!(" | {bits:.4} bits/byte"));
        self.say(&format!(
            "step {step}: validation loss {:.4} | perplexity {:.2}{bits}{}",
            evaluation.loss,
            evaluation.perplexity,
            if best { " | best so far" } else { "" }
        ));
        let mut record = json!(evaluation);
        record["step"] = json!(step);
        record["best"] = json!(best);
        self.journal.write("eval", &record)?;
        self.evaluation = Some(evaluation);
        Ok(best)
    }

    fn sample(&mut self, model: &Learner<Tape<I>>) -> anyhow::Result<()> {
        let (step, eval) = (self.session.progress.step, &self.session.config.eval);
        let inner = model.valid();
        let seed = self.session.config.train.seed.wrapping_add(step);
        let speaker = Speaker::sampling(&inner.gpt, &self.session.data.tokenizer, eval, seed);
        let samples = speaker.samples(eval)?;
        if samples.is_empty() {
            return Ok(());
        }
        let folder = self.session.run.join("samples");
        std::fs::create_dir_all(&folder)?;
        let mut text = String::new();
        for sample in samples {
            self.say(&format!("  {} → {}", sample.prompt, sample.text));
            for part in [&sample.prompt, "\n", &sample.text, "\n\n"] {
                text.push_str(part);
            }
            let mut record = json!(sample);
            record["step"] = json!(step);
            self.journal.write("sample", &record)?;
        }
        std::fs::write(folder.join(format!("step-{step:08}.txt")), text)?;
        Ok(())
    }

    /// Saves a checkpoint; one that cannot be saved is told and forgotten, and training goes on.
    fn save(&mut self, model: &Learner<Tape<I>>) -> bool {
        let begun = Instant::now();
        let (step, session) = (self.session.progress.step, &self.session);
        let rule = &session.config.checkpoint;
        let bytes = self.optimizer.bytes() + session.parameters * size_of::<f32>() as u64;
        let saved = self.journal.sync().and_then(|()| {
            let (config, progress) = (&session.config, &session.progress);
            let tokenizer = &session.data.tokenizer;
            let write = |folder: &Path| {
                snapshot::save(folder, &model.gpt, &self.optimizer, config, progress, tokenizer)
            };
            let saved = self.checkpoints.save(step, bytes, write)?;
            self.checkpoints.prune(rule.keep_last, rule.keep_every)?;
            Ok(saved)
        });
        let record = match &saved {
            Ok(saved) => {
                self.checkpoint_bytes = Some(saved.bytes);
                json!({ "step": step, "bytes": saved.bytes, "ms": begun.elapsed().as_secs_f64() * 1e3 })
            }
            Err(error) => {
                self.say(&format!("step {step}: no checkpoint was saved, training goes on: {error:#}"));
                json!({ "step": step, "error": format!("{error:#}") })
            }
        };
        if let Err(error) = self.journal.write("checkpoint", &record) {
            self.say(&format!("step {step}: {error:#}"));
        }
        saved.is_ok()
    }

    /// Between the lines of steps. The terminal interface owns the whole screen, so there the journal has to do.
    fn say(&self, text: &str) {
        if self.display == Display::Plain {
            eprintln!("{text}");
        }
    }

    fn saved_now(&self) -> anyhow::Result<bool> {
        Ok(self.checkpoints.latest()? == Some(self.session.progress.step))
    }

    fn unsaved(&self) -> anyhow::Error {
        let step = self.session.progress.step;
        anyhow!("the run ends at step {step} without a checkpoint of it; the earlier ones are whole")
    }
}
