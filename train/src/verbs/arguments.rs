//! Arguments that several verbs share.

use std::path::PathBuf;

use burn::tensor::backend::Backend;
use clap::builder::RangedU64ValueParser;
use models::{Gpt, Lookup, Sampling};
use runs::checkpoint::Which;
use runs::config::MOST_NEW_TOKENS;
use runs::device::DeviceChoice;
use runs::{TextGenerator, Trained, Wanted};
use tokenizer::Tokenizer;

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// A JSON file, or a preset: toy, shakespeare-char, gpt-124m, gpt-350m, gpt-1.5b, gpt-7b, llama-14b, llama-18b,
    /// llama-32b. By default `toy`, or the run's own configuration.
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) config: Option<String>,
    /// Sets one value of the configuration; may be repeated.
    #[arg(long, value_name = "section.key=value")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// A run's directory, whose latest checkpoint is taken, or a checkpoint. By default the last run of the
    /// configuration's name in `runs/`.
    #[arg(long, value_name = "PATH")]
    pub(crate) from: Option<PathBuf>,
    /// The checkpoint with the lowest validation loss instead of the latest.
    #[arg(long, conflicts_with = "step")]
    pub(crate) best: bool,
    /// The checkpoint of this step instead of the latest.
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// A folder of low-rank adapters in PEFT's layout, which are added to the weights.
    #[arg(long, value_name = "DIR")]
    pub(crate) adapter: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// auto, cuda, cuda:N, vulkan or cpu.
    #[arg(long, default_value_t)]
    pub(crate) device: DeviceChoice,
}

impl CheckpointArgs {
    pub(crate) fn open(&self) -> anyhow::Result<Trained> {
        let ConfigArgs { config, set } = &self.config;
        let which = if self.best { Some(Which::Best) } else { self.step.map(Which::Step) };
        let (from, config, adapter) = (self.from.as_deref(), config.as_deref(), self.adapter.as_deref());
        Trained::open(Wanted { from, which, config, set, adapter })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct SamplingArgs {
    /// Divides the logits; 0 always takes the likeliest token.
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Choose among the `k` likeliest tokens only.
    #[arg(long)]
    top_k: Option<usize>,
    /// Choose among the likeliest tokens that together reach this probability.
    #[arg(long)]
    top_p: Option<f64>,
    /// Choose among tokens at least this likely relative to the likeliest.
    #[arg(long)]
    min_p: Option<f64>,
    /// Makes tokens that occurred less likely.
    #[arg(long)]
    repetition_penalty: Option<f64>,
    /// Fixes the random choices.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Stop string: the text ends before it; may be repeated.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// New tokens at most.
    #[arg(long, default_value_t = 128, value_parser = RangedU64ValueParser::<usize>::new().range(..=MOST_NEW_TOKENS))]
    max_new_tokens: usize,
}

impl SamplingArgs {
    pub(crate) fn generator<'a, B: Backend>(
        &'a self,
        gpt: &'a Gpt<B>,
        tokenizer: &'a Tokenizer,
        lookup: Option<&'a dyn Lookup>,
    ) -> TextGenerator<'a, B> {
        let (sampling, max_new_tokens) = (self.sampling(), self.max_new_tokens);
        TextGenerator { gpt, tokenizer, sampling, max_new_tokens, stop: &self.stop, lookup }
    }

    fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        }
    }
}
