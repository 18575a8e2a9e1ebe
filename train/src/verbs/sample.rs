//! `train sample`: texts continued, questions answered.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use backend_offload::{Offload, Offloadable};
use burn::tensor::backend::Backend;
use models::{Completion, Sampling};
use serde_json::json;
use tokenizer::{Message, Role};

use super::{CheckpointArgs, SamplingArgs};
use crate::device::{self, Place, Setup, Work};
use crate::trained::Trained;
use crate::training::Speaker;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// A text to continue; may be repeated. `FILE:path` reads it from a file. Without any, a document is begun.
    #[arg(long)]
    prompt: Vec<String>,
    /// A question to answer, as a conversation; may be repeated.
    #[arg(long)]
    question: Vec<String>,
    /// How often each is continued, with other random choices.
    #[arg(long, default_value_t = 1)]
    count: u64,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Print one JSON object per text.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let trained = Trained::open(&args.checkpoint)?;
    let setup = Setup::from(&trained.config);
    device::with(args.checkpoint.device, &setup, Sampled { args, trained })
}

struct Sampled<'a> {
    args: &'a Args,
    trained: Trained,
}

impl Work for Sampled<'_> {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, _place: &Place) -> anyhow::Result<()> {
        let Self { args, trained } = self;
        let gpt = trained.weights::<Offload<I>>(device)?;
        let base = args.sampling.sampling();
        let speaker = |sampling| Speaker {
            gpt: &gpt,
            tokenizer: &trained.tokenizer,
            sampling,
            max_new_tokens: args.sampling.max_new_tokens,
            stop: &args.sampling.stop,
        };
        let mut prompts = Vec::new();
        let begin =
            if args.prompt.is_empty() && args.question.is_empty() { &[String::new()][..] } else { &[] };
        for text in args.prompt.iter().chain(begin) {
            let text = prompt(text)?;
            prompts.push((speaker(base).opening(&text)?, text, ""));
        }
        for question in &args.question {
            let message = Message::new(Role::User, question.clone());
            prompts.push((trained.tokenizer.encode_prompt(&[message])?, question.clone(), "\n"));
        }
        for (ids, text, between) in prompts {
            for n in 0..args.count {
                let speaker = speaker(Sampling { seed: base.seed.wrapping_add(n), ..base });
                say(&speaker, &ids, (&text, between), args.json)?;
            }
        }
        Ok(())
    }
}

fn prompt(text: &str) -> anyhow::Result<String> {
    use anyhow::Context;
    match text.strip_prefix("FILE:") {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("reading the prompt in {path}")),
        None => Ok(text.to_owned()),
    }
}

fn say<B: Backend>(
    speaker: &Speaker<'_, B>,
    ids: &[u32],
    (text, between): (&str, &str),
    json: bool,
) -> anyhow::Result<()> {
    if json {
        let completions = speaker.speak(&[ids.to_vec()], |_| ControlFlow::Continue(()))?;
        let Completion { tokens, text: cut, .. } = &completions[0];
        let said = cut.clone().map_or_else(|| speaker.words(tokens), Ok)?;
        let finish = format!("{:?}", completions[0].finish).to_lowercase();
        println!(
            "{}",
            json!({ "prompt": text, "text": said, "tokens": completions[0].tokens.len(), "finish": finish })
        );
        return Ok(());
    }
    print!("{text}{between}");
    speaker.aloud(&[ids.to_vec()], &mut std::io::stdout(), &AtomicBool::new(false))?;
    println!("\n");
    std::io::stdout().flush()?;
    Ok(())
}
