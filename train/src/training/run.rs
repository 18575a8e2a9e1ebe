//! A run in progress: its state, and the journal and display of its steps.

use std::sync::atomic::Ordering;
use std::time::Instant;

use backend_offload::{Managed, Offload, Offloadable, Stats, host_memory, stats};
use burn::data::dataloader::Progress as Items;
use burn_train::{EventProcessorTraining, LearnerEvent, TrainingItem};
use runs::checkpoint::Checkpoints;
use serde::Serialize;
use serde_json::json;

use super::evaluation::Evaluation;
use super::saving::{Saves, Sealing};
use super::strategy::{Display, Events, Taken};
use super::{Exchange, Session};
use crate::exit::Ending;
use crate::figures::si;
use crate::journal::Journal;
use crate::optimizer::Optimizer;
use crate::progress::Report;
use crate::ranks::Ranks;

/// A run in progress.
pub(crate) struct Run<I: Offloadable> {
    pub(crate) session: Session,
    pub(crate) optimizer: Optimizer<Offload<I>>,
    pub(crate) ranks: Ranks,
    pub(super) exchange: Exchange,
    pub(crate) journal: Journal,
    pub(crate) device: I::Device,
    pub(super) taken: Vec<Taken>,
    pub(super) saves: Saves,
    pub(super) evaluation: Option<Evaluation>,
    pub(super) checkpoints: Checkpoints,
    /// The checkpoint on its way to the disk.
    pub(super) sealing: Option<Sealing>,
    pub(super) display: Display,
    pub(super) peaks: Peaks,
    /// Whether a step was faster than the products before the run.
    is_outdone: bool,
    /// Set when the loop has ended.
    pub(super) ending: Option<anyhow::Result<Ending>>,
    begun: Instant,
    /// Seconds spent by earlier parts of the run.
    before: f64,
}

/// Peaks of the run. The device's own counters begin anew with every step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Peaks {
    pub(crate) device: u64,
    pub(crate) host: u64,
    pub(crate) largest_launch: u64,
}

impl Peaks {
    pub(crate) fn include<I: Managed>(&mut self, device: &I::Device, stats: &Stats) {
        self.device = self.device.max(stats.device.peak);
        self.host = self.host.max(host_memory::<I>(device).usage().peak);
        self.largest_launch = self.largest_launch.max(stats.largest_launch);
    }
}

impl<I: Offloadable> Run<I> {
    pub(crate) fn new(
        session: Session,
        mut optimizer: Optimizer<Offload<I>>,
        (ranks, exchange): (Ranks, Exchange),
        journal: Journal,
        device: I::Device,
        display: Display,
    ) -> Self {
        if let Some(host) = &mut optimizer.host {
            host.number_shares_from(ranks.share(session.config.train.accumulate).range().start);
        }
        let before = journal.seconds();
        let checkpoints = Checkpoints::in_run(&session.run);
        Self {
            session,
            optimizer,
            ranks,
            exchange,
            journal,
            device,
            taken: Vec::new(),
            saves: Saves::default(),
            evaluation: None,
            checkpoints,
            sealing: None,
            display,
            begun: Instant::now(),
            before,
            peaks: Peaks::default(),
            is_outdone: false,
            ending: None,
        }
    }

    /// Writes a step to the journal and shows it.
    pub(super) fn account(&mut self, mut report: Report, events: &mut Events<I>) {
        let (usable, seconds) = (report.is_usable(), report.ms / 1e3);
        let session = &mut self.session;
        session.progress.advance(report.loss, session.training.cursor(report.step));
        session.progress.seconds = self.before + self.begun.elapsed().as_secs_f64();
        let ([bytes_in, bytes_out], loss) = (report.over_the_link(), report.loss);
        let (spilled_in, spilled_out) = (report.bytes_in, report.bytes_out);
        self.taken.push(Taken { loss, seconds, bytes_in, bytes_out, spilled_in, spilled_out });
        let tokens = session.config.tokens_per_step();
        report.steps = session.steps();
        report.tokens = tokens * report.step;
        report.tokens_per_second = tokens as f64 / seconds;
        let reached = session.flops_per_step / seconds / self.ranks.world() as f64;
        if let Some(shown) = session.flops_per_second.filter(|shown| reached > *shown) {
            session.flops_per_second = Some(reached);
            self.outdone(report.step, shown, reached);
        }
        let session = &self.session;
        report.mfu = session.flops_per_second.map(|possible| reached / possible);
        report.seconds = session.progress.seconds;
        report.drive_wear = session.wear.written(stats::<I>(&self.device).bytes_to_disk);
        self.tell("step", &report);
        self.spare_the_disk();
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

    /// Tells of a step that was faster than all products and steps before it: what is possible is more than was known.
    fn outdone(&mut self, step: u64, shown: f64, reached: f64) {
        self.tell("peak", &json!({ "step": step, "flops_per_second": reached, "before": shown }));
        if !std::mem::replace(&mut self.is_outdone, true) {
            let [reached, shown] = [reached, shown].map(|speed| si(speed, "FLOP/s"));
            self.say(&format!(
                "step {step} reached {reached}, and products no more than {shown} when they were measured, probably beside \
                 other work: mfu is of the most that was reached; `train plan --measure` measures again"
            ));
        }
    }

    /// Asks for the end of a run whose next step would write more to the disk than it may.
    fn spare_the_disk(&mut self) {
        let counter = |run: &Self| stats::<I>(&run.device).bytes_to_disk;
        if self.session.wear.has_to_be_exact(counter(self)) {
            // An update that failed is told by whoever needs its weights.
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

    /// A line in the journal. A disk that is full does not end the run.
    pub(super) fn tell<T: Serialize>(&mut self, kind: &str, record: &T) {
        if let Err(error) = self.journal.write(kind, record) {
            self.say(&format!("{error:#}; training continues"));
        }
    }

    /// Prints between the lines of steps. The terminal interface owns the whole screen, so there the journal has to do.
    pub(super) fn say(&self, text: &str) {
        if self.display == Display::Plain {
            eprintln!("{text}");
        }
    }
}
