//! A checkpoint opened for use: configuration, vocabulary and weights.

use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use models::Gpt;
use tokenizer::Tokenizer;

use crate::BadInput;
use crate::checkpoint::{CONFIG, Checkpoints, TOKENIZER, Verified, Which};
use crate::config::{Config, DataSection, IndexEntry};
use crate::directory::{is_checkpoint, latest, latest_named};
use crate::weights;
use crate::{Indexes, own_entry};

/// Selects a checkpoint; by default the latest of the last run with the default configuration.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// A run's directory or a checkpoint.
    pub from: Option<&'a Path>,
    /// One of a run's checkpoints; `None` is the latest.
    pub which: Option<Which>,
    /// With `from`, a configuration that replaces the saved one; without it, the name of the run.
    pub config: Option<&'a str>,
    /// Changes to the configuration, each `section.key=value`.
    pub set: &'a [String],
}

/// A verified checkpoint with its configuration and tokenizer.
#[derive(Debug)]
pub struct Trained {
    /// Data folder of its run, if the configuration has the same data and seed.
    pub data: Option<PathBuf>,
    /// Folder and step of the checkpoint.
    pub checkpoint: Verified,
    /// The requested configuration, or the one it was trained with.
    pub config: Config,
    /// The tokenizer it was trained with.
    pub tokenizer: Tokenizer,
    /// Candidates for the indexes it was trained with.
    indexed: Vec<IndexEntry>,
}

impl Trained {
    /// Finds the checkpoint and verifies all its bytes.
    pub fn open(wanted: Wanted<'_>) -> anyhow::Result<Self> {
        let Wanted { from, which, config: name, set } = wanted;
        let path = from.map_or_else(|| latest_named(name), Path::to_owned);
        let (run, checkpoint) = checkpoint(&path, which)?;
        let saved = checkpoint.path.join(CONFIG).to_string_lossy().into_owned();
        let learned = Config::load(&saved, &[])?;
        let mut config = match name {
            Some(name) if from.is_some() => Config::load(name, set)?,
            // A run found by its name uses its saved configuration.
            _ => Config::load(&saved, set)?,
        };

        config.resolve_paths()?;
        let tokenizer = Tokenizer::load(checkpoint.path.join(TOKENIZER))?;
        let text = |config: &Config| DataSection { indexes: Vec::new(), ..config.data.clone() };
        let same = text(&config) == text(&learned) && config.train.seed == learned.train.seed;
        let folder = run.map(|run| run.join("data"));
        let mut indexed = [&config, &learned].map(|config| config.data.indexes.clone()).concat();

        if let Some(folder) = &folder {
            // Configured shards may have moved since the training.
            indexed.extend([&config, &learned].map(|config| own_entry(config, folder)));
        }
        Ok(Self { data: folder.filter(|_| same), checkpoint, config, tokenizer, indexed })
    }

    /// Opens the indexed texts of a model with `longest_match`. If one is missing, passes the reason to `warn`.
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

    /// Loads the weights to `device`.
    pub fn weights<B: Backend>(&self, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        weights::load(&self.checkpoint.path, &self.config.model, device)
    }

    /// Loads the weights to `device` for inference, with matrices in the compute type.
    pub fn for_inference<B: Backend>(&self, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        Ok(self.weights(device)?.narrowed())
    }
}

/// Finds and verifies the checkpoint at `path`, or one of the run at `path`. Also returns its run.
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
