//! `train chat`: a conversation on the terminal, or line by line from a pipe.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::bail;
use backend_offload::{Offload, Offloadable};
use burn::tensor::backend::Backend;
use tokenizer::{Message, Role};

use super::{CheckpointArgs, SamplingArgs};
use crate::device::{self, Place, Setup, Work};
use crate::exit::BadInput;
use crate::trained::Trained;
use crate::training::Speaker;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// One question, one answer, and out.
    #[arg(short, long)]
    prompt: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let trained = Trained::open(&args.checkpoint)?;
    let setup = Setup::from(&trained.config);
    device::with(args.checkpoint.device, &setup, Conversation { args, trained })
}

struct Conversation<'a> {
    args: &'a Args,
    trained: Trained,
}

impl Work for Conversation<'_> {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, _place: &Place) -> anyhow::Result<()> {
        let Self { args, trained } = self;
        let gpt = trained.weights::<Offload<I>>(device)?;
        let speaker = Speaker {
            gpt: &gpt,
            tokenizer: &trained.tokenizer,
            sampling: args.sampling.sampling(),
            max_new_tokens: args.sampling.max_new_tokens,
        };
        let mut out = std::io::stdout();
        if let Some(question) = &args.prompt {
            answer(&speaker, &mut vec![Message::new(Role::User, question.clone())], &mut out)?;
            return Ok(());
        }
        let input = std::io::stdin();
        let talks = input.is_terminal();
        if talks {
            println!("{}; /clear forgets, /quit ends", trained.checkpoint.path.display());
        }
        let mut history: Vec<Message> = Vec::new();
        loop {
            if talks {
                print!("> ");
                out.flush()?;
            }
            let mut line = String::new();
            if input.lock().read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim() {
                "" => {}
                "/quit" | "/exit" => return Ok(()),
                "/clear" => history.clear(),
                question => {
                    history.push(Message::new(Role::User, question));
                    match answer(&speaker, &mut history, &mut out) {
                        Err(error) if talks && error.is::<BadInput>() => println!("{error}"),
                        answered => answered?,
                    }
                }
            }
        }
    }
}

/// Answers the last message of `history` and adds the answer to it. A question that cannot be answered is forgotten.
fn answer<B: Backend>(
    speaker: &Speaker<'_, B>,
    history: &mut Vec<Message>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let window = speaker.gpt.config().n_positions;
    let ids = loop {
        let ids = speaker.tokenizer.encode_prompt(history)?;
        if ids.len() <= window {
            break ids;
        }
        if history.len() < 3 {
            history.clear();
            bail!(BadInput(format!(
                "the question has {} tokens and the model reads {window} at once; ask shorter",
                ids.len()
            )));
        }
        // The oldest question and its answer are forgotten first.
        history.drain(..2);
    };
    let said = speaker.aloud(&[ids], out)?;
    writeln!(out)?;
    out.flush()?;
    if said.is_empty() {
        history.pop();
    } else {
        history.push(Message::new(Role::Assistant, said));
    }
    Ok(())
}
