//! `train import`: a run that begins with published weights.

use std::path::PathBuf;

use backend_offload::{Offload, Offloadable};
use burn::module::Module;
use models::{GptConfig, weights};
use tokenizer::Tokenizer;

use super::ConfigArgs;
use crate::checkpoint::Checkpoints;
use crate::config::{Config, TokenizerKind};
use crate::device::{self, DeviceChoice, Place, Setup, Work};
use crate::exit::BadInput;
use crate::optimizer::Optimizer;
use crate::run_directory::{DEFAULT, RunDirectory};
use crate::training::{self, Progress};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder as Hugging Face publishes it: config.json, safetensors, tokenizer.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The run's directory; training goes on there by `--resume DIR`.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A tokenizer's folder, where the published folder has none.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.out.join(training::CONFIG).exists() {
        let out = args.out.display();
        return Err(BadInput(format!("{out} holds a run; choose another --out")).into());
    }
    device::with(DeviceChoice::Cpu, &Setup::unlimited(), Importing { args })
}

struct Importing<'a> {
    args: &'a Args,
}

impl Work for Importing<'_> {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, _place: &Place) -> anyhow::Result<()> {
        let args = self.args;
        let source = args.tokenizer.as_ref().unwrap_or(&args.from);
        let tokenizer = Tokenizer::load(source)?;
        let gpt = weights::load_pretrained::<Offload<I>>(&args.from, device)?;
        let config = described(args, gpt.config(), source)?;

        let directory = RunDirectory { path: args.out.clone(), config: config.clone(), from: None };
        directory.begin()?;
        tokenizer.save(args.out.join(training::TOKENIZER))?;
        let optimizer = Optimizer::<Offload<I>>::new(&config.train);
        let progress = Progress::start(config.train.seed);
        let bytes = models::Footprint::of(&config.model)?.weight_bytes();
        Checkpoints::in_run(&args.out).save(0, bytes, |folder| {
            training::save(folder, &gpt, &optimizer, &config, &progress, &tokenizer)
        })?;
        println!(
            "{}: {} parameters; go on by `train --resume {} --set data.path=…`",
            args.out.display(),
            gpt.num_params(),
            args.out.display()
        );
        Ok(())
    }
}

/// The named configuration with the published model and tokenizer in place of its own.
fn described(args: &Args, model: &GptConfig, tokenizer: &std::path::Path) -> anyhow::Result<Config> {
    let name = args.config.config.as_deref().unwrap_or(DEFAULT);
    let mut config = Config::load(name, &args.config.set)?;
    config.model = model.clone();
    config.tokenizer.kind = TokenizerKind::File;
    config.tokenizer.path = Some(tokenizer.to_owned());
    config.train.sequence = Some(config.sequence().min(model.n_positions));
    // Read once more, so that what does not fit the published model is said here and not at the first run.
    Ok(Config::from_text(&config.to_json(), name, &[])?)
}
