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
    device::with(args.checkpoint.device, &setup, Evaluating { trained, json: args.json })
}

struct Evaluating {
    trained: Trained,
    json: bool,
}

impl Work for Evaluating {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, _place: &Place) -> anyhow::Result<()> {
        let gpt = self.trained.for_inference::<Offload<I>>(device)?;
        // Data other than the run's own is cut into temporary shards.
        let temporary = tempfile::tempdir()?;
        let indexes = self.trained.indexes(|warning| eprintln!("{warning}"));
        let Trained { data, checkpoint, config, tokenizer, .. } = self.trained;
        let folder = data.unwrap_or_else(|| temporary.path().to_owned());
        // Never set: the first signal ends the process.
        let never = AtomicBool::new(false);
        let data = Data { indexes, ..Data::new(tokenizer, &config, &folder, &never)? };
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
