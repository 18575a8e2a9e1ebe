//! Weights and vocabulary that a new run takes from another.

use std::path::{Path, PathBuf};

use anyhow::Context;
use burn::tensor::backend::Backend;
use models::weights::{Factors, PeftAdapters};
use models::{Gpt, GptConfig};
use tokenizer::{Fingerprint, Tokenizer};

use crate::checkpoint::{CONFIG, TOKENIZER, Verified};
use crate::config::{Config, DataSource, LoraBase};
use crate::{BadInput, lora, text_of, trained, tuning, weights};

/// GPU kernels prefer multiples.
const ROWS: usize = 64;

/// A checkpoint from which another run starts.
#[derive(Debug)]
pub struct Pretrained {
    checkpoint: Verified,
    run: Option<PathBuf>,
    saved: Config,
    tokenizer: Tokenizer,
    adapters: Option<PeftAdapters>,
    added: u32,
    drops_indexes: bool,
    defaults: Option<String>,
}

/// Not determined by the weights.
const CHANGEABLE_KEYS: [&str; 5] =
    ["model.compute", "model.longest_match", "model.match_pdrop", "tokenizer.chat", "tokenizer.template"];

impl Pretrained {
    /// Verifies the checkpoint `path`, or the latest of the run `path`.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let (run, checkpoint) = trained::checkpoint(path, None)?;
        let tokenizer = Tokenizer::load(checkpoint.path.join(TOKENIZER))?;
        let saved = Config::load(text_of(&checkpoint.path.join(CONFIG))?, &[])?;
        let (adapters, added, drops_indexes, defaults) = (None, 0, false, None);
        Ok(Self { checkpoint, run, saved, tokenizer, adapters, added, drops_indexes, defaults })
    }

    /// Lets the adapters in `folder`, in PEFT's layout, learn on.
    pub fn beside(mut self, folder: Option<&Path>) -> anyhow::Result<Self> {
        self.adapters = folder.map(|folder| lora::peft(&self.saved.model, folder)).transpose()?;
        Ok(self)
    }

    /// Its run's name, a new run's default.
    pub fn name(&self) -> Option<String> {
        Some(self.run.as_ref()?.file_name()?.to_string_lossy().into_owned())
    }

    /// Configures a new run in `run`: by `name`, or as this checkpoint with a schedule for tuning, always with its
    /// model and vocabulary. Adds missing chat control tokens.
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
                CHANGEABLE_KEYS.join("`, `")
            ))
            .into());
        }

        let saved = self.checkpoint.path.join(CONFIG).to_string_lossy().into_owned();
        let vocabulary = std::path::absolute(run.join(TOKENIZER))?;
        let mut given = vec![
            format!("model={}", self.saved.model.to_value()),
            "tokenizer.kind=file".to_owned(),
            format!("tokenizer.path={}", serde_json::json!(text_of(&vocabulary)?)),
        ];
        let lora =
            self.adapters.iter().map(|adapters| format!("train.lora={}", serde_json::json!(adapters.lora())));
        let set = &lora.chain(set.iter().cloned()).collect::<Vec<_>>()[..];
        if name.is_none() {
            let defaults = tuning::defaults(&self.saved.model, set)?;
            self.defaults = Some(tuning::described(&defaults));
            given.extend(defaults);
        }
        let name = name.unwrap_or(&saved);

        let mut config = Config::load(name, &[&given[..], set].concat())?;
        if self.looks_up() && !config.model.longest_match {
            return Err(BadInput(format!(
                "{} was trained with `model.longest_match`, which cannot be taken from it; leave it true",
                self.checkpoint.path.display()
            ))
            .into());
        }

        self.freeze(&mut config)?;

        if let Some(format) = config.tokenizer.template {
            let known = self.tokenizer.vocab_size();
            self.tokenizer = self.tokenizer.with_format(format).context("setting `tokenizer.template`")?;
            self.added = self.tokenizer.vocab_size() - known;
        }
        // Shards have a fixed vocabulary.
        if config.tokenizer.chat && config.data.source != DataSource::Shards {
            self = self.add_chat_tokens()?;
        }
        if self.added > 0 && name == saved && !config.data.indexes.is_empty() {
            // `--set` may give indexes.
            if !set.iter().any(|given| given.trim_start().starts_with("data.indexes")) {
                config.data.indexes.clear();
                self.drops_indexes = true;
            }
        }

        let known = self.tokenizer.vocab_size() as usize;
        if known > config.model.vocab_size {
            config.model.vocab_size = known.next_multiple_of(ROWS);
        }
        Ok((self, config))
    }

    /// Names this checkpoint as the weights under a run's adapters.
    fn freeze(&self, config: &mut Config) -> anyhow::Result<()> {
        config.train.lora_base = None;
        if config.train.lora.is_none() {
            return Ok(());
        }
        if config.model.longest_match && !self.looks_up() {
            let text = "`model.longest_match` = true adds a table to the model, and `train.lora` would freeze it at zero; set \
                        one of them to false or null";
            return Err(BadInput(text.to_owned()).into());
        }
        let path = std::path::absolute(&self.checkpoint.path)?;
        let sha256 = self.digest().context("the checkpoint to tune holds no weights")?;
        config.train.lora_base = Some(LoraBase { path, sha256 });
        Ok(())
    }

    fn add_chat_tokens(mut self) -> anyhow::Result<Self> {
        let known = self.tokenizer.vocab_size();
        self.tokenizer = self.tokenizer.with_chat().with_context(|| {
            format!(
                "adding control tokens to the vocabulary of {}; `--set tokenizer.chat=false` leaves it as it is",
                self.checkpoint.path.display()
            )
        })?;
        self.added += self.tokenizer.vocab_size() - known;
        Ok(self)
    }

    /// Saves the vocabulary in `run`.
    pub fn save_vocabulary(&self, run: &Path) -> Result<(), tokenizer::Error> {
        self.tokenizer.save(run.join(TOKENIZER))
    }

    /// Announces and loads the weights for the vocabulary and lookup of `wanted`, with fresh adapters if it has any.
    pub fn weights<B: Backend>(&self, wanted: &Config, device: &B::Device) -> anyhow::Result<Gpt<B>> {
        self.announce(wanted);
        let Some(lora) = &wanted.train.lora else { return self.load(&wanted.model, Factors::Wide, device) };
        let gpt = self.load(&wanted.model, Factors::Frozen(wanted.memory.base), device)?;
        let gpt = gpt.with_adapters(lora, wanted.train.seed)?;
        Ok(match &self.adapters {
            Some(adapters) => adapters.load(gpt)?,
            None => gpt,
        })
    }

    fn announce(&self, Config { model: wanted, train, .. }: &Config) {
        let (path, step) = (self.checkpoint.path.display(), self.checkpoint.step);
        eprintln!("beginning with the weights of step {step} in {path}");
        if let Some(defaults) = &self.defaults {
            eprintln!("{defaults}");
        }
        if self.added > 0 {
            eprintln!(
                "added {} control tokens of conversations to its vocabulary; the model knows {} tokens instead of {}",
                self.added, wanted.vocab_size, self.saved.model.vocab_size
            );
            if train.lora.is_some() {
                eprintln!("their embeddings stay at the mean of the others: `train.lora` tunes no embedding");
            }
            let frozen = [("wte", "embeddings", "embedding"), ("lm_head", "rows of the head", "head")];
            for (_, rows, group) in frozen.into_iter().filter(|(matrix, ..)| train.freezes(matrix)) {
                eprintln!("their {rows} stay at the mean of the others: `train.freeze` has `{group}`");
            }
        }

        if self.drops_indexes {
            eprintln!(
                "its `data.indexes` are left out: they were made without these tokens (`--set tokenizer.chat=false` keeps them)"
            );
        }
        if wanted.longest_match && !self.looks_up() {
            eprintln!("its model looks nothing up yet: what is found counts for nothing at first");
        }
    }

    /// A table that grows is loaded wide, and all of a model whose adapters are merged.
    pub(crate) fn load<B: Backend>(
        &self,
        wanted: &GptConfig,
        factors: Factors,
        device: &B::Device,
    ) -> anyhow::Result<Gpt<B>> {
        let mut stored = self.saved.clone();
        stored.model.compute = wanted.compute;
        let tokens = self.tokenizer.vocab_size() as usize;
        let known = (tokens - self.added as usize).min(stored.model.vocab_size);
        let is_final = known == tokens && stored.model == *wanted && stored.train.lora.is_none();
        let path = &self.checkpoint.path;
        if is_final {
            return weights::load(path, &stored, factors, device);
        }
        let gpt = match factors {
            Factors::Frozen(base) if stored.train.lora.is_none() => {
                weights::load::<B>(path, &stored, Factors::FrozenBlocks(base), device)?
            }
            _ => weights::load::<B>(path, &stored, Factors::Wide, device)?.merged(),
        };
        let gpt = gpt.with_vocabulary(known..tokens, wanted.vocab_size);
        let gpt = if wanted.longest_match { gpt.with_longest_match(wanted.match_pdrop) } else { gpt };
        Ok(factors.apply(gpt))
    }

    pub(crate) fn knowing(mut self, tokenizer: Tokenizer) -> Self {
        self.added = tokenizer.vocab_size().saturating_sub(self.tokenizer.vocab_size());
        self.tokenizer = tokenizer;
        self
    }

    pub(crate) fn digest(&self) -> Option<Fingerprint> {
        self.checkpoint.weights
    }

    /// Whether the model has `longest_match`.
    pub fn looks_up(&self) -> bool {
        self.saved.model.longest_match
    }

    /// The checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.checkpoint.path
    }
}

fn is_fixed(given: &str) -> bool {
    let key = given.split_once('=').map_or(given, |(key, _)| key).trim();
    let section = key.split('.').next().unwrap_or(key);
    ["model", "tokenizer"].contains(&section) && !CHANGEABLE_KEYS.contains(&key)
}
