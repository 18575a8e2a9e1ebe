//! A checkpoint opened for use: its configuration, its vocabulary and its weights.

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

/// Which checkpoint is asked for. Without anything it is the latest of the last run called as the default configuration.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// A run's directory or a checkpoint.
    pub from: Option<&'a Path>,
    /// One of a run's checkpoints; `None` is the latest.
    pub which: Option<Which>,
    /// A configuration to take in place of the saved one, or, without `from`, the name of the run.
    pub config: Option<&'a str>,
    /// Changes to the configuration, each `section.key=value`.
    pub set: &'a [String],
}

/// A checkpoint whose every byte was checked, with the configuration and the tokenizer it was trained with.

#[derive(Debug)]
pub struct Trained {
    /// Where the run's shards are, if this is its checkpoint and the configuration still names its data.
    pub data: Option<PathBuf>,
    /// The checkpoint's folder and step.
    pub checkpoint: Verified,
    /// The configuration asked for, or the one it was trained with.
    pub config: Config,
    /// The tokenizer it was trained with.
    pub tokenizer: Tokenizer,
    /// Where indexes of what it looks up may lie.
    indexed: Vec<IndexEntry>,
}

impl Trained {
    /// Finds the checkpoint and checks every byte of it.
    pub fn open(wanted: Wanted<'_>) -> anyhow::Result<Self> {
        let Wanted { from, which, config: name, set } = wanted;
        let path = from.map_or_else(|| latest_named(name), Path::to_owned);
        let (run, checkpoint) = checkpoint(&path, which)?;
        let saved = checkpoint.path.join(CONFIG).to_string_lossy().into_owned();
        let learned = Config::load(&saved, &[])?;
        let mut config = match name {
            Some(name) if from.is_some() => Config::load(name, set)?,
            // The run that a name leads to is described by its own file.
            _ => Config::load(&saved, set)?,
        };
        config.resolve_paths()?;
        let tokenizer = Tokenizer::load(checkpoint.path.join(TOKENIZER))?;
        let text = |config: &Config| DataSection { indexes: Vec::new(), ..config.data.clone() };
        let same = text(&config) == text(&learned) && config.train.seed == learned.train.seed;
        let folder = run.map(|run| run.join("data"));
        let mut indexed = [&config, &learned].map(|config| config.data.indexes.clone()).concat();
        if let Some(folder) = &folder {
            // The shards of a run that names its own may lie elsewhere now.
            indexed.extend([&config, &learned].map(|config| own_entry(config, folder)));
        }
        Ok(Self { data: folder.filter(|_| same), checkpoint, config, tokenizer, indexed })
    }

    /// The texts that the model looks its own up in. Where they are not those of its training, `tell` hears why, and that
    /// the model does without.
    pub fn indexes(&self, tell: impl FnOnce(&str)) -> Option<Indexes> {
        if !self.config.model.longest_match {
            return None;
        }
        Indexes::of_checkpoint(&self.checkpoint.path, &self.indexed)
            .map_err(|error| {
                tell(&format!(
                    "the model was trained to look its text up and goes without, as if nothing were found: {error:#}"
                ));
            })
            .ok()
    }

    /// The weights on `device`.
    pub fn weights<B: Backend>(&self, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        weights::load(&self.checkpoint.path, &self.config.model, device)
    }

    /// The weights on `device` as inference uses them: matrices in the type their products are computed in.
    pub fn for_inference<B: Backend>(&self, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        Ok(self.weights(device)?.narrowed())
    }
}

/// The checkpoint at `path`, or that of the run there, by default its latest; every byte of it checked. Beside it the
/// run that it lies in.
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
