//! `train eval`: the validation loss of a checkpoint.

use std::path::PathBuf;

use backend_offload::Offloadable;
use serde_json::json;

use super::CheckpointArgs;
use crate::config::DataSource;
use crate::data::{Data, ValidationWindows};
use crate::device::{self, Place, Setup, Work};
use crate::interrupt;
use crate::run_directory::Trained;
use crate::training::{Learner, TokenBytes, evaluate, load_weights, quiz};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let trained = Trained::open(&args.checkpoint)?;
    let setup = Setup::from(&trained.config);
    device::with(args.checkpoint.device, &setup, Measuring { trained, json: args.json })
}

struct Measuring {
    trained: Trained,
    json: bool,
}

impl Work for Measuring {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, _place: &Place) -> anyhow::Result<()> {
        let Trained { config, checkpoint, tokenizer, run, .. } = self.trained;
        // Other data than the run learned from are cut into shards of their own, which nobody needs afterwards.
        let elsewhere = tempfile::tempdir()?;
        let folder: PathBuf =
            if self.trained.own_data { run.join("data") } else { elsewhere.path().to_owned() };
        let stop = interrupt::flag()?;
        let data = Data::of(tokenizer, &config, &folder, &stop)?;
        let windows = ValidationWindows::open(&config, &data, config.eval.sequences)?;
        let gpt = load_weights::<backend_offload::Offload<I>>(&checkpoint.path, &config.model, device)?;
        let learner = Learner::new(gpt, &config);
        let bytes = TokenBytes::of(&data.tokenizer);
        let evaluation = evaluate(&learner, &windows, &bytes, usize::MAX, |_| {})?;
        let asked = config.data.source == DataSource::Dialogues && config.eval.quiz > 0;
        let score = asked
            .then(|| quiz(&learner.gpt, &data.tokenizer, config.eval.quiz, config.eval.max_new_tokens))
            .transpose()?;
        if self.json {
            let mut record = json!(evaluation);
            record["step"] = json!(checkpoint.step);
            record["quiz"] = json!(score);
            println!("{record:#}");
            return Ok(());
        }
        println!("{} after step {}", checkpoint.path.display(), checkpoint.step);
        println!(
            "loss {:.4} | perplexity {:.3} over {} sequences",
            evaluation.loss, evaluation.perplexity, evaluation.sequences
        );
        if let Some(bits) = evaluation.bits_per_byte {
            println!("{bits:.4} bits per byte");
        }
        if let Some(score) = score {
            println!("{score}");
        }
        Ok(())
    }
}
