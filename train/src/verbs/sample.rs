//! `train sample`: continues texts and answers questions.

use std::io::Write;
use std::iter;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use backend_offload::{Offload, Offloadable};
use burn::tensor::backend::Backend;
use clap::builder::RangedU64ValueParser;
use models::{Lookup, Sampling};
use runs::BadInput;
use runs::Trained;
use runs::device::{self, Place, Setup, Work};
use runs::{Prompt, TEXTS_AT_ONCE, TextGenerator};
use serde_json::json;

use super::screen::Screen;
use super::{CheckpointArgs, SamplingArgs};

const MOST_TEXTS: u64 = 100_000;

const MOST_PROMPT_BYTES: u64 = 16 << 20;

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
    /// Continuations of each text, with different random choices.
    #[arg(long, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_TEXTS))]
    count: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Print one JSON object per text.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let trained = args.checkpoint.open()?;
    let setup = Setup::from(&trained.config).without_disk();
    device::with(args.checkpoint.device, &setup, SampleTexts { args, trained })
}

struct SampleTexts<'a> {
    args: &'a Args,
    trained: Trained,
}

impl Work for SampleTexts<'_> {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, _place: &Place) -> anyhow::Result<()> {
        let Self { args, trained } = self;
        let gpt = trained.for_inference::<Offload<I>>(device)?;
        let indexes = trained.indexes(|warning| eprintln!("{warning}"));
        let lookup = indexes.as_ref().map(|indexes| indexes as &dyn Lookup);
        let speaker = args.sampling.generator(&gpt, &trained.tokenizer, lookup);

        let mut prompts = Vec::new();
        let begin =
            if args.prompt.is_empty() && args.question.is_empty() { &[String::new()][..] } else { &[] };
        for text in args.prompt.iter().chain(begin) {
            let text = prompt(text)?;
            prompts.push((Prompt::text(&trained.tokenizer, &text)?, text));
        }
        for question in &args.question {
            prompts.push((Prompt::question(&trained.tokenizer, question)?, question.clone()));
        }

        let texts: Vec<&(Prompt, String)> =
            prompts.iter().flat_map(|prompt| iter::repeat_n(prompt, args.count)).collect();
        if let ([only], false) = (texts.as_slice(), args.json) {
            return stream_one(&speaker, only);
        }

        for (n, texts) in texts.chunks(TEXTS_AT_ONCE).enumerate() {
            let sampling =
                Sampling { seed: speaker.sampling.seed.wrapping_add(n as u64), ..speaker.sampling };
            together(&TextGenerator { sampling, ..speaker }, texts, args.json)?;
        }
        Ok(())
    }
}

fn prompt(text: &str) -> anyhow::Result<String> {
    match text.strip_prefix("FILE:") {
        Some(path) => durable::regular::read_text(Path::new(path), MOST_PROMPT_BYTES)
            .map_err(|unread| BadInput(format!("cannot read the prompt in {path}: {unread}")).into()),
        None => Ok(text.to_owned()),
    }
}

fn stream_one<B: Backend>(
    speaker: &TextGenerator<'_, B>,
    (prompt, text): &(Prompt, String),
) -> anyhow::Result<()> {
    print!("{text}{}", prompt.between());
    speaker.stream_to(prompt, &mut Screen::new(), &AtomicBool::new(false))?;
    println!("\n");
    Ok(std::io::stdout().flush()?)
}

fn together<B: Backend>(
    speaker: &TextGenerator<'_, B>,
    prompts: &[&(Prompt, String)],
    json: bool,
) -> anyhow::Result<()> {
    let ids: Vec<_> = prompts.iter().map(|(prompt, _)| prompt.ids().to_vec()).collect();
    let completions = speaker.speak(&ids, |_| ControlFlow::Continue(()))?;
    for ((prompt, text), completion) in prompts.iter().zip(&completions) {
        let said = speaker.text(prompt, completion)?;
        if json {
            let finish = format!("{:?}", completion.finish).to_lowercase();
            let tokens = completion.tokens.len();
            println!("{}", json!({ "prompt": text, "text": said, "tokens": tokens, "finish": finish }));
        } else {
            writeln!(Screen::new(), "{text}{}{said}\n", prompt.between())?;
        }
    }
    Ok(())
}
