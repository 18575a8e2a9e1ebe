//! A checkpoint opened for use: configuration, vocabulary, weights.

use std::path::{Path, PathBuf};

use anyhow::Context;
use burn::tensor::backend::Backend;
use models::Gpt;
use models::weights::{Factors, PeftAdapters};
use tokenizer::{ChatFormat, Tokenizer};

use crate::BadInput;
use crate::checkpoint::{CONFIG, Checkpoints, TOKENIZER, Verified, Which};
use crate::config::{Config, DataSection, IndexEntry};
use crate::directory::{is_checkpoint, latest, latest_named};
use crate::{Indexes, lora, own_entry, text_of, weights};

/// Selects a checkpoint; by default the latest of the default configuration's last run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// A run directory or a checkpoint.
    pub from: Option<&'a Path>,
    /// One of the run's checkpoints; `None` is the latest.
    pub which: Option<Which>,
    /// With `from`, replaces the saved configuration; else names the run.
    pub config: Option<&'a str>,
    /// Configuration changes, each `section.key=value`.
    pub set: &'a [String],
    /// Adapters for its weights, in PEFT's layout.
    pub adapter: Option<&'a Path>,
}

/// A verified checkpoint with its configuration and tokenizer.
#[derive(Debug)]
pub struct Trained {
    /// The run's data folder, if data and seed are the same.
    pub data: Option<PathBuf>,
    /// Checkpoint folder and step.
    pub checkpoint: Verified,
    /// The requested configuration, or the trained one.
    pub config: Config,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    indexed: Vec<IndexEntry>,
    adapters: Option<PeftAdapters>,
}

impl Trained {
    /// Finds and verifies the checkpoint.
    pub fn open(wanted: Wanted<'_>) -> anyhow::Result<Self> {
        let Wanted { from, which, config: name, set, adapter } = wanted;
        let path = from.map_or_else(|| latest_named(name), Path::to_owned);
        let (run, checkpoint) = checkpoint(&path, which)?;
        let saved = text_of(&checkpoint.path.join(CONFIG))?.to_owned();
        let learned = Config::load(&saved, &[])?;
        let mut config = match name {
            Some(name) if from.is_some() => Config::load_for_inference(name, set)?,
            // A run found by name uses its saved configuration.
            _ => Config::load_for_inference(&saved, set)?,
        };

        if config.train.lora.is_none() && learned.train.lora.is_some() {
            // The adapters are the checkpoint's, with the form of weights beside which they learned.
            config.memory.base = learned.memory.base;
            config.train.lora.clone_from(&learned.train.lora);
            config.train.lora_base.clone_from(&learned.train.lora_base);
        }
        config.resolve_paths()?;
        let mut tokenizer = Tokenizer::load(checkpoint.path.join(TOKENIZER))?;
        if let Some(format) = config.tokenizer.template.filter(|_| config.tokenizer != learned.tokenizer) {
            tokenizer = with_format(tokenizer, format, config.model.vocab_size)?;
        }
        let text = |config: &Config| DataSection { indexes: Vec::new(), ..config.data.clone() };
        let same = text(&config) == text(&learned) && config.train.seed == learned.train.seed;
        let folder = run.map(|run| run.join("data"));
        let mut indexed = [&config, &learned].map(|config| config.data.indexes.clone()).concat();

        if let Some(folder) = &folder {
            // Configured shards may have moved.
            indexed.extend([&config, &learned].map(|config| own_entry(config, folder)));
        }
        let adapters = adapter.map(|folder| lora::peft(&config.model, folder)).transpose()?;
        Ok(Self { data: folder.filter(|_| same), checkpoint, config, tokenizer, indexed, adapters })
    }

    /// Opens the indexed texts (`longest_match`), or passes the reason to `warn`.
    pub fn indexes(&self, warn: impl FnOnce(&str)) -> Option<Indexes> {
        if !self.config.model.longest_match {
            return None;
        }
        Indexes::from_checkpoint(&self.checkpoint.path, &self.indexed)
            .map_err(|error| {
                warn(&format!(
                    "the model was trained to look its text up and goes without, as if nothing were found: {error:#}"
                ));
            })
            .ok()
    }

    /// Loads the weights to `device`, with any adapters added to them.
    pub fn weights<B: Backend>(&self, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        Ok(self.separate(device)?.merged())
    }

    /// Loads the weights to `device`, apart from any adapters.
    pub fn separate<B: Backend>(&self, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        let factors = Factors::Rounded(self.config.memory.base);
        let gpt = weights::load(&self.checkpoint.path, &self.config, factors, device)?;
        match &self.adapters {
            // A run's own adapters belong to the weights of given ones.
            Some(adapters) => Ok(adapters.load(gpt.merged().with_adapters(adapters.lora(), 0)?)?),
            None => Ok(gpt),
        }
    }

    /// Loads weights with matrices in the compute type, or packed as `memory.base` with given adapters beside them. A
    /// run's own adapters are merged, since each use of packed weights decodes them.
    pub fn for_inference<B: Backend>(&self, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        let Config { model, memory, train, .. } = &self.config;
        if memory.base.is_packed(model.compute) && train.lora.is_none() {
            let factors = Factors::Frozen(memory.base);
            let gpt = weights::load(&self.checkpoint.path, &self.config, factors, device)?;
            return match &self.adapters {
                Some(adapters) => Ok(adapters.load(gpt.with_adapters(adapters.lora(), 0)?)?),
                None => Ok(gpt),
            };
        }
        Ok(self.weights(device)?.narrowed())
    }
}

fn with_format(tokenizer: Tokenizer, format: ChatFormat, rows: usize) -> anyhow::Result<Tokenizer> {
    let known = tokenizer.vocab_size();
    let tokenizer = tokenizer.with_format(format).context("setting `tokenizer.template`")?;
    if tokenizer.vocab_size() == known && tokenizer.least_rows() as usize <= rows {
        return Ok(tokenizer);
    }
    let name = format.name();
    Err(BadInput(format!(
        "the model's vocabulary lacks control tokens of `tokenizer.template` = \"{name}\"; `train --from` adds them to a run \
         that learns them"
    ))
    .into())
}

/// Verifies the checkpoint `path`, or one of the run `path`, and returns its run.
pub(crate) fn checkpoint(path: &Path, which: Option<Which>) -> anyhow::Result<(Option<PathBuf>, Verified)> {
    if is_checkpoint(path) {
        return Ok((Checkpoints::run_of(path), Checkpoints::open(path)?));
    }
    let found = match which {
        Some(which) => Some(Checkpoints::in_run(path).find(which)?),
        None => latest(path)?,
    };
    let found = found.ok_or_else(|| {
        let path = path.display();
        BadInput(format!(
            "{path} holds no checkpoint; train one by `train --out {path}`, or name another by --from"
        ))
    })?;
    Ok((Some(path.to_owned()), found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_tokens_of_larger_models_do_not_rule_out_a_chat_format() {
        let controls = ["<bos>", "<start_of_turn>", "<end_of_turn>", "<image_soft_token>"];
        let formatted = |format, rows| with_format(Tokenizer::bytes(&controls), format, rows);
        assert_eq!(formatted(ChatFormat::Gemma, 259).expect("the model knows its tokens").vocab_size(), 260);
        for (format, rows) in [(ChatFormat::Gemma, 258), (ChatFormat::ChatMl, 300)] {
            let refused = formatted(format, rows).expect_err("it lacks a token").to_string();
            assert!(refused.contains("lacks control tokens"), "{refused}");
        }
    }
}
