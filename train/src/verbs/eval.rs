//! `train eval`: the validation loss of a checkpoint.

use std::sync::atomic::AtomicBool;

use backend_offload::{Offload, Offloadable};
use runs::Trained;
use runs::device::{self, Place, Setup, Work};
use serde_json::json;

use super::CheckpointArgs;
use crate::data::{Data, ValidationWindows};
use crate::training::{Learner, evaluate, quiz};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let trained = args.checkpoint.open()?;
    let setup = Setup::from(&trained.config).without_disk();
    device::with(args.checkpoint.device, &setup, Measuring { trained, json: args.json })
}

struct Measuring {
    trained: Trained,
    json: bool,
}

impl Work for Measuring {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, _place: &Place) -> anyhow::Result<()> {
        let gpt = self.trained.for_inference::<Offload<I>>(device)?;
        // Other data than the run learned from are cut into shards of their own, which nobody needs afterwards.
        let elsewhere = tempfile::tempdir()?;
        let indexes = self.trained.indexes(|told| eprintln!("{told}"));
        let Trained { data, checkpoint, config, tokenizer, .. } = self.trained;
        let folder = data.unwrap_or_else(|| elsewhere.path().to_owned());
        // The first signal ends it: it leaves nothing that a second one would spoil.
        let never = AtomicBool::new(false);
        let data = Data { indexes, ..Data::of(tokenizer, &config, &folder, &never)? };
        let looked_up = data.indexes.as_ref();
        let windows = ValidationWindows::open(&config, &data, looked_up, config.eval.sequences, &never)?;
        let learner = Learner::new(gpt, &config);
        let evaluation = evaluate(&learner, &windows, &data.tokenizer, usize::MAX, |_| {})?;
        let score = (config.quiz() > 0)
            .then(|| quiz(&learner.gpt, &data, config.quiz(), config.eval.max_new_tokens))
            .transpose()?;
        if self.json {
            let mut record = json!(evaluation);
            record["step"] = json!(checkpoint.step);
            record["quiz"] = json!(score);
            if config.model.longest_match {
                record["looked_up"] = json!(data.indexes.is_some());
            }
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
        if let Some(fresh) = evaluation.without_copies {
            println!("{fresh}");
        }
        if let Some(score) = score {
            println!("{score}");
        }
        Ok(())
    }
}
