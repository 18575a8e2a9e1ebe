//! `train eval`: the loss of a checkpoint on its validation data or on any text, and its choices among answers.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use backend_offload::{Offload, Offloadable};
use models::WholeReader;
use runs::Trained;
use runs::config::AlignKind;
use runs::device::{self, Place, Setup, Work};
use serde_json::json;

use super::CheckpointArgs;
use crate::choices::{self, Task};
use crate::data::{Data, ValidationWindows};
use crate::training::{Learner, evaluate, quiz};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Measure all of this text, folder or prepared set instead of the run's validation data. Each target counts once.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Count right answers to multiple-choice questions: JSON lines with `context`, `choices` and `answer`, the number
    /// of the right choice from 0.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    choices: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let task = args.choices.as_deref().map(Task::read).transpose()?;
    let trained = args.checkpoint.open()?;
    let setup = Setup::from(&trained.config).without_disk();
    device::with(args.checkpoint.device, &setup, Evaluating { args, trained, task })
}

struct Evaluating<'a> {
    args: &'a Args,
    trained: Trained,
    task: Option<Task>,
}

impl Work for Evaluating<'_> {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, _place: &Place) -> anyhow::Result<()> {
        let gpt = self.trained.for_inference::<Offload<I>>(device)?;
        if let Some(task) = &self.task {
            let learner = Learner::new(gpt, &self.trained.config);
            let score = choices::score(&learner, &self.trained.tokenizer, task)?;
            if self.args.json {
                println!("{:#}", json!(score));
            } else {
                println!("{score}");
            }
            return Ok(());
        }

        // Other data than the run's is cut into temporary shards.
        let temporary = tempfile::tempdir()?;
        let indexes = self.trained.indexes(|warning| eprintln!("{warning}"));
        let Trained { data, checkpoint, mut config, tokenizer, .. } = self.trained;
        let never = AtomicBool::new(false);
        let data = if let Some(path) = &self.args.data {
            config.eval.sequences = None;
            let data = Data::measuring(tokenizer, &config, (path, temporary.path()), &never)?;
            if data.validation.as_ref().is_some_and(|set| set != path) {
                config.data.align = AlignKind::Document;
            }
            data
        } else {
            let (folder, before) = (data.as_deref().unwrap_or(temporary.path()), data.is_some());
            Data::new(tokenizer, &config, (folder, before.then_some(&config)), &never)?
        };
        let data = Data { indexes, ..data };
        let looked_up = data.indexes.as_ref();
        let windows = ValidationWindows::open(&config, &data, looked_up, config.eval.sequences, &never)?;

        let learner = Learner::new(gpt, &config);
        let evaluation = evaluate(&learner, &windows, &data.tokenizer, usize::MAX)?;
        let score = (config.quiz() > 0 && self.args.data.is_none())
            .then(|| {
                let mut reader = WholeReader::new(&learner.gpt);
                quiz(&learner.gpt, &mut reader, &data, config.quiz(), config.eval.max_new_tokens)
            })
            .transpose()?;

        if self.args.json {
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
