//! `train chat`: a conversation on the terminal, or line by line from a pipe.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use backend_offload::{Offload, Offloadable};
use burn::tensor::backend::Backend;
use models::Lookup;
use runs::BadInput;
use runs::TextGenerator;
use runs::Trained;
use runs::device::{self, Place, Setup, Work};
use tokenizer::{Message, Role};

use super::{CheckpointArgs, SamplingArgs};
use crate::interrupt;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Answer this question and exit.
    #[arg(short, long)]
    prompt: Option<String>,
    /// Instructions that stand before the first question, and stay when older questions are forgotten.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let trained = args.checkpoint.open()?;
    let setup = Setup::from(&trained.config).without_disk();
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
        let gpt = trained.for_inference::<Offload<I>>(device)?;
        let indexes = trained.indexes(|warning| eprintln!("{warning}"));
        let lookup = indexes.as_ref().map(|indexes| indexes as &dyn Lookup);
        let speaker = args.sampling.generator(&gpt, &trained.tokenizer, lookup);

        let mut out = std::io::stdout();
        let mut history = History::new(args.system.as_deref());
        let silenced = interrupt::answer_flag()?;
        if let Some(question) = &args.prompt {
            return history.answer(question, &speaker, &mut out, &silenced);
        }

        let input = std::io::stdin();
        let talks = input.is_terminal();
        if talks {
            let path = trained.checkpoint.path.display();
            println!("{path}; /clear forgets, /quit ends, Ctrl-C ends an answer");
        }

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
                "/clear" => history = History::new(args.system.as_deref()),
                question => match history.answer(question, &speaker, &mut out, &silenced) {
                    Err(error) if talks && error.is::<BadInput>() => println!("{error}"),
                    answered => answered?,
                },
            }
        }
    }
}

/// The part of a conversation that still fits, instructions first.
struct History {
    messages: Vec<Message>,
    kept: usize,
}

impl History {
    fn new(system: Option<&str>) -> Self {
        let messages: Vec<_> = system.map(|text| Message::new(Role::System, text)).into_iter().collect();
        Self { kept: messages.len(), messages }
    }

    /// Prints an answer until `silenced` is set, and adds question and answer to the history. Drops a question that
    /// cannot be answered.
    fn answer<B: Backend>(
        &mut self,
        question: &str,
        speaker: &TextGenerator<'_, B>,
        out: &mut impl Write,
        silenced: &AtomicBool,
    ) -> anyhow::Result<()> {
        self.messages.push(Message::new(Role::User, question));

        let window = speaker.gpt.config().n_positions;
        let ids = loop {
            let ids = speaker.tokenizer.encode_prompt(&self.messages)?;
            if ids.len() <= window {
                break ids;
            }
            if self.messages.len() < self.kept + 3 {
                self.messages.truncate(self.kept);
                let instructions = if self.kept > 0 { ", instructions included," } else { "" };
                bail!(BadInput(format!(
                    "the question has {} tokens{instructions} and the model reads {window} at once; ask shorter",
                    ids.len()
                )));
            }
            // The oldest question and its answer are forgotten first.
            self.messages.drain(self.kept..self.kept + 2);
        };

        silenced.store(false, Ordering::Relaxed);
        let said = speaker.stream_to(&[ids], out, silenced);
        silenced.store(true, Ordering::Relaxed);
        let said = said?;
        writeln!(out)?;
        out.flush()?;
        if said.is_empty() {
            self.messages.pop();
        } else {
            self.messages.push(Message::new(Role::Assistant, said));
        }
        Ok(())
    }
}
