//! Builds an index of longest matches.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use backend_offload::available_host_memory;
use runs::config::{Config, IndexEntry};
use runs::{BadInput, Indexes, own_entry};
use tokenizer::{IndexBuild, IndexManifest, IndexProgress, IndexStep, Split, TokenDataset, Tokenizer};

use super::corpus::Data;
use crate::progress::StepBar;

const MEMORY: u64 = 1 << 30;

/// Bytes for the build on a host with `free` bytes; they change no byte of the index.
fn memory(free: Option<u64>) -> u64 {
    free.map_or(MEMORY, |free| (free / 4).min(MEMORY))
}

pub(super) fn check_listed(config: &Config, tokenizer: &Tokenizer) -> anyhow::Result<()> {
    if config.data.indexes.is_empty() {
        return Ok(());
    }
    let listed = Indexes::open(&config.data.indexes)?;
    let made_with = listed.corpora().indexes()[0].manifest().tokenizer.sha256;
    if made_with != tokenizer.fingerprint() {
        return Err(BadInput(format!(
            "`data.indexes` were made with the tokenizer {made_with}, and this run has {}; prepare and index their texts \
             with this run's, or leave them out",
            tokenizer.fingerprint()
        ))
        .into());
    }
    Ok(())
}

/// The listed indexes, and the run's own unless listed, built if missing.
pub(super) fn indexes(
    data: &Data,
    config: &Config,
    folder: &Path,
    stop: &AtomicBool,
) -> anyhow::Result<Indexes> {
    let mut entries = config.data.indexes.clone();
    let digest = |split| {
        let plan = Data::windows(config, false);
        TokenDataset::open(data.shards(), split, &data.tokenizer, plan)?.fingerprint()
    };

    let listed = (!entries.is_empty()).then(|| Indexes::open(&entries)).transpose()?;
    let is_listed = |split| -> anyhow::Result<bool> {
        Ok(match &listed {
            Some(listed) => listed.have(digest(split)?),
            None => false,
        })
    };

    if is_listed(Split::Val)? {
        return Err(BadInput(
            "`data.indexes` lists the very text that the run is measured with; leave it out".to_owned(),
        )
        .into());
    }

    if !is_listed(Split::Train)? {
        let own = own_entry(config, folder);
        build_own(&own, stop)?;
        entries.push(own);
    }
    Ok(Indexes::open(&entries)?)
}

fn build_own(own: &IndexEntry, stop: &AtomicBool) -> anyhow::Result<()> {
    let build = IndexBuild {
        set: own.set.clone(),
        split: Split::Train,
        out: own.index.clone(),
        memory: memory(available_host_memory()),
        chunk_tokens: None,
        threads: cores(),
    };
    build_index(&build, stop).map(drop).map_err(|error| match error.downcast_ref() {
        Some(tokenizer::Error::NoSet { .. }) => BadInput(format!(
            "`model.longest_match` indexes shards that `train prepare` made, and {} holds none; llm.c's and nanoGPT's files \
             do not say whose ids they hold",
            own.set.display()
        ))
        .into(),
        _ => error.context("building the index of the training text, for `model.longest_match`"),
    })
}

/// Also returns the number of reused pieces.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_built_in_a_quarter_of_free_memory_and_a_gibibyte_at_most() {
        assert_eq!([None, Some(64 << 30), Some(4 << 30)].map(memory), [MEMORY; 3]);
        assert_eq!(memory(Some(400 << 20)), 100 << 20);
    }
}
