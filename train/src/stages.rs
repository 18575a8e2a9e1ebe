//! The stages of a pipeline (`ranks.pipeline`), and what each holds.

use models::Part;
use models::stage::Stage;
use runs::config::Config;

pub(crate) fn stages(config: &Config, count: usize) -> Vec<Stage> {
    let model = &config.model;
    let layers = (model.n_layer, config.train.recompute.unwrap_or(1));
    (0..count).map(|stage| Stage::new((stage, count), layers, model.tie_word_embeddings)).collect()
}

pub(crate) fn stage_of(stages: &[Stage], part: Part) -> usize {
    stages.iter().position(|stage| stage.has(part)).expect("each part has a stage")
}

/// What happens where ranks, or pipelines of several `stages`, outnumber the micro-batches of a step.
pub(crate) fn idle_ranks(micro_batches: usize, ranks: usize, stages: usize) -> Option<String> {
    let (world, what) = (ranks / stages, if stages > 1 { "pipelines" } else { "ranks" });
    (world > micro_batches).then(|| {
        format!(
            "{world} {what} share {micro_batches} micro-batches of a step, so some have nothing to do; raise \
             `train.accumulate` and lower `train.micro_batch`"
        )
    })
}

/// Local steps need a micro-batch on each rank.
pub(crate) fn refused(idle_ranks: String) -> String {
    idle_ranks + ". With `ranks.exchange` = \"rarely\" every rank needs one"
}

/// One process has no stages.
pub(crate) fn refusal(ranks: usize, count: usize) -> Option<String> {
    (ranks > 1 && !ranks.is_multiple_of(count)).then(|| {
        format!(
            "{ranks} ranks cannot form pipelines of `ranks.pipeline` = {count} stages; start a multiple of {count} with \
             --ranks, or set `ranks.pipeline` to a divisor of {ranks}"
        )
    })
}
