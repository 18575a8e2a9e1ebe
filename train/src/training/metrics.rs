//! Meters of a run and of its steps.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use backend_offload::{
    Managed, Offloadable, Stats, host_memory, mark_step, reset_peaks, stats, watch_step, watched_step,
};
use burn::data::dataloader::Progress as Items;
use burn_train::{EventProcessorTraining, LearnerEvent, TrainingItem};
use serde_json::json;

use super::Trainer;
use super::evaluation::Evaluation;
use super::session::Session;
use super::strategy::{Events, Taken};
use super::watching::{self, Timeline};
use crate::figures::si;
use crate::journal::Journal;
use crate::optimizer::HostTimes;
use crate::progress::Report;
use crate::ranks::{Ranks, Spent};

pub(super) struct Metrics {
    pub(super) taken: Vec<Taken>,
    pub(super) peaks: Peaks,
    pub(super) evaluation: Option<Evaluation>,
    is_outdone: bool,
    begun: Instant,
    seconds_before: f64,
    tokens_before: u64,
    /// The step after which this process began.
    after: u64,
    untimed: u64,
}

/// The device's own counters restart with every step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Peaks {
    pub(crate) device: u64,
    pub(crate) host: u64,
    pub(crate) largest_launch: u64,
}

pub(super) struct StepMeter {
    stats: Stats,
    watches: bool,
    begun: Instant,
    host_times: Option<HostTimes>,
    waited: Duration,
    ranks: Option<Spent>,
}

impl Metrics {
    /// Of a resumed run, `journal` may not know the steps before.
    pub(super) fn begin(journal: &Journal, session: &mut Session) -> Self {
        let (seconds_before, after) = (journal.seconds(), session.progress.step);
        let tokens_before = journal.tokens().unwrap_or(session.config.tokens_per_step() * after);
        session.progress.tokens = tokens_before;
        Self {
            taken: Vec::new(),
            peaks: Peaks::default(),
            evaluation: None,
            is_outdone: false,
            begun: Instant::now(),
            seconds_before,
            tokens_before,
            after,
            untimed: if seconds_before > 0.0 { 0 } else { after },
        }
    }
}

impl Peaks {
    pub(crate) fn include<I: Managed>(&mut self, device: &I::Device, stats: &Stats) {
        self.device = self.device.max(stats.device.peak);
        self.host = self.host.max(host_memory::<I>(device).usage().peak);
        self.largest_launch = self.largest_launch.max(stats.largest_launch);
    }

    pub(crate) fn of_all(self, ranks: &mut Ranks) -> anyhow::Result<Self> {
        let own = [self.device, self.host, self.largest_launch];
        let all = ranks.gathered_alike(own)?;
        let [device, host, largest_launch] =
            all.iter().fold(own, |most, of| std::array::from_fn(|at| most[at].max(of[at])));
        Ok(Self { device, host, largest_launch })
    }
}

impl StepMeter {
    pub(super) fn data_arrived(&mut self, ranks: &Ranks) {
        self.waited = self.begun.elapsed();
        self.ranks = ranks.spent();
    }
}

impl<I: Offloadable> Trainer<I> {
    pub(super) fn watched_step(&self) -> u64 {
        watching::watched(self.session.progress.step, self.session.steps())
    }

    pub(super) fn begin_step(&mut self, watched: u64) -> StepMeter {
        let stats = stats::<I>(&self.device);
        self.metrics.peaks.include::<I>(&self.device, &stats);
        reset_peaks::<I>(&self.device);
        // Without a budget nothing moves.
        let watches = self.session.progress.step + 1 == watched && stats.device.budget.is_some();
        if watches {
            watch_step::<I>(&self.device);
        }
        let begun = Instant::now();
        let host_times = self.optimizer.begin_step_times();
        StepMeter { stats, watches, begun, host_times, waited: Duration::ZERO, ranks: None }
    }

    pub(super) fn end_step(&mut self, meter: StepMeter, mut report: Report, events: &mut Events<I>) {
        report.time(meter.begun.elapsed(), meter.waited);
        report.host_step(meter.host_times.map(|times| times.take()));
        if let Some((before, after)) = meter.ranks.zip(self.ranks.spent()) {
            report.ranks(before, after);
        }
        mark_step::<I>(&self.device);
        let stretches = if meter.watches { watched_step::<I>(&self.device) } else { None };
        let host = host_memory::<I>(&self.device).usage().peak;
        report.memory(&meter.stats, &stats::<I>(&self.device), host);
        let timeline = stretches.map(|stretches| Timeline::of(&report, &stretches));
        self.account(report, events);
        if let Some(timeline) = timeline {
            self.tell("timeline", &timeline);
        }
    }

    pub(super) fn account(&mut self, mut report: Report, events: &mut Events<I>) {
        let (usable, seconds) = (report.is_usable(), report.ms / 1e3);
        let session = &mut self.session;
        session.progress.advance(report.loss, session.training.cursor(report.step));
        session.progress.seconds = self.metrics.seconds_before + self.metrics.begun.elapsed().as_secs_f64();
        let ([bytes_in, bytes_out], loss) = (report.over_the_link(), report.loss);
        let (spilled_in, spilled_out) = (report.bytes_in, report.bytes_out);
        let (tokens, pace) = (session.config.tokens_per_step() as f64, self.exchange.pace());
        let taken = Taken { loss, seconds, pace, bytes_in, bytes_out, spilled_in, spilled_out };
        self.metrics.taken.push(taken);
        report.steps = session.steps();
        let since = tokens * self.exchange.steps_of_all(self.metrics.after, report.step);
        report.tokens = self.metrics.tokens_before + since.round() as u64;
        session.progress.tokens = report.tokens;
        report.tokens_per_second = tokens / seconds * pace;
        let reached = session.speed.flops_per_step / seconds / self.ranks.world() as f64;
        if let Some(shown) = session.speed.flops_per_second.filter(|shown| reached > *shown) {
            session.speed.flops_per_second = Some(reached);
            self.outdone(report.step, shown, reached);
        }

        let session = &self.session;
        report.mfu = session.speed.flops_per_second.map(|possible| reached / possible);
        (report.seconds, report.untimed) = (session.progress.seconds, self.metrics.untimed);
        report.drive_wear = session.wear.written(stats::<I>(&self.device).bytes_to_disk);
        self.tell("step", &report);
        self.spare_the_disk();
        self.session.progress.withheld = self.session.progress.withheld_after(usable);

        if !usable {
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

    /// Reports a step faster than all measured matmuls and all earlier steps.
    fn outdone(&mut self, step: u64, shown: f64, reached: f64) {
        self.tell("peak", &json!({ "step": step, "flops_per_second": reached, "before": shown }));
        if !std::mem::replace(&mut self.metrics.is_outdone, true) {
            let [reached, shown] = [reached, shown].map(|speed| si(speed, "FLOP/s"));
            self.say(&format!(
                "step {step} reached {reached}, and products no more than {shown} when they were measured, probably beside \
                 other work: mfu is of the most that was reached; `train plan --measure` measures again"
            ));
        }
    }

    fn spare_the_disk(&mut self) {
        let counter = |run: &Self| stats::<I>(&run.device).bytes_to_disk;
        if self.session.wear.has_to_be_exact(counter(self)) {
            // The next use of the weights reports a failed update.
            _ = self.optimizer.settle();
        }
        let counter = counter(self);
        let Some(reason) = self.session.wear.step(counter) else { return };
        if self.ranks.leads() {
            self.say(&format!("{reason}: stopping"));
        } else {
            eprintln!("rank {}: {reason}: all stop", self.ranks.rank());
        }
        self.tell("stopping", &json!({ "step": self.session.progress.step, "reason": reason }));
        self.session.stop.store(true, Ordering::Relaxed);
    }
}
