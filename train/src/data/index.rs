//! Building an index of longest matches under a progress bar.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use runs::config::Config;
use runs::{BadInput, Indexes, own_index, own_shards};
use tokenizer::{IndexBuild, IndexManifest, IndexProgress, IndexStep, Split};

use crate::progress::StepBar;

/// Memory that the index of a run's own text is built in.
const MEMORY: u64 = 1 << 30;

/// Opens what a run looks up. The index of its own training text is built unless it is there.
pub(super) fn indexes(config: &Config, data: &Path, stop: &AtomicBool) -> anyhow::Result<Indexes> {
    let build = IndexBuild {
        set: own_shards(config, data),
        split: Split::Train,
        out: own_index(data),
        memory: MEMORY,
        chunk_tokens: None,
        threads: cores(),
    };
    build_index(&build, stop).map_err(|error| match error.downcast_ref() {
        Some(tokenizer::Error::NoSet { .. }) => BadInput(format!(
            "`model.longest_match` indexes shards that `train prepare` made, and {} holds none; llm.c's and nanoGPT's files \
             do not say whose ids they hold",
            build.set.display()
        ))
        .into(),
        _ => error.context("building the index of the training text, for `model.longest_match`"),
    })?;
    Indexes::open(config, data)
}

/// Builds an index and shows how far it is. Returns its manifest, and how many pieces of an earlier build were used again.
pub(crate) fn build_index(build: &IndexBuild, stop: &AtomicBool) -> anyhow::Result<(IndexManifest, u64)> {
    let mut bar = StepBar::new();
    let mut reused = 0;
    let manifest = build.run(stop, |IndexProgress { step, tokens, all, reused: pieces }| {
        reused = pieces;
        bar.set(name(step), tokens, all);
    });
    bar.clear();
    Ok((manifest?, reused))
}

/// Threads that an index is built with where nobody says.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn name(step: IndexStep) -> &'static str {
    match step {
        IndexStep::Sort => "sorting",
        IndexStep::Merge => "merging",
        IndexStep::Match => "matching",
    }
}
