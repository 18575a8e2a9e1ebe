//! A run's configuration: nine sections of one JSON file.
//!
//! Every key but the model's sizes has a default. The run directory keeps the complete configuration, which reproduces
//! a run with random first weights (`the_saved_configuration_alone_reproduces_the_run_bit_for_bit`). Reading is strict,
//! since an ignored misspelt key would cost hours. It reports all problems at once and opens no device, tokenizer or data
//! set.

mod amounts;
mod check;
mod continuity;
mod error;
mod groups;
#[cfg(test)]
mod hostile;
mod lora;
mod overrides;
mod presets;
mod ranks;
mod read;
#[cfg(test)]
mod reference;
mod round;
mod schema;
mod sections;
mod shard;
mod syntax;
#[cfg(test)]
mod tests;
mod together;
mod warm_up;

pub use amounts::{Amount, DiskPart, Meaning};
pub use check::MOST_NEW_TOKENS;
pub use continuity::{Change, Changes};
pub use error::ConfigError;
pub use groups::GroupSection;
pub use lora::LoraBase;
pub use presets::presets;
pub use ranks::{ChangesKind, ExchangeKind, RanksSection};
pub use round::Round;
pub use sections::*;
pub use shard::ShardKind;
pub use together::Together;
pub use warm_up::WarmUp;

use std::path::Path;

use durable::regular;
use error::Problems;
use models::GptConfig;
use overrides::Overrides;
use schemars::JsonSchema;
use serde::Serialize;

const MAX_BYTES: u64 = 4 << 20;

/// A run's configuration.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Config {
    /// The network's shape.
    pub model: GptConfig,
    /// The vocabulary.
    pub tokenizer: TokenizerSection,
    /// The text.
    pub data: DataSection,
    /// Steps, batches, optimizer, schedule.
    pub train: TrainSection,
    /// Evaluations and samples.
    pub eval: EvalSection,
    /// Checkpoints to keep.
    pub checkpoint: CheckpointSection,
    /// Budgets.
    pub memory: MemorySection,
    /// The exchange between processes.
    pub ranks: RanksSection,
    /// Files for other programs.
    pub report: ReportSection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Training,
    Inference,
}

impl Config {
    /// Reads the file `name`, else the preset `name` (with or without `.json`), and applies `set`
    /// (`section.key=value`).
    pub fn load(name: &str, set: &[String]) -> Result<Self, ConfigError> {
        Self::find(name, set, Purpose::Training)
    }

    /// As [`Config::load`], for weights that no longer learn: `memory.base` then packs them without adapters, too.
    pub fn load_for_inference(name: &str, set: &[String]) -> Result<Self, ConfigError> {
        Self::find(name, set, Purpose::Inference)
    }

    fn find(name: &str, set: &[String], purpose: Purpose) -> Result<Self, ConfigError> {
        let path = Path::new(name);
        if path.exists() && !path.is_dir() {
            let text = regular::read_text(path, MAX_BYTES)
                .map_err(|unread| ConfigError::Unreadable { path: path.to_owned(), source: unread.into() })?;
            return Self::read(&text, name, set, purpose);
        }
        let file = format!("{}.json", name.trim_end_matches(".json"));
        match presets().find(|(preset, _)| *preset == file) {
            Some((_, text)) => Self::read(text, &format!("preset {file}"), set, purpose),
            None => Err(ConfigError::Unknown { name: name.to_owned() }),
        }
    }

    /// Reads `text`, called `origin` in errors.
    pub fn from_text(text: &str, origin: &str, set: &[String]) -> Result<Self, ConfigError> {
        Self::read(text, origin, set, Purpose::Training)
    }

    fn read(text: &str, origin: &str, set: &[String], purpose: Purpose) -> Result<Self, ConfigError> {
        let mut tree = syntax::parse(text)
            .map_err(|source| ConfigError::Syntax { origin: origin.to_owned(), source })?;
        let mut problems = Problems::default();
        let overrides = Overrides::apply(set, &mut tree, &mut problems);
        let config = read::config(tree, &overrides, &mut problems);
        problems.add_combinations(check::combinations(&config, purpose));
        problems.none_or(origin).map(|()| config.with_length())
    }

    fn with_length(mut self) -> Self {
        if let Some(tokens) = self.train.tokens {
            self.train.steps = tokens.div_ceil(self.tokens_per_step()).max(1);
        }
        self
    }

    /// Derives `train.steps` from `train.epochs` over `sequences`.
    pub fn set_sequences(&mut self, sequences: u64) {
        if let Some(epochs) = self.train.epochs {
            let per_step = (self.train.micro_batch * self.train.accumulate) as f64;
            let most = u64::MAX / self.tokens_per_step();
            self.train.steps = ((epochs * sequences as f64 / per_step).ceil() as u64).clamp(1, most);
        }
    }

    /// Complete JSON, which reads back equal.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers, texts and lists always serialise") + "\n"
    }

    /// Whether the rare exchange or adapters rule out an optimizer on the host.
    pub fn needs_device_optimizer(&self) -> bool {
        self.ranks.exchange == ExchangeKind::Rarely || self.train.lora.is_some()
    }

    /// Tokens per sequence.
    pub fn sequence(&self) -> usize {
        self.train.sequence.unwrap_or(self.model.n_positions)
    }

    /// Quiz questions; 0 without the embedded corpus.
    pub fn quiz(&self) -> usize {
        if self.data.source == DataSource::Dialogues { self.eval.quiz } else { 0 }
    }

    /// Tokens per optimizer step.
    pub fn tokens_per_step(&self) -> u64 {
        (self.train.micro_batch * self.train.accumulate * self.sequence()) as u64
    }
}
