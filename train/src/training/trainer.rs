//! The training loop. One step: forward and backward, norm, update; then due work.
//!
//! Memory failures surface where a result is read, so loss and norm are read before the update. NaN or infinity never
//! reaches a weight (`a_diverged_run_skips_updates_and_stops_with_finite_weights`).

use std::fmt;

use anyhow::{Context, anyhow};
use backend_offload::{Offload, Offloadable};
use burn::data::dataloader::DataLoader;
use burn::optim::GradientsParams;
use burn::tensor::backend::Backend;
use burn_train::Interrupter;
use serde::Serialize;
use serde_json::json;

use super::due::{self, Due};
use super::exchange::{self, Met, Pass, RoundEnd};
use super::learner::Model;
use super::metrics::Metrics;
use super::samples::all_ranks_generate;
use super::saving::Saver;
use super::session::Best;
use super::strategy::{Display, Events, Tape};
use super::{Exchange, Session};
use crate::data::StepData;
use crate::exit::Ending;
use crate::journal::Journal;
use crate::optimizer::{Optimizer, Stride, rate_share};
use crate::progress::{Report, clear};
use crate::ranks::Ranks;

pub(crate) struct Trainer<I: Offloadable> {
    pub(super) model: Model<Tape<I>>,
    pub(crate) session: Session,
    pub(crate) optimizer: Optimizer<Offload<I>>,
    pub(crate) ranks: Ranks,
    pub(super) exchange: Exchange,
    pub(super) log: Log,
    pub(crate) device: I::Device,
    pub(super) saver: Saver,
    pub(super) metrics: Metrics,
    pub(super) ending: Option<anyhow::Result<Ending>>,
}

pub(super) struct Log {
    pub(super) journal: Journal,
    pub(super) display: Display,
}

impl<I: Offloadable> Trainer<I> {
    pub(crate) fn new(
        mut session: Session,
        optimizer: Optimizer<Offload<I>>,
        (ranks, exchange): (Ranks, Exchange),
        journal: Journal,
        device: I::Device,
        display: Display,
    ) -> Self {
        let mut trainer = Self {
            model: Model::default(),
            saver: Saver::of(&session.run),
            metrics: Metrics::begin(&journal, &mut session),
            session,
            optimizer,
            ranks,
            exchange,
            log: Log { journal, display },
            device,
            ending: None,
        };

        trainer.number_shares();
        trainer
    }

    fn number_shares(&mut self) {
        if let Some(host) = &mut self.optimizer.host {
            let share = self.ranks.share(self.session.config.train.accumulate);
            host.number_shares_from(share.range().start);
        }
    }

    pub(super) fn train(
        &mut self,
        loader: &dyn DataLoader<Tape<I>, StepData>,
        events: &mut Events<I>,
        interrupter: &Interrupter,
    ) -> anyhow::Result<Ending> {
        let Session { progress, .. } = &self.session;
        self.exchange.start(&self.model.gpt, (progress.step, self.session.steps()), &mut self.ranks)?;
        let mut batches = loader.iter();
        let (watched, begun) = (self.watched_step(), self.session.progress.step);
        while self.session.progress.step < self.session.steps() {
            let mut meter = self.begin_step(watched);
            self.model.update(|gpt| self.exchange.begin_round(gpt, &mut self.ranks))?;
            let data = batches.next().ok_or_else(|| self.saved_without_data(begun))?;
            meter.data_arrived(&self.ranks);
            let step = data.step;

            let (gradients, mut report) = self.gradients(&data)?;

            let train = &self.session.config.train;
            let share = rate_share(&train.schedule, step, train.steps);
            report.lr = train.lr * share;
            self.exchange.settle(report.is_usable());
            // Loss and norm are equal on all ranks: NaN or infinity on one skips the step on all.
            if report.is_usable() {
                let stride = Stride::clipped(share, f64::from(report.gnorm), train.grad_clip);
                let updated = self.update(gradients, stride);
                updated.map_err(|error| self.update_failed(step, &error))?;
            } else {
                self.optimizer.withhold();
            }

            let at = self.round_end(&report);
            let met = self.model.update(|gpt| self.exchange.meet(gpt, at, &mut self.ranks));
            let met = met.with_context(|| format!("meeting the other ranks after step {step}"))?;
            report.gradients_leave |= met.is_some();

            // A failed update surfaces before any later step uses its weights.
            Offload::<I>::sync(&self.device).map_err(|error| self.update_failed(step, &error))?;
            self.end_step(meter, report, events);
            self.ranks.note_whole_step();
            if let Some(met) = met {
                self.catch_up(&met, &mut batches)?;
            }

            let due = self.agree(interrupter)?;
            self.between_steps(due, events)?;
            if let Some(ending) = due.ending {
                return Ok(ending);
            }
        }

        // A checkpoint of the last step was resumed.
        self.between_steps(Due::at_the_end(&self.session.config), events)?;
        Ok(Ending::Done)
    }

    /// Repeats the step after a survivable loss of ranks.
    fn gradients(&mut self, data: &StepData) -> anyhow::Result<(GradientsParams, Report)> {
        loop {
            let Optimizer { host, owners, passes, window, .. } = &mut self.optimizer;
            let (host, passes, window) = (host.as_mut(), passes.clone(), window.clone());
            let pass = Pass { learner: &self.model, data, host, owners, passes, window };
            let error = match self.exchange.sum(pass, &mut self.ranks) {
                Ok(sum) => return Ok(sum),
                Err(error) => anyhow!("step {} could not run: {error:#}", data.step),
            };
            self.repeat_after(error)?;
            self.optimizer.withhold();
        }
    }

    fn round_end(&self, report: &Report) -> RoundEnd {
        let Session { config, progress, .. } = &self.session;
        let diverged = due::diverged(config, progress.withheld_after(report.is_usable()));
        RoundEnd { step: report.step, steps: config.train.steps, diverged }
    }

    /// Goes on where the furthest rank is. The data of steps that this rank has not taken is left out.
    fn catch_up(&mut self, met: &Met, batches: &mut dyn Iterator<Item = StepData>) -> anyhow::Result<()> {
        for _ in self.session.progress.step..met.step {
            batches.next().ok_or_else(|| self.no_data())?;
        }
        let session = &mut self.session;
        session.progress.step = met.step;
        session.progress.cursor = session.training.cursor(met.step);
        if met.diverged {
            session.progress.withheld = session.config.train.bad_steps;
        }
        // Files of all ranks belong to rank 0's checkpoint.
        let losses = self.ranks.broadcast(self.session.progress.losses.as_bytes())?;
        self.session.progress.losses =
            String::from_utf8(losses).context("reading rank 0's digest of losses")?;
        self.tell(exchange::KIND, &met.record);
        Ok(())
    }

    fn update(&mut self, gradients: GradientsParams, stride: Stride) -> anyhow::Result<()> {
        let Self { model, optimizer, ranks, .. } = self;
        model.update(|gpt| optimizer.update(gpt, gradients, stride, ranks))
    }

    fn update_failed(&mut self, step: u64, error: &dyn fmt::Display) -> anyhow::Error {
        self.exchange.fail_update(&mut self.ranks);
        anyhow!("the update of step {step} could not run: {error}")
    }

    fn no_data(&self) -> anyhow::Error {
        let failure = self.session.training.failure();
        failure.map_or_else(|| anyhow!("the training data ended early"), Into::into)
    }

    /// Saves the steps since `begun`, unless other ranks are in the next step already.
    fn saved_without_data(&mut self, begun: u64) -> anyhow::Error {
        let save = self.exchange.all_lack_data(&mut self.ranks) && self.session.progress.step > begun;
        let error = self.no_data();
        self.saved_before(error, Due { save, ..Due::default() })
    }

    fn agree(&mut self, interrupter: &Interrupter) -> anyhow::Result<Due> {
        let stop = self.session.should_stop() || interrupter.should_stop();
        loop {
            let Session { config, progress, .. } = &self.session;
            match self.exchange.agree(config, progress, stop, &mut self.ranks) {
                Err(error) => self.repeat_after(error)?,
                due => return due,
            }
        }
    }

    /// Fails with `error` unless ranks are lost and the others can repeat the work.
    pub(super) fn repeat_after(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        match self.drop_lost_ranks(&error) {
            Ok(true) => Ok(()),
            Ok(false) => Err(error),
            Err(other) => Err(other.context(error)),
        }
    }

    fn drop_lost_ranks(&mut self, error: &anyhow::Error) -> anyhow::Result<bool> {
        let Some(loss) = self.exchange.drop_lost_ranks(&mut self.ranks)? else { return Ok(false) };
        // States under way return first: they would keep their old number.
        self.optimizer.settle()?;
        self.number_shares();

        let (step, left, before) = (self.session.progress.step, self.ranks.world(), loss.before);
        if self.ranks.leads() {
            self.say(&format!("after step {step} {loss}: {left} of {before} ranks live, and go on"));
            if loss.gone.is_empty() {
                self.say(&format!("{error:#}"));
            }
        }
        self.tell("lost", &loss.record(step, left));
        Ok(true)
    }

    fn between_steps(&mut self, due: Due, events: &mut Events<I>) -> anyhow::Result<()> {
        self.look_after_save();
        let is_done = due.ending == Some(Ending::Done);
        if is_done {
            self.optimizer.settle()?;
        }

        let better = match self.look(due, events) {
            Ok(better) => better,
            Err(error) => return Err(self.saved_before(error, due)),
        };
        let mut saves = due.save;
        if due.evaluate && due.ending.is_none() && !saves {
            // Ranks without saved state of their own do not hear whether rank 0 saves.
            self.ranks.expect_work_of_lead();
            saves = self.exchange.answer_of_rank_0(better.is_some(), &mut self.ranks)?;
        }
        if saves {
            self.ranks.expect_work_of_lead();
            self.save_on_all_ranks(better, due.ending.is_some())?;
        }
        if is_done && self.optimizer.owners.are_sharded() {
            let (step, bytes) = (self.session.progress.step, self.optimizer.bytes());
            let on_host = self.optimizer.host_bytes();
            let mut record = json!({ "step": step, "bytes": bytes, "host_bytes": on_host });
            if let Some(window) = &self.optimizer.window {
                record["gathered_bytes"] = json!(window.counts().peak);
            }
            self.tell("moments", &record);
        }
        Ok(())
    }

    /// Evaluates and samples.
    fn look(&mut self, due: Due, events: &mut Events<I>) -> anyhow::Result<Option<Best>> {
        let mut better = None;
        if due.evaluate {
            if self.ranks.leads() {
                self.settle_save_or_say();
            }
            self.expect_seal();
            better = self.evaluate(events)?;
        }
        let all_sample = all_ranks_generate(self.optimizer.window.as_ref(), &self.ranks);
        if due.sample && !all_sample {
            self.ranks.expect_work_of_lead();
        }
        if due.sample && (all_sample || self.ranks.leads()) {
            self.sample()?;
        }
        Ok(better)
    }

    /// The steps are whole though an evaluation, a sample or a read failed, and a checkpoint was due.
    fn saved_before(&mut self, error: anyhow::Error, due: Due) -> anyhow::Error {
        if !due.save || self.ranks.have_failed() || self.optimizer.settle().is_err() {
            return error;
        }
        let all_know = self.ranks.all_know_failure();
        if let Err(other) = self.save_on_all_ranks(None, true) {
            self.say(&format!("{other:#}"));
        }
        if all_know {
            self.ranks.wait_for_lead();
        }
        error
    }

    fn save_on_all_ranks(&mut self, better: Option<Best>, ends: bool) -> anyhow::Result<()> {
        if !self.ranks.leads() {
            return self.write_parts();
        }
        if ends {
            return self.save_or_end(better);
        }
        self.optimizer.settle()?;
        if let Err(error) = self.save(better) {
            // The other ranks fail, too.
            if self.ranks.have_failed() {
                return Err(error);
            }
            self.say(&format!("{error:#}; training continues"));
        }
        Ok(())
    }

    /// A full disk does not end the run.
    pub(super) fn tell<T: Serialize>(&mut self, kind: &str, record: &T) {
        if let Err(error) = self.log.journal.write(kind, record) {
            self.say(&format!("{error:#}; training continues"));
        }
    }

    /// Prints between the lines of steps; not under the terminal interface.
    pub(super) fn say(&self, text: &str) {
        if matches!(self.log.display, Display::Plain { .. }) {
            eprintln!("{}{text}", clear());
        }
    }
}
