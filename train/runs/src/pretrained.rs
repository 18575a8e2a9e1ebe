//! Weights that a new run begins with: those of another run, and its vocabulary.

use std::path::{Path, PathBuf};

use anyhow::Context;
use burn::tensor::backend::Backend;
use models::{Gpt, GptConfig};
use tokenizer::Tokenizer;

use crate::checkpoint::{CONFIG, TOKENIZER, Verified};
use crate::config::{Config, DataSource};
use crate::{BadInput, trained, weights};

/// Matrices with a row for each token have a multiple of these: the kernels of GPUs like it.
const ROWS: usize = 64;

/// A checkpoint that another run begins with.
#[derive(Debug)]
pub struct Pretrained {
    checkpoint: Verified,
    /// The run it was saved by, where it lies in one.
    run: Option<PathBuf>,
    /// Its model, as it was saved.
    model: GptConfig,
    tokenizer: Tokenizer,
    /// Control tokens that the new run's vocabulary has and this one had not.
    added: u32,
    /// Whether its indexes are left out, which the new vocabulary cannot read.
    forgets_indexes: bool,
}

/// Keys that the weights do not decide, although they are in a section that comes with the weights.
const FREE: [&str; 4] = ["model.compute", "model.longest_match", "model.match_pdrop", "tokenizer.chat"];

impl Pretrained {
    /// Finds the checkpoint at `path`, or the latest of the run there, and checks every byte of it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let (run, checkpoint) = trained::checkpoint(path, None)?;
        let tokenizer = Tokenizer::load(checkpoint.path.join(TOKENIZER))?;
        let saved = Config::load(&checkpoint.path.join(CONFIG).to_string_lossy(), &[])?;
        Ok(Self { checkpoint, run, model: saved.model, tokenizer, added: 0, forgets_indexes: false })
    }

    /// A name for runs that begin with it.
    pub fn name(&self) -> Option<String> {
        Some(self.run.as_ref()?.file_name()?.to_string_lossy().into_owned())
    }

    /// The configuration of a run in `run` that begins here: the named one, or else the one this was trained by, with
    /// this model and this vocabulary. Where the run is to learn conversations, the vocabulary gets what it lacks.
    pub fn describe(
        mut self,
        run: &Path,
        name: Option<&str>,
        set: &[String],
    ) -> anyhow::Result<(Self, Config)> {
        if let Some(fixed) = set.iter().find(|given| is_fixed(given)) {
            let path = self.checkpoint.path.display();
            return Err(BadInput(format!(
                "`--set {fixed}` cannot change what {path} was trained with: the model and the vocabulary come with the \
                 weights, but for `{}`",
                FREE.join("`, `")
            ))
            .into());
        }
        let saved = self.checkpoint.path.join(CONFIG).to_string_lossy().into_owned();
        let name = name.unwrap_or(&saved);
        let vocabulary = std::path::absolute(run.join(TOKENIZER))?;
        let given = [
            format!("model={}", self.model.to_value()),
            "tokenizer.kind=file".to_owned(),
            format!("tokenizer.path={}", serde_json::json!(vocabulary)),
        ];
        let mut config = Config::load(name, &[&given, set].concat())?;
        if self.model.longest_match && !config.model.longest_match {
            return Err(BadInput(format!(
                "{} was trained with `model.longest_match`, which cannot be taken from it; leave it true",
                self.checkpoint.path.display()
            ))
            .into());
        }
        // Shards were cut with the vocabulary that they name.
        if config.tokenizer.chat && config.data.source != DataSource::Shards {
            self = self.learn_to_converse()?;
        }
        if self.added > 0 && name == saved && !config.data.indexes.is_empty() {
            // They were made with a vocabulary that lacks what was added, and nobody has asked for them here.
            if !set.iter().any(|given| given.trim_start().starts_with("data.indexes")) {
                config.data.indexes.clear();
                self.forgets_indexes = true;
            }
        }
        let known = self.tokenizer.vocab_size() as usize;
        if known > config.model.vocab_size {
            config.model.vocab_size = known.next_multiple_of(ROWS);
        }
        Ok((self, config))
    }

    fn learn_to_converse(mut self) -> anyhow::Result<Self> {
        let known = self.tokenizer.vocab_size();
        self.tokenizer = self.tokenizer.with_chat().with_context(|| {
            format!(
                "adding control tokens to the vocabulary of {}; `--set tokenizer.chat=false` leaves it as it is",
                self.checkpoint.path.display()
            )
        })?;
        self.added = self.tokenizer.vocab_size() - known;
        Ok(self)
    }

    /// Puts the vocabulary where the run in `run` looks for it.
    pub fn save_vocabulary(&self, run: &Path) -> Result<(), tokenizer::Error> {
        self.tokenizer.save(run.join(TOKENIZER))
    }

    /// The weights as the model that `wanted` describes.
    pub fn weights<B: Backend>(&self, wanted: &GptConfig, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        let (path, step) = (self.checkpoint.path.display(), self.checkpoint.step);
        eprintln!("beginning with the weights of step {step} in {path}");
        if self.added > 0 {
            eprintln!(
                "added {} control tokens of conversations to its vocabulary; the model knows {} tokens instead of {}",
                self.added, wanted.vocab_size, self.model.vocab_size
            );
        }
        if self.forgets_indexes {
            eprintln!(
                "its `data.indexes` are left out: they were made without these tokens (`--set tokenizer.chat=false` keeps them)"
            );
        }
        let stored = GptConfig { compute: wanted.compute, ..self.model.clone() };
        let gpt = weights::load::<B>(&self.checkpoint.path, &stored, device)?;
        let gpt = gpt.with_vocabulary(wanted.vocab_size);
        if !wanted.longest_match {
            return Ok(gpt);
        }
        if !self.looks_up() {
            eprintln!("its model looks nothing up yet: what is found counts for nothing at first");
        }
        Ok(gpt.with_longest_match(wanted.match_pdrop))
    }

    /// Whether its model was trained with `longest_match`.
    pub fn looks_up(&self) -> bool {
        self.model.longest_match
    }

    /// The checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.checkpoint.path
    }
}

/// Whether `--set` names something that the weights decide.
fn is_fixed(given: &str) -> bool {
    let key = given.split_once('=').map_or(given, |(key, _)| key).trim();
    let section = key.split('.').next().unwrap_or(key);
    ["model", "tokenizer"].contains(&section) && !FREE.contains(&key)
}
