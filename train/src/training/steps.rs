//! Step after step: learn, measure, sample, save, until done or asked to stop.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow};
use backend_offload::{Offload, Offloadable, mark_step, stats};
use burn::data::dataloader::{DataLoader, Progress as Items};
use burn::module::AutodiffModule;
use burn::tensor::backend::Backend;
use burn_dataset::Dataset;
use burn_train::{EventProcessorTraining, Interrupter, LearnerEvent, TrainStep, TrainingItem};
use serde::Serialize;
use serde_json::json;

use super::evaluation::{Evaluation, evaluate};
use super::samples::Speaker;
use super::session::Best;
use super::snapshot;
use super::strategy::{Display, Events, Taken, Tape};
use super::{Learner, Report, Session, Validation};
use crate::checkpoint::{CheckpointError, Checkpoints};
use crate::data::{StepData, questions};
use crate::exit::{BadInput, Ending};
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
    pub(super) taken: Vec<Taken>,
    pub(super) checkpoint_bytes: Option<u64>,
    pub(super) evaluation: Option<Evaluation>,
    checkpoints: Checkpoints,
    pub(super) display: Display,
    begun: Instant,
    /// Seconds spent by earlier parts of the run.
    before: f64,
}

/// Finds out before a run is begun what would otherwise end it at its first evaluation.
pub(crate) fn trial<I: Offloadable>(model: &Learner<Tape<I>>, session: &Session) -> anyhow::Result<()> {
    let Session { config, data, validation, .. } = session;
    let inner = model.valid();
    evaluate(&inner, validation, &data.tokenizer, TRIAL_BATCHES, |_| {})?;
    let speaker = Speaker::sampling(&inner.gpt, &data.tokenizer, &config.eval, config.train.seed);
    let words = speaker.prompts(&config.eval).and_then(|_| {
        let asks = config.quiz() > 0;
        Ok(asks.then(|| questions(&data.tokenizer, 1)).transpose()?)
    });
    words
        .map_err(|error| BadInput(format!("the tokenizer cannot express what `eval` asks for: {error:#}")))?;
    Ok(())
}

impl<I: Offloadable> Run<I> {
    pub(crate) fn new(
        session: Session,
        optimizer: Optimizer<Offload<I>>,
        journal: Journal,
        device: I::Device,
        display: Display,
    ) -> Self {
        let before = journal.seconds();
        let checkpoints = Checkpoints::in_run(&session.run);
        Self {
            session,
            optimizer,
            journal,
            device,
            taken: Vec::new(),
            checkpoint_bytes: None,
            evaluation: None,
            checkpoints,
            display,
            begun: Instant::now(),
            before,
        }
    }

    pub(super) fn all_steps(
        &mut self,
        mut model: Learner<Tape<I>>,
        loader: &dyn DataLoader<Tape<I>, StepData>,
        events: &mut Events<I>,
        interrupter: &Interrupter,
    ) -> (Learner<Tape<I>>, anyhow::Result<Ending>) {
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
            let limit = self.session.config.train.grad_clip;
            let stride = Stride::clipped(share, f64::from(report.gnorm), limit);
            let optimizer = &mut self.optimizer;
            model.map_gpt(|gpt| optimizer.step(gpt, output.grads, stride))
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
        self.account(report, seconds, usable, events);
        (model, Ok(()))
    }

    fn account(&mut self, mut report: Report, seconds: f64, usable: bool, events: &mut Events<I>) {
        let session = &mut self.session;
        session.progress.advance(report.loss, session.training.cursor(report.step));
        session.progress.seconds = self.before + self.begun.elapsed().as_secs_f64();
        let Report { loss, bytes_in, bytes_out, .. } = report;
        self.taken.push(Taken { loss, seconds, bytes_in, bytes_out });
        let tokens = session.config.tokens_per_step();
        report.steps = session.steps();
        report.ms = seconds * 1e3;
        report.tokens = tokens * report.step;
        report.tokens_per_second = tokens as f64 / seconds;
        report.mfu = session.flops_per_second.map(|possible| session.flops_per_step / seconds / possible);
        report.seconds = session.progress.seconds;
        self.tell("step", &report);
        if usable {
            self.session.progress.withheld = 0;
        } else {
            self.session.progress.withheld += 1;
            let reason = "the loss or a gradient is not a finite number; the weights are as before";
            let (step, loss, gnorm) = (report.step, report.loss, report.gnorm);
            self.say(&format!("step {step}: loss {loss}, gradient norm {gnorm}: {reason}"));
            self.tell("withheld", &json!({ "step": step, "loss": loss, "gnorm": gnorm, "reason": reason }));
        }
        let items = Items::new(report.step as usize, report.steps as usize);
        let (step, lr) = (report.step as usize, report.lr);
        let item = TrainingItem::new(report, items.clone(), items, Some(step), Some(lr));
        events.process_train(LearnerEvent::ProcessedItem(item));
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
            self.save_or_end(model, None)?;
            return Ok(Some(Ending::Diverged));
        }
        let saves = self.session.due(config.checkpoint.every);
        let better = if self.session.due(evaluates) { self.evaluate(model, events)? } else { None };
        if self.session.due(samples) {
            self.sample(model)?;
        }
        let last = self.session.progress.step >= self.session.steps();
        if !last && (self.session.should_stop() || interrupter.should_stop()) {
            self.save_or_end(model, better)?;
            return Ok(Some(Ending::Interrupted));
        }
        if (saves || better.is_some())
            && let Err(error) = self.save(model, better)
        {
            self.say(&format!("{error:#}; training goes on"));
        }
        Ok(None)
    }

    fn finish(&mut self, model: &Learner<Tape<I>>, events: &mut Events<I>) -> anyhow::Result<Ending> {
        let better = self.evaluate(model, events)?;
        self.sample(model)?;
        if self.session.config.checkpoint.last {
            self.save_or_end(model, better)?;
        }
        Ok(Ending::Done)
    }

    /// The loss, if it is the lowest so far.
    fn evaluate(&mut self, model: &Learner<Tape<I>>, events: &mut Events<I>) -> anyhow::Result<Option<Best>> {
        let Session { data, validation, progress, .. } = &self.session;
        let step = progress.step;
        let (mut seen, all) = (0, validation.len());
        let show = |validation: &Validation| {
            seen += 1;
            let items = Items::new(seen, all);
            let item = TrainingItem::new(validation.clone(), items.clone(), items, Some(step as usize), None);
            events.process_valid(LearnerEvent::ProcessedItem(item));
        };
        let evaluation = evaluate(&model.valid(), validation, &data.tokenizer, usize::MAX, show)?;
        let better = progress.better(evaluation.loss);
        let bits = evaluation.bits_per_byte.map_or(String::new(), |bits| format!(" | {bits:.4} bits/byte"));
        self.say(&format!(
            "step {step}: validation loss {:.4} | perplexity {:.2}{bits}{}",
            evaluation.loss,
            evaluation.perplexity,
            if better.is_some() { " | best so far" } else { "" }
        ));
        let mut record = json!(evaluation);
        record["step"] = json!(step);
        record["best"] = json!(better.is_some());
        self.tell("eval", &record);
        self.evaluation = Some(evaluation);
        Ok(better)
    }

    fn sample(&mut self, model: &Learner<Tape<I>>) -> anyhow::Result<()> {
        let (step, eval) = (self.session.progress.step, &self.session.config.eval);
        let inner = model.valid();
        let seed = self.session.config.train.seed.wrapping_add(step);
        let speaker = Speaker::sampling(&inner.gpt, &self.session.data.tokenizer, eval, seed);
        let samples = speaker.samples(eval)?;
        let mut text = String::new();
        for sample in &samples {
            self.say(&format!("  {} → {}", sample.prompt, sample.text));
            for part in [&sample.prompt, "\n", &sample.text, "\n\n"] {
                text.push_str(part);
            }
            let mut record = json!(sample);
            record["step"] = json!(step);
            self.tell("sample", &record);
        }
        if !samples.is_empty() {
            let folder = self.session.run.join("samples");
            let path = folder.join(format!("step-{step:08}.txt"));
            let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, text));
            if let Err(error) = written {
                self.say(&format!("writing {}: {error}; training goes on", path.display()));
            }
        }
        Ok(())
    }

    /// Saves a checkpoint, as the best one if it is. If that fails, the one before is still the best.
    fn save(&mut self, model: &Learner<Tape<I>>, better: Option<Best>) -> anyhow::Result<()> {
        let begun = Instant::now();
        let best_before = self.session.progress.best;
        if better.is_some() {
            self.session.progress.best = better;
        }
        let session = &self.session;
        let step = session.progress.step;
        let bytes = self.optimizer.bytes() + session.parameters * size_of::<f32>() as u64;
        let write = |folder: &Path| {
            let (config, progress) = (&session.config, &session.progress);
            snapshot::save(folder, &model.gpt, &self.optimizer, config, progress, &session.data.tokenizer)
        };
        // What the journal tells up to this step is not to be lost once the checkpoint is there.
        let saved = self.journal.sync().and_then(|()| Ok(self.checkpoints.save(step, bytes, write)?));
        match saved {
            Ok(saved) => {
                self.checkpoint_bytes = Some(saved.bytes);
                let ms = begun.elapsed().as_secs_f64() * 1e3;
                self.tell("checkpoint", &json!({ "step": step, "bytes": saved.bytes, "ms": ms }));
            }
            Err(error) => {
                self.session.progress.best = best_before;
                self.tell("checkpoint", &json!({ "step": step, "error": format!("{error:#}") }));
                return Err(error.context(format!("step {step}: no checkpoint was saved")));
            }
        }
        let rule = &self.session.config.checkpoint;
        let marked = if better.is_some() { self.checkpoints.mark_best(step) } else { Ok(()) };
        if let Err(error) = marked.and_then(|()| self.checkpoints.prune(rule.keep_last, rule.keep_every)) {
            self.say(&format!("step {step}: the checkpoint was saved, but then: {error}"));
        }
        Ok(())
    }

    /// As [`save`](Self::save), where the run ends.
    fn save_or_end(&mut self, model: &Learner<Tape<I>>, better: Option<Best>) -> anyhow::Result<()> {
        self.save(model, better).context("the run ends without a checkpoint of its last step")
    }

    /// Lets `best` point where the checkpoint that was gone on from says: a run may have ended between a save and its
    /// mark, or go on from before what was best. In another directory than it was saved in there is nothing to mark.
    pub(crate) fn settle_best(&self) {
        let Some(best) = self.session.progress.best else { return };
        if self.checkpoints.best().ok().flatten() == Some(best.step) {
            return;
        }
        match self.checkpoints.mark_best(best.step) {
            Ok(()) | Err(CheckpointError::Absent { .. }) => {}
            Err(error) => self.say(&format!("the best checkpoint so far cannot be marked: {error}")),
        }
    }

    /// A line in the journal. A disk that is full does not end the run.
    fn tell<T: Serialize>(&mut self, kind: &str, record: &T) {
        if let Err(error) = self.journal.write(kind, record) {
            self.say(&format!("{error:#}; training goes on"));
        }
    }

    /// Between the lines of steps. The terminal interface owns the whole screen, so there the journal has to do.
    fn say(&self, text: &str) {
        if self.display == Display::Plain {
            eprintln!("{text}");
        }
    }
}
