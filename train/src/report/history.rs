//! The records of `metrics.jsonl` that a report shows.

use std::{
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::Context;
use serde::Deserialize;

use super::timeline::Timeline;
use crate::journal;

/// Of repeated steps only the last repetition counts.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) starts: Vec<Start>,
    pub(super) steps: Vec<Update>,
    pub(super) evals: Vec<Eval>,
    pub(super) samples: Vec<Sample>,
    pub(super) withheld: Vec<Withheld>,
    pub(super) checkpoints: Vec<Checkpoint>,
    pub(super) quizzes: Vec<Quiz>,
    pub(super) stops: Vec<Stopping>,
    pub(super) moments: Option<Moments>,
    pub(super) timeline: Option<Timeline>,
    /// Unreadable lines, except a cut-off last one.
    pub(super) unreadable: usize,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Record {
    Start(Start),
    Step(Box<Update>),
    Eval(Eval),
    Sample(Sample),
    Withheld(Withheld),
    Checkpoint(Checkpoint),
    Quiz(Quiz),
    Stopping(Stopping),
    Moments(Moments),
    Timeline(Timeline),
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
pub(super) struct Start {
    pub(super) step: u64,
    /// Absent in older journals, as the next three fields.
    pub(super) date: Option<String>,
    pub(super) version: Option<String>,
    pub(super) command: Option<String>,
    pub(super) config: Option<String>,
    pub(super) device: String,
    pub(super) parameters: u64,
    pub(super) tokens_per_step: u64,
    /// Absent in older journals, as the next three fields.
    pub(super) together: Option<u64>,
    pub(super) ranks: Option<usize>,
    /// By the plan, on all tiers.
    pub(super) working_set: Option<u64>,
    /// By the plan.
    pub(super) sent_per_step: Option<u64>,
    pub(super) device_budget: Option<u64>,
    /// `device` or `host`; absent in older journals. The next two fields are for `host`.
    pub(super) optimizer_on: Option<String>,
    pub(super) optimizer_state: Option<String>,
    pub(super) device_blocks: Option<u64>,
}

/// Numbers that are not finite are null in the file and absent here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Update {
    pub(super) step: u64,
    pub(super) steps: u64,
    pub(super) loss: Option<f64>,
    pub(super) lr: Option<f64>,
    pub(super) gnorm: Option<f64>,
    pub(super) ms: Option<f64>,
    pub(super) tokens: Option<u64>,
    pub(super) tokens_per_second: Option<f64>,
    pub(super) mfu: Option<f64>,
    pub(super) device_bytes: Option<u64>,
    pub(super) device_budget: Option<u64>,
    pub(super) host_bytes: Option<u64>,
    pub(super) bytes_out: Option<u64>,
    pub(super) bytes_in: Option<u64>,
    pub(super) bytes_read: Option<u64>,
    pub(super) bytes_written: Option<u64>,
    pub(super) disk_written: Option<u64>,
    pub(super) disk_read: Option<u64>,
    pub(super) stall_ms: Option<f64>,
    pub(super) host_step_ms: Option<f64>,
    pub(super) host_step_wait_ms: Option<f64>,
    pub(super) ranks_sent: Option<u64>,
    pub(super) ranks_heard: Option<u64>,
    pub(super) ranks_ms: Option<f64>,
    pub(super) ranks_stall_ms: Option<f64>,
    pub(super) seconds: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Eval {
    pub(super) step: u64,
    pub(super) loss: Option<f64>,
    pub(super) perplexity: Option<f64>,
    pub(super) bits_per_byte: Option<f64>,
    pub(super) sequences: u64,
    pub(super) best: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Sample {
    pub(super) step: u64,
    pub(super) prompt: String,
    pub(super) text: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Withheld {
    pub(super) step: u64,
    pub(super) reason: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Checkpoint {
    pub(super) step: u64,
    pub(super) bytes: Option<u64>,
    pub(super) waited_ms: Option<f64>,
    pub(super) error: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Quiz {
    pub(super) step: u64,
    pub(super) held_out: Score,
    pub(super) unseen_phrasings: Score,
}

#[derive(Debug, Deserialize)]
pub(super) struct Stopping {
    pub(super) step: u64,
    pub(super) reason: String,
}

/// A divided optimizer at the end of a run.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Moments {
    pub(super) step: u64,
    pub(super) bytes: u64,
    /// Peak bytes of weights gathered from other ranks.
    pub(super) gathered_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Score {
    pub(super) right: u64,
    pub(super) asked: u64,
}

impl Start {
    /// Whether the trainer's reads and writes are gradients and weights.
    pub(super) fn steps_on_host(&self) -> bool {
        self.optimizer_on.as_deref() == Some("host")
    }
}

impl Update {
    /// Bytes to the device and from it, with what an optimizer on the host writes and reads.
    pub(super) fn over_the_link(&self, on_host: bool) -> [Option<u64>; 2] {
        let with = |spilled: Option<u64>, own: Option<u64>| {
            if on_host { Some(spilled? + own.unwrap_or_default()) } else { spilled }
        };
        [with(self.bytes_in, self.bytes_written), with(self.bytes_out, self.bytes_read)]
    }
}

impl History {
    pub(super) fn steps_on_host(&self) -> bool {
        self.starts.last().is_some_and(Start::steps_on_host)
    }

    pub(super) fn read(run: &Path) -> anyhow::Result<Self> {
        let path = run.join(journal::FILE);
        let reading = || format!("reading {}", path.display());
        let mut lines = BufReader::new(durable::regular::open(&path).with_context(reading)?);
        let mut history = Self::default();
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).with_context(reading)? > 0 {
            match serde_json::from_slice(&line) {
                Ok(record) => history.add(record),
                // A last line without a line end was cut off.
                Err(_) => history.unreadable += usize::from(line.ends_with(b"\n")),
            }
            line.clear();
        }
        Ok(history)
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Start(start) => {
                self.forget_after(start.step);
                self.starts.push(start);
            }
            Record::Step(step) => self.steps.push(*step),
            Record::Eval(eval) => self.evals.push(eval),
            Record::Sample(sample) => self.samples.push(sample),
            Record::Withheld(withheld) => self.withheld.push(withheld),
            Record::Checkpoint(checkpoint) => self.checkpoints.push(checkpoint),
            Record::Quiz(quiz) => self.quizzes.push(quiz),
            Record::Stopping(stop) => self.stops.push(stop),
            Record::Moments(moments) => self.moments = Some(moments),
            Record::Timeline(timeline) => self.timeline = Some(timeline),
            Record::Other => {}
        }
    }

    /// A run resumed after `step` repeats later records.
    fn forget_after(&mut self, step: u64) {
        self.steps.retain(|record| record.step <= step);
        self.evals.retain(|record| record.step <= step);
        self.samples.retain(|record| record.step <= step);
        self.withheld.retain(|record| record.step <= step);
        self.checkpoints.retain(|record| record.step <= step);
        self.quizzes.retain(|record| record.step <= step);
        self.moments.take_if(|record| record.step > step);
        self.timeline.take_if(|record| record.step > step);
    }
}
