//! What a plan counts: the whole run, or in a pipeline the largest stage, with one table.

use models::Footprint;
use models::stage::Stage;
use runs::config::Config;

use super::{Machine, WIDE, flops_per_token};
use crate::stages::stages;

pub(super) struct OfRank {
    pub(super) config: Config,
    pub(super) footprint: Footprint,
    /// With the ranks of this stage.
    pub(super) machine: Machine,
    /// Bytes of activations and their gradients that a rank sends in a step, or holds at once.
    pub(super) crossing: u64,
    pub(super) waiting: u64,
    /// Its part of the run's arithmetic, idle turns included.
    pub(super) time: f64,
    pub(super) bubble: Option<f64>,
}

impl OfRank {
    pub(super) fn new(config: &Config, footprint: &Footprint, machine: &Machine) -> Self {
        let (mut held, ranks, count) = (config.clone(), machine.ranks(), config.ranks.pipeline);
        let (accumulate, mut machine) = (config.train.accumulate, machine.clone());
        let is_staged = count > 1 && ranks.is_multiple_of(count);
        let pipelines = if is_staged { ranks / count } else { ranks };
        let micro_batches = accumulate.div_ceil(pipelines) as u64;
        let time = micro_batches as f64 / accumulate as f64;
        if !is_staged {
            held.ranks.pipeline = 1;
            let (footprint, waiting) = (*footprint, 0);
            return Self { config: held, footprint, machine, crossing: 0, waiting, time, bubble: None };
        }

        machine.other_ranks = pipelines - 1;
        let stages = stages(config, count);
        let blocks = stages.iter().map(|stage| stage.blocks().len()).max().unwrap_or(1);
        held.model.n_layer = blocks;
        held.model.tie_word_embeddings = true;
        let of_stage = Footprint::of(&held.model).unwrap_or(*footprint);

        // A single cut has one direction for each rank.
        let sides = if count > 2 || config.model.tie_word_embeddings { 2 } else { 1 };
        let stream = (config.train.micro_batch * config.sequence() * config.model.n_embd) as u64 * WIDE;
        let turns = micro_batches + count as u64 - 1;
        // FLOPs grow evenly with blocks, beside the head's.
        let recomputes = config.train.recompute.is_some();
        let [all, some] = [(config, footprint), (&held, &of_stage)]
            .map(|(config, footprint)| flops_per_token(config, footprint, recomputes));
        let layers = config.model.n_layer;
        let block = (all - some) / (layers - blocks) as f64;
        let head = all - block * layers as f64;
        let of = |stage: &Stage| block * stage.blocks().len() as f64 + if stage.ends { head } else { 0.0 };
        let share = stages.iter().map(of).fold(0.0, f64::max) / all;
        Self {
            config: held,
            footprint: of_stage,
            machine,
            crossing: sides * micro_batches * stream,
            // Embedded ahead, one backward, two expected.
            waiting: (micro_batches.min(count as u64) + 3) * stream,
            time: time * share * turns as f64 / micro_batches as f64,
            bubble: Some((count - 1) as f64 / turns as f64),
        }
    }
}
