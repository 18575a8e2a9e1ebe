//! The session of a run: settings, data and position, without tensors.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use runs::config::Config;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokenizer::{Cursor, Fingerprint};

use super::wear::Wear;
use crate::data::{Data, TrainingWindows, ValidationWindows};

pub(crate) struct Session {
    pub(crate) config: Config,
    pub(crate) run: PathBuf,
    pub(crate) data: Data,
    pub(crate) training: Arc<TrainingWindows>,
    pub(crate) validation: Arc<ValidationWindows>,
    pub(crate) progress: Progress,
    pub(crate) wear: Wear,
    pub(crate) parameters: u64,
    pub(crate) speed: Speed,
    /// Set by the first signal.
    pub(crate) stop: Arc<AtomicBool>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed {
    /// FLOPs of one step, without recomputation.
    pub(crate) flops_per_step: f64,
    /// Best, in large products and in steps of the run.
    pub(crate) flops_per_second: Option<f64>,
}

/// Saved with every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    pub(crate) step: u64,
    pub(crate) cursor: Cursor,
    /// Absent before step 1.
    pub(crate) data: Option<Fingerprint>,
    /// Includes evaluations and checkpoints. Only the journal keeps it, so that equal runs leave equal checkpoints.
    #[serde(default, skip_serializing)]
    pub(crate) seconds: f64,
    /// Of all ranks, as the journal counts them.
    #[serde(default, skip_serializing)]
    pub(crate) tokens: u64,
    pub(crate) best: Option<Best>,
    /// Digest of the sequences that `best` was measured over; absent in older checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) validation: Option<Fingerprint>,
    /// Skipped updates in a row.
    pub(crate) withheld: u64,
    /// Digest over the bits of all losses.
    pub(crate) losses: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Best {
    pub(crate) step: u64,
    pub(crate) loss: f32,
}

impl Progress {
    pub(crate) fn start(seed: u64) -> Self {
        Self { cursor: Cursor::start(seed), ..Self::default() }
    }

    pub(crate) fn advance(&mut self, loss: f32, cursor: Cursor) {
        let mut digest = Sha256::new();
        digest.update(self.losses.as_bytes());
        digest.update(loss.to_bits().to_le_bytes());
        self.losses = Fingerprint::finish(digest).to_string();
        self.step += 1;
        self.cursor = cursor;
    }

    pub(crate) fn withheld_after(&self, usable: bool) -> u64 {
        if usable { 0 } else { self.withheld + 1 }
    }

    pub(crate) fn better(&self, loss: f64) -> Option<Best> {
        let loss = loss as f32;
        let better = loss.is_finite() && self.best.is_none_or(|best| loss < best.loss);
        better.then_some(Best { step: self.step, loss })
    }
}

impl Session {
    pub(crate) fn steps(&self) -> u64 {
        self.config.train.steps
    }

    pub(crate) fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
