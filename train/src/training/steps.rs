//! The loop: forward, backward, norm, update; then whatever is due between two steps.
//!
//! Memory failures surface where a result is read. So a step's loss and the norm of its gradients are read before its
//! update is made, and a failure is found with them.

use std::time::Instant;

use anyhow::anyhow;
use backend_offload::{
    Offload, Offloadable, host_memory, mark_step, reset_peaks, stats, watch_step, watched_step,
};
use burn::data::dataloader::DataLoader;
use burn::optim::GradientsParams;
use burn::tensor::backend::Backend;
use burn_train::Interrupter;
use models::Gpt;
use serde_json::json;

use super::apart::{outer_step, start_outer};
use super::strategy::{Events, Tape};
use super::watching::{self, Timeline};
use super::{Learner, Run};
use crate::data::StepData;
use crate::exit::Ending;
use crate::optimizer::{Optimizer, Stride, rate_share};
use crate::progress::Report;

impl<I: Offloadable> Run<I> {
    /// Trains until the last step, a stop or a failure.
    pub(super) fn all_steps(
        &mut self,
        mut model: Learner<Tape<I>>,
        loader: &dyn DataLoader<Tape<I>, StepData>,
        events: &mut Events<I>,
        interrupter: &Interrupter,
    ) -> (Learner<Tape<I>>, anyhow::Result<Ending>) {
        if let Err(error) = start_outer(&model.gpt, &mut self.ranks) {
            return (model, Err(error));
        }
        let mut batches = loader.iter();
        let watched = watching::watched(self.session.progress.step, self.session.steps());
        while self.session.progress.step < self.session.steps() {
            let before = stats::<I>(&self.device);
            self.peaks.include::<I>(&self.device, &before);
            reset_peaks::<I>(&self.device);
            // Without a budget nothing moves.
            let watches = self.session.progress.step + 1 == watched && before.device.budget.is_some();
            if watches {
                watch_step::<I>(&self.device);
            }
            let begun = Instant::now();
            let times = self.optimizer.times_from_here();
            let Some(data) = batches.next() else {
                let failure = self.session.training.failure();
                let error = failure.map_or_else(|| anyhow!("the training data ended early"), Into::into);
                return (model, Err(error));
            };
            let waited = begun.elapsed();
            let told = self.ranks.spent();
            let step = data.step;
            let (grads, mut report) = loop {
                let Optimizer { host, owners, passes, .. } = &mut self.optimizer;
                let (host, passes) = (host.as_mut(), passes.clone());
                let (grads, mut report) = model.gradients(&data, host, owners, passes, &mut self.ranks);
                let Some(failure) = report.failure.take() else { break (grads, report) };
                let failure = anyhow!("step {step} could not run: {failure}");
                drop(grads);
                match self.go_on() {
                    Ok(true) => self.optimizer.withhold(),
                    Ok(false) => return (model, Err(failure)),
                    Err(error) => return (model, Err(error.context(failure))),
                }
            };
            let settings = &self.session.config.train;
            let share = rate_share(&settings.schedule, step, self.session.steps());
            report.lr = settings.lr * share;
            self.ranks.settle_step(report.is_usable());
            if report.is_usable() {
                let stride = Stride::clipped(share, f64::from(report.gnorm), settings.grad_clip);
                let stepped;
                (model, stepped) = model.map_gpt(|gpt| self.step(gpt, grads, stride));
                if let Err(error) = stepped {
                    return (model, Err(anyhow!("the update of step {step} could not run: {error}")));
                }
            } else {
                self.optimizer.withhold();
            }
            if self.meets(&report) {
                report.gradients_leave = true;
                let met;
                (model, met) = model.map_gpt(|gpt| outer_step(gpt, &mut self.ranks));
                if let Err(error) = met {
                    return (model, Err(error.context(format!("the outer step after step {step}"))));
                }
            }
            // An update that could not run is told here; no later step may use its weights.
            if let Err(error) = Offload::<I>::sync(&self.device) {
                return (model, Err(anyhow!("the update of step {step} could not run: {error}")));
            }
            report.time(begun.elapsed(), waited);
            report.host_step(times.map(|times| times.take()));
            if let Some((before, after)) = told.zip(self.ranks.spent()) {
                report.ranks(before, after);
            }
            mark_step::<I>(&self.device);
            let seen = if watches { watched_step::<I>(&self.device) } else { None };
            let host = host_memory::<I>(&self.device).usage().peak;
            report.memory(&before, &stats::<I>(&self.device), host);
            let timeline = seen.map(|stretches| Timeline::of(&report, &stretches));
            self.account(report, events);
            if let Some(timeline) = timeline {
                self.tell("timeline", &timeline);
            }
            match self.between_steps(&model, events, interrupter) {
                Ok(None) => {}
                Ok(Some(ending)) => return (model, Ok(ending)),
                Err(error) => return (model, Err(error)),
            }
        }
        let ending = self.finish(&model, events);
        if self.optimizer.owners.are_divided() {
            let (step, bytes) = (self.session.progress.step, self.optimizer.bytes());
            let on_host = self.optimizer.host_bytes();
            self.tell("moments", &json!({ "step": step, "bytes": bytes, "host_bytes": on_host }));
        }
        (model, ending)
    }

    /// One step of the parameters that this process steps, and the weights that other ranks have stepped.
    fn step(
        &mut self,
        gpt: Gpt<Tape<I>>,
        grads: GradientsParams,
        stride: Stride,
    ) -> (Gpt<Tape<I>>, anyhow::Result<()>) {
        let (gpt, stepped) = self.optimizer.step(gpt, grads, stride);
        match stepped {
            Ok(()) => self.optimizer.gathered(gpt, &mut self.ranks),
            Err(error) => (gpt, Err(error.into())),
        }
    }

    /// Whether some rank wishes to stop. The ranks that live vote again without those that are gone.
    fn stop(&mut self, wishes: bool) -> anyhow::Result<bool> {
        loop {
            match self.ranks.stop(wishes) {
                Err(error) if !self.go_on()? => return Err(error),
                Err(_) => {}
                heard => return heard,
            }
        }
    }

    /// Goes on without ranks that are gone, where the others can do the step again with what they have; whether they do.
    fn go_on(&mut self) -> anyhow::Result<bool> {
        if self.optimizer.owners.are_divided() || !self.ranks.can_redo() {
            return Ok(false);
        }
        let Some(loss) = self.ranks.go_on()? else { return Ok(false) };
        // Whatever is being stepped comes back first: it would keep its old number.
        self.optimizer.settle()?;
        if let Some(host) = &mut self.optimizer.host {
            let share = self.ranks.share(self.session.config.train.accumulate);
            host.number_shares_from(share.range().start);
        }
        let (step, left, before) = (self.session.progress.step, self.ranks.world(), loss.before);
        if self.ranks.leads() {
            self.say(&format!("after step {step} {loss}: {left} of {before} ranks live, and go on"));
        }
        self.tell("lost", &json!({ "step": step, "ranks": left, "before": before, "gone": loss.gone }));
        Ok(true)
    }

    /// Whether an outer step follows the step of `report`: when it is due, and before a run ends.
    fn meets(&self, report: &Report) -> bool {
        let session = &self.session;
        let diverges = !report.is_usable() && session.progress.withheld + 1 >= session.config.train.bad_steps;
        self.ranks.step_apart() && (session.is_common_after(report.step) || diverges)
    }

    /// Whether rank 0 saves now. Ranks that have moments or residuals of their own need to know, since they send or save them.
    fn rank_0_saves(&mut self, saves: bool) -> anyhow::Result<bool> {
        if !self.optimizer.owners.are_divided() && !self.ranks.have_own() {
            return Ok(saves);
        }
        Ok(self.ranks.led(|| Ok(vec![u8::from(saves)]))? == [1])
    }

    /// Evaluates, samples and saves where that is due; an ending if the step was the last one for whatever reason.
    fn between_steps(
        &mut self,
        model: &Learner<Tape<I>>,
        events: &mut Events<I>,
        interrupter: &Interrupter,
    ) -> anyhow::Result<Option<Ending>> {
        self.look_after_save();
        let config = &self.session.config;
        let (evaluates, samples) = (config.eval.every, config.eval.sample_every);
        let (every, bad_steps) = (config.checkpoint.every, config.train.bad_steps);
        // What is agreed on comes first: whatever rank 0 does for long, the others wait for in the next step.
        let last = self.session.progress.step >= self.session.steps();
        let diverged = self.session.progress.withheld >= bad_steps;
        let wishes = self.session.should_stop() || interrupter.should_stop();
        let common = self.session.is_common();
        let stops = common && !last && !diverged && self.stop(wishes)?;
        if !self.ranks.leads() {
            let told = diverged || stops || common && self.rank_0_saves(false)?;
            if told {
                self.lend(model)?;
            }
            let ending = if stops { Some(Ending::Interrupted) } else { None };
            return Ok(if diverged { Some(Ending::Diverged) } else { ending });
        }
        if diverged {
            self.save_or_end(model, None)?;
            return Ok(Some(Ending::Diverged));
        }
        let saves = self.session.due(every);
        let better = if self.session.due(evaluates) {
            self.settle_save_or_say();
            self.evaluate(model, events)?
        } else {
            None
        };
        if self.session.due(samples) {
            self.sample(model)?;
        }
        if stops {
            self.save_or_end(model, better)?;
            return Ok(Some(Ending::Interrupted));
        }
        let saves = common && self.rank_0_saves(saves || better.is_some())?;
        if saves {
            // An update that failed ends the run; a disk that is full does not.
            self.optimizer.settle()?;
        }
        if saves && let Err(error) = self.save(model, better) {
            self.say(&format!("{error:#}; training continues"));
        }
        Ok(None)
    }

    fn finish(&mut self, model: &Learner<Tape<I>>, events: &mut Events<I>) -> anyhow::Result<Ending> {
        if !self.ranks.leads() {
            self.optimizer.settle()?;
            if self.session.config.checkpoint.last {
                self.lend(model)?;
            }
            return Ok(Ending::Done);
        }
        self.settle_save_or_say();
        let better = self.evaluate(model, events)?;
        self.sample(model)?;
        if self.session.config.checkpoint.last {
            self.save_or_end(model, better)?;
        }
        Ok(Ending::Done)
    }
}
