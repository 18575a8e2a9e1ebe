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

use super::due::Due;
use super::exchange::Pass;
use super::session::Best;
use super::strategy::{Events, Tape};
use super::watching::{self, Timeline};
use super::{Learner, Run, Session};
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
        if let Err(error) = self.exchange.start(&model.gpt) {
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
            let costs_before = self.ranks.spent();
            let step = data.step;
            let (grads, mut report) = loop {
                let Optimizer { host, owners, passes, .. } = &mut self.optimizer;
                let (host, passes) = (host.as_mut(), passes.clone());
                let pass = Pass { learner: &model, data: &data, host, owners, passes };
                let error = match self.exchange.sum(pass, &mut self.ranks) {
                    Ok(sum) => break sum,
                    Err(error) => anyhow!("step {step} could not run: {error:#}"),
                };
                match self.drop_lost_ranks() {
                    Ok(true) => self.optimizer.withhold(),
                    Ok(false) => return (model, Err(error)),
                    Err(other) => return (model, Err(other.context(error))),
                }
            };
            let settings = &self.session.config.train;
            let share = rate_share(&settings.schedule, step, self.session.steps());
            report.lr = settings.lr * share;
            self.exchange.settle(report.is_usable());
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
            let at = (step, self.is_last(&report));
            let synchronised;
            (model, synchronised) = model.map_gpt(|gpt| self.exchange.synchronise(gpt, at, &mut self.ranks));
            match synchronised {
                Ok(sent) => report.gradients_leave |= sent,
                Err(error) => {
                    return (model, Err(error.context(format!("the outer step after step {step}"))));
                }
            }
            // An update that could not run is told here; no later step may use its weights.
            if let Err(error) = Offload::<I>::sync(&self.device) {
                return (model, Err(anyhow!("the update of step {step} could not run: {error}")));
            }
            report.time(begun.elapsed(), waited);
            report.host_step(times.map(|times| times.take()));
            if let Some((before, after)) = costs_before.zip(self.ranks.spent()) {
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
            let due = match self.agree(interrupter) {
                Ok(due) => due,
                Err(error) => return (model, Err(error)),
            };
            if let Err(error) = self.between_steps(&model, due, events) {
                return (model, Err(error));
            }
            if let Some(ending) = due.ending {
                return (model, Ok(ending));
            }
        }
        // A checkpoint of the last step was resumed.
        let due = Due::at_the_end(&self.session.config);
        let ended = self.between_steps(&model, due, events);
        (model, ended.map(|()| Ending::Done))
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

    /// Agrees on the work after the last step. Ranks that live agree again without lost ones.
    fn agree(&mut self, interrupter: &Interrupter) -> anyhow::Result<Due> {
        let stop = self.session.should_stop() || interrupter.should_stop();
        loop {
            let Session { config, progress, .. } = &self.session;
            match self.exchange.agree(config, progress, stop, &mut self.ranks) {
                Err(error) if !self.drop_lost_ranks()? => return Err(error),
                Err(_) => {}
                due => return due,
            }
        }
    }

    /// Continues without ranks that are gone, if the others can do the step again with what they have; whether they do.
    fn drop_lost_ranks(&mut self) -> anyhow::Result<bool> {
        let Some(loss) = self.exchange.drop_lost_ranks(&mut self.ranks)? else { return Ok(false) };
        // States that are being stepped return first: they would keep their old number.
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

    /// Whether the run ends after the step of `report`: it is the last one, or one more without a usable gradient than a run may take.
    fn is_last(&self, report: &Report) -> bool {
        let (train, withheld) = (&self.session.config.train, self.session.progress.withheld);
        let diverges = !report.is_usable() && withheld + 1 >= train.bad_steps;
        report.step >= train.steps || diverges
    }

    /// Evaluates, samples and saves where that is due. Rank 0 does all but for what the others have of a checkpoint.
    fn between_steps(
        &mut self,
        model: &Learner<Tape<I>>,
        due: Due,
        events: &mut Events<I>,
    ) -> anyhow::Result<()> {
        self.look_after_save();
        if due.ending == Some(Ending::Done) {
            self.optimizer.settle()?;
        }

        let mut better = None;
        if due.evaluate && self.ranks.leads() {
            self.settle_save_or_say();
            better = self.evaluate(model, events)?;
        }
        if due.sample && self.ranks.leads() {
            self.sample(model)?;
        }

        let mut saves = due.save;
        if due.evaluate && due.ending.is_none() && !saves {
            saves = self.exchange.answer_of_rank_0(better.is_some(), &mut self.ranks)?;
        }
        if saves {
            self.save_on_all_ranks(model, better, due.ending.is_some())?;
        }
        if due.ending == Some(Ending::Done) && self.optimizer.owners.are_divided() {
            let (step, bytes) = (self.session.progress.step, self.optimizer.bytes());
            let on_host = self.optimizer.host_bytes();
            self.tell("moments", &json!({ "step": step, "bytes": bytes, "host_bytes": on_host }));
        }
        Ok(())
    }

    fn save_on_all_ranks(
        &mut self,
        model: &Learner<Tape<I>>,
        better: Option<Best>,
        ends: bool,
    ) -> anyhow::Result<()> {
        if !self.ranks.leads() {
            return self.lend(model);
        }
        if ends {
            return self.save_or_end(model, better);
        }
        // An update that failed ends the run; a disk that is full does not.
        self.optimizer.settle()?;
        if let Err(error) = self.save(model, better) {
            self.say(&format!("{error:#}; training continues"));
        }
        Ok(())
    }
}
