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

/// One process has no stages.
pub(crate) fn refusal(ranks: usize, count: usize) -> Option<String> {
    (ranks > 1 && !ranks.is_multiple_of(count)).then(|| {
        format!(
            "{ranks} ranks cannot form pipelines of `ranks.pipeline` = {count} stages; start a multiple of {count} with \
             --ranks, or set `ranks.pipeline` to a divisor of {ranks}"
        )
    })
}
