//! A checkpoint to work with: what it was trained by, and its words.

use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use models::Gpt;
use tokenizer::Tokenizer;

use crate::checkpoint::{Checkpoints, Verified, Which};
use crate::config::Config;
use crate::exit::BadInput;
use crate::run_directory::{is_checkpoint, latest, latest_named};
use crate::training::{CONFIG, TOKENIZER, load_weights};
use crate::verbs::{CheckpointArgs, ConfigArgs};

#[derive(Debug)]
pub(crate) struct Trained {
    /// Where the run's shards are, if this is its checkpoint and the configuration still names its data.
    pub(crate) data: Option<PathBuf>,
    pub(crate) checkpoint: Verified,
    pub(crate) config: Config,
    pub(crate) tokenizer: Tokenizer,
}

impl Trained {
    /// Finds what `args` name and checks every byte of it.
    pub(crate) fn open(args: &CheckpointArgs) -> anyhow::Result<Self> {
        let ConfigArgs { config: name, set } = &args.config;
        let path = args.from.clone().unwrap_or_else(|| latest_named(name.as_deref()));
        let which = if args.best { Some(Which::Best) } else { args.step.map(Which::Step) };
        let (run, checkpoint) = checkpoint(&path, which)?;
        let saved = checkpoint.path.join(CONFIG).to_string_lossy().into_owned();
        let learned = Config::load(&saved, &[])?;
        let mut config = match name {
            Some(name) if args.from.is_some() => Config::load(name, set)?,
            // The run that a name leads to is described by its own file.
            _ => Config::load(&saved, set)?,
        };
        config.resolve_paths()?;
        let tokenizer = Tokenizer::load(checkpoint.path.join(TOKENIZER))?;
        let same = config.data == learned.data && config.train.seed == learned.train.seed;
        let data = run.filter(|_| same).map(|run| run.join("data"));
        Ok(Self { data, checkpoint, config, tokenizer })
    }

    pub(crate) fn weights<B: Backend>(&self, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        load_weights(&self.checkpoint.path, &self.config.model, device)
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
