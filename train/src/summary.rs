//! The summary of a run, in exact numbers.

use std::{collections::HashMap, fmt, fs, path::Path};

use anyhow::Context;
use backend_offload::{Bytes, Offloadable, Stats, dry_run_requested};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};
use models::rows::RowsOnDemand;
use models::{OnDemand, Packed};
use runs::{config::Config, device::Place, directory::SUMMARY};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokenizer::Fingerprint;

use crate::exit::Ending;
use crate::figures::duration;
use crate::plan::Measured;
use crate::ranks::Ranks;
use crate::stages::{stage_of, stages};
use crate::training::{Learner, Outcome, QuizScore, Taken};

/// Printed at the end, and saved as `summary.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Summary {
    outcome: &'static str,
    device: String,
    parameters: u64,
    /// Includes steps before an interruption.
    steps: u64,
    tokens: u64,
    seconds: f64,
    /// Median over this process's steps without the first, which waits for kernels.
    step_ms_median: Option<f64>,
    tokens_per_second: Option<f64>,
    loss: Option<f32>,
    val_loss: Option<f64>,
    bits_per_byte: Option<f64>,
    losses_sha256: String,
    pub(crate) weights_sha256: String,
    peak_device_bytes: u64,
    peak_host_bytes: u64,
    bytes_out: u64,
    bytes_in: u64,
    bytes_read: u64,
    bytes_written: u64,
    bytes_to_disk: u64,
    bytes_from_disk: u64,
    /// Bytes over the link in this process's steps, a host optimizer's included.
    step_bytes_out: u64,
    step_bytes_in: u64,
    /// Medians over the same steps: all bytes over the link, then spilled tensors'.
    bytes_out_median: Option<u64>,
    bytes_in_median: Option<u64>,
    spilled_out_median: Option<u64>,
    spilled_in_median: Option<u64>,
    evictions: u64,
    restores: u64,
    /// Blocks evicted ahead, prefetched, and prefetched but not used.
    left_ahead: u64,
    brought_ahead: u64,
    brought_in_vain: u64,
    /// Matches of an earlier step's prediction, and mismatches.
    foretold: u64,
    diverged: u64,
    stall_seconds: f64,
    /// Saves by this process, and seconds that training waited for them.
    saves: u64,
    saves_waited_seconds: f64,
    largest_launch: u64,
    pub(crate) link_bytes_per_second: Option<f64>,
    device_budget: Option<u64>,
    pub(crate) quiz: Option<QuizScore>,
    #[serde(skip)]
    medians: Option<Medians>,
    #[serde(skip)]
    checkpoint_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Medians {
    seconds: f64,
    /// At the pace of all ranks.
    paced_seconds: f64,
    bytes_in: u64,
    bytes_out: u64,
    spilled_in: u64,
    spilled_out: u64,
}

impl Medians {
    fn new(taken: &[Taken]) -> Option<Self> {
        let middle = taken.len() / 2;
        let seconds = |of: fn(&Taken) -> f64| {
            let mut seconds: Vec<f64> = taken.iter().map(of).collect();
            seconds.sort_by(f64::total_cmp);
            seconds.get(middle).copied()
        };
        let bytes = |of: fn(&Taken) -> u64| {
            let mut bytes: Vec<u64> = taken.iter().map(of).collect();
            bytes.sort_unstable();
            bytes.get(middle).copied()
        };
        Some(Self {
            seconds: seconds(|taken| taken.seconds)?,
            paced_seconds: seconds(|taken| taken.seconds / taken.pace)?,
            bytes_in: bytes(|taken| taken.bytes_in)?,
            bytes_out: bytes(|taken| taken.bytes_out)?,
            spilled_in: bytes(|taken| taken.spilled_in)?,
            spilled_out: bytes(|taken| taken.spilled_out)?,
        })
    }
}

impl Summary {
    pub(crate) fn new<I: Offloadable>(
        outcome: &Outcome<I>,
        place: &Place,
        weights_sha256: String,
        stats: &Stats,
    ) -> Self {
        let session = &outcome.session;
        let progress = &session.progress;
        let per_step = session.config.tokens_per_step();
        let medians = Medians::new(outcome.taken.get(1..).unwrap_or_default());
        Self {
            outcome: outcome.ending.name(),
            device: place.name.clone(),
            parameters: session.parameters,
            steps: progress.step,
            tokens: progress.tokens,
            seconds: progress.seconds,
            step_ms_median: medians.map(|medians| medians.seconds * 1e3),
            tokens_per_second: medians.map(|medians| per_step as f64 / medians.paced_seconds),
            loss: outcome.taken.last().map(|taken| taken.loss),
            val_loss: outcome.evaluation.map(|evaluation| evaluation.loss),
            bits_per_byte: outcome.evaluation.and_then(|evaluation| evaluation.bits_per_byte),
            losses_sha256: progress.losses.clone(),
            weights_sha256,
            peak_device_bytes: outcome.peaks.device,
            peak_host_bytes: outcome.peaks.host,
            bytes_out: stats.bytes_out,
            bytes_read: stats.bytes_read,
            bytes_written: stats.bytes_written,
            bytes_in: stats.bytes_in,
            bytes_to_disk: stats.bytes_to_disk,
            bytes_from_disk: stats.bytes_from_disk,
            step_bytes_out: outcome.taken.iter().map(|taken| taken.bytes_out).sum(),
            step_bytes_in: outcome.taken.iter().map(|taken| taken.bytes_in).sum(),
            bytes_out_median: medians.map(|medians| medians.bytes_out),
            bytes_in_median: medians.map(|medians| medians.bytes_in),
            spilled_out_median: medians.map(|medians| medians.spilled_out),
            spilled_in_median: medians.map(|medians| medians.spilled_in),
            evictions: stats.evictions,
            restores: stats.restores,
            left_ahead: stats.left_ahead,
            brought_ahead: stats.brought_ahead,
            brought_in_vain: stats.brought_in_vain,
            foretold: stats.predicted,
            diverged: stats.diverged,
            stall_seconds: stats.stall.as_secs_f64(),
            saves: outcome.saves.count,
            saves_waited_seconds: outcome.saves.waited.as_secs_f64(),
            largest_launch: outcome.peaks.largest_launch,
            link_bytes_per_second: None,
            device_budget: stats.device.budget,
            quiz: None,
            medians,
            checkpoint_bytes: outcome.saves.bytes,
        }
    }

    pub(crate) fn write(&self, run: &Path) -> anyhow::Result<()> {
        let path = run.join(SUMMARY);
        fs::write(&path, self.to_json()? + "\n").with_context(|| format!("writing {}", path.display()))
    }

    pub(crate) fn to_json(&self) -> anyhow::Result<String> {
        serde_json::to_string_pretty(self).context("describing the run")
    }

    /// `None` after fewer than two steps.
    pub(crate) fn measured(&self) -> Option<Measured> {
        let medians = self.medians?;
        Some(Measured {
            peak_device_bytes: self.peak_device_bytes,
            peak_host_bytes: self.peak_host_bytes,
            bytes_in_per_step: medians.bytes_in,
            bytes_out_per_step: medians.bytes_out,
            step_seconds: medians.seconds,
            largest_operation: self.largest_launch,
            checkpoint_bytes: self.checkpoint_bytes,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} steps, {} tokens, {:.0} s", self.outcome, self.steps, self.tokens, self.seconds)?;
        if let Some(rate) = self.tokens_per_second {
            write!(f, ", {rate:.0} tokens/s")?;
        }

        if let (Some(loss), Some(val)) = (self.loss, self.val_loss) {
            write!(f, "\nloss {loss:.4}, validation loss {val:.4}")?;
        }

        if let Some(bits) = self.bits_per_byte {
            write!(f, ", {bits:.4} bits per byte")?;
        }

        let budget = self.device_budget.map_or("no budget".to_owned(), |budget| Bytes(budget).to_string());
        write!(
            f,
            "\ndevice peak {} of {budget}, host peak {}; {} evictions and {} restores moved {} out and {} in",
            Bytes(self.peak_device_bytes),
            Bytes(self.peak_host_bytes),
            self.evictions,
            self.restores,
            Bytes(self.bytes_out),
            Bytes(self.bytes_in)
        )?;

        if self.bytes_to_disk > 0 {
            let (written, read) = (Bytes(self.bytes_to_disk), Bytes(self.bytes_from_disk));
            write!(f, "\n{written} were written to the disk and {read} read from it")?;
        }

        if self.saves > 0 {
            let (saves, waited) = (self.saves, duration(self.saves_waited_seconds));
            let plural = if saves == 1 { "" } else { "s" };
            write!(f, "\ntraining waited {waited} for {saves} checkpoint{plural}")?;
        }

        if let Some(quiz) = self.quiz {
            write!(f, "\n{quiz}")?;
        }
        Ok(())
    }
}

const MAX_BYTES: u64 = 4 << 20;

pub(crate) fn finished_summary(run: &Path, steps: u64) -> Option<String> {
    let text = durable::regular::read_text(&run.join(SUMMARY), MAX_BYTES).ok()?;
    let saved: serde_json::Value = serde_json::from_str(&text).ok()?;
    (saved["outcome"] == Ending::Done.name() && saved["steps"] == steps).then_some(text)
}

/// Digest of all parameters' bits in the network's order. Stages send each other theirs.
pub(crate) fn weights_digest<B: Backend>(
    learner: &Learner<B>,
    config: &Config,
    ranks: &mut Ranks,
) -> anyhow::Result<String> {
    let stages = stages(config, ranks.stages());
    let listed = config.model.parameters().into_iter();
    let owners = listed.map(|parameter| (parameter.name, stage_of(&stages, parameter.part)));
    let mut digest = WeightsDigest {
        sha: Sha256::new(),
        on_demand: learner.gpt.on_demand(),
        packed: learner.gpt.packed(),
        embedding: learner.gpt.rows_on_demand().cloned().map(|rows| (learner.gpt.wte.id, rows)),
        owners: if ranks.form_pipelines() { owners.collect() } else { HashMap::new() },
        ranks: Some(ranks),
        path: Vec::new(),
        failure: None,
    };
    // A dry run has no numbers, and would have gigabytes of them.
    if !dry_run_requested() {
        learner.gpt.visit(&mut digest);
    }
    match digest.failure {
        Some(failure) => anyhow::bail!("reading the trained weights: {failure}"),
        None => Ok(Fingerprint::finish(digest.sha).to_string()),
    }
}

const ROWS_AT_ONCE: usize = 1024;

/// Bytes that pass between stages at once.
const PIECE: usize = 4 << 20;

struct WeightsDigest<'r, B: Backend> {
    sha: Sha256,
    on_demand: HashMap<ParamId, OnDemand>,
    packed: HashMap<ParamId, Packed<B>>,
    embedding: Option<(ParamId, RowsOnDemand)>,
    owners: HashMap<String, usize>,
    /// Absent while a parameter passes.
    ranks: Option<&'r mut Ranks>,
    path: Vec<String>,
    failure: Option<String>,
}

impl<B: Backend> WeightsDigest<'_, B> {
    fn read<const D: usize>(
        &self,
        param: &Param<Tensor<B, D>>,
        mut take: impl FnMut(&[u8]),
    ) -> Option<String> {
        if let Some((_, rows)) = self.embedding.as_ref().filter(|(id, _)| *id == param.id) {
            let ids: Vec<u32> = (0..param.lazy_shape()[0] as u32).collect();
            ids.chunks(ROWS_AT_ONCE).for_each(|ids| take(bytemuck::cast_slice(&rows.numbers(ids))));
            return None;
        }
        let read = match (self.packed.get(&param.id), self.on_demand.get(&param.id)) {
            (Some(packed), _) => packed.weights().try_into_data(),
            (None, Some(weights)) => weights.weights::<B>().try_into_data(),
            (None, None) => param.val().try_into_data(),
        };
        match read {
            Ok(data) => take(&data.bytes),
            Err(error) => return Some(error.to_string()),
        }
        None
    }

    /// In pieces, for tables above free memory. Each replica of a stage counts its own bits.
    fn pass_on<const D: usize>(
        &mut self,
        owner: usize,
        param: &Param<Tensor<B, D>>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<()> {
        let (sends, counts) = (ranks.rank() == owner, ranks.stage() == owner);
        let mut sha = std::mem::take(&mut self.sha);
        let mut outcome = Ok(());
        if counts {
            let failure = self.read(param, |bytes| {
                sha.update(bytes);
                for piece in bytes.chunks(PIECE).filter(|_| sends) {
                    if outcome.is_ok() {
                        outcome = pass(ranks, owner, &mut piece.to_vec());
                    }
                }
            });
            self.failure = self.failure.take().or(failure);
        }
        if sends {
            outcome = outcome.and_then(|()| pass(ranks, owner, &mut Vec::new()));
        }
        let mut piece = vec![0];
        while !sends && outcome.is_ok() && !piece.is_empty() {
            outcome = pass(ranks, owner, &mut piece);
            if !counts {
                sha.update(&piece);
            }
        }
        self.sha = sha;
        outcome
    }
}

/// The owner's piece; an empty one is the last.
fn pass(ranks: &mut Ranks, owner: usize, piece: &mut Vec<u8>) -> anyhow::Result<()> {
    let mut length = (piece.len() as u64).to_le_bytes();
    ranks.broadcast_from(owner, &mut length)?;
    piece.resize(u64::from_le_bytes(length) as usize, 0);
    if piece.is_empty() { Ok(()) } else { ranks.broadcast_from(owner, piece) }
}

impl<B: Backend> ModuleVisitor<B> for WeightsDigest<'_, B> {
    models::keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let failure = if let Some(owner) = self.owners.get(&self.path.join(".")).copied() {
            let ranks = self.ranks.take().expect("no parameter is passing");
            let passed = self.pass_on(owner, param, ranks);
            self.ranks = Some(ranks);
            passed.err().map(|error| format!("{error:#}"))
        } else {
            let mut sha = std::mem::take(&mut self.sha);
            let failure = self.read(param, |bytes| sha.update(bytes));
            self.sha = sha;
            failure
        };
        self.failure = self.failure.take().or(failure);
    }
}
