//! `train chat`: a conversation on the terminal, or line by line from a pipe.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use backend_offload::{Offload, Offloadable};
use burn::tensor::backend::Backend;
use models::Lookup;
use runs::BadInput;
use runs::Trained;
use runs::device::{self, Place, Setup, Work};
use runs::{Prompt, TextGenerator};
use tokenizer::{Message, Role, Tokenizer};

use super::screen::Screen;
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

        let mut out = Screen::new();
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

/// The rest of a conversation that fits, instructions first.
struct History {
    messages: Vec<Message>,
    kept: usize,
}

impl History {
    fn new(system: Option<&str>) -> Self {
        let messages: Vec<_> = system.map(|text| Message::new(Role::System, text)).into_iter().collect();
        Self { kept: messages.len(), messages }
    }

    /// Forgets the oldest questions and answers until `answer` tokens have room, or half of the window. The last
    /// question alone needs one.
    fn prompt(&mut self, tokenizer: &Tokenizer, window: usize, answer: usize) -> anyhow::Result<Vec<u32>> {
        let room = answer.min(window / 2);
        loop {
            let ids = tokenizer.encode_prompt(&self.messages)?;
            let is_last = self.messages.len() < self.kept + 3;
            if ids.len() + room <= window || is_last && ids.len() < window {
                return Ok(ids);
            }
            if is_last {
                self.messages.truncate(self.kept);
                let instructions = if self.kept > 0 { ", instructions included," } else { "" };
                bail!(BadInput(format!(
                    "the question has {} tokens{instructions} and the model reads {window} at once, answer included; \
                     ask shorter",
                    ids.len()
                )));
            }
            self.messages.drain(self.kept..self.kept + 2);
        }
    }

    /// Stops once `silenced` is set. Adds question and answer to the history; drops an unanswerable question.
    fn answer<B: Backend>(
        &mut self,
        question: &str,
        speaker: &TextGenerator<'_, B>,
        out: &mut impl Write,
        silenced: &AtomicBool,
    ) -> anyhow::Result<()> {
        self.messages.push(Message::new(Role::User, question));
        let window = speaker.gpt.config().n_positions;
        let ids = self.prompt(speaker.tokenizer, window, speaker.max_new_tokens)?;
        // Sliding the window would drop instructions and question.
        let speaker =
            &TextGenerator { max_new_tokens: speaker.max_new_tokens.min(window - ids.len()), ..*speaker };

        silenced.store(false, Ordering::Relaxed);
        let said = speaker.stream_to(&Prompt::conversation(ids), out, silenced);
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

#[cfg(test)]
mod tests {
    use tokenizer::CHAT_SPECIALS;

    use super::*;

    #[test]
    fn old_questions_leave_room_for_an_answer_and_instructions_stay() {
        let tokenizer = Tokenizer::bytes(&CHAT_SPECIALS);
        let mut history = History::new(Some("Be kind."));
        for (role, text) in [(Role::User, "one?"), (Role::Assistant, "1"), (Role::User, "two?")] {
            history.messages.push(Message::new(role, text));
        }
        let all = tokenizer.encode_prompt(&history.messages).expect("encoded").len();

        let whole = history.prompt(&tokenizer, all + 20, 20).expect("there is room").len();
        assert_eq!((whole, history.messages.len()), (all, 4));
        let shorter = history.prompt(&tokenizer, all + 19, 20).expect("there is room").len();
        assert!(shorter < all && history.messages.len() == 2, "the first question is forgotten");
        assert!(history.messages[0].role == Role::System, "instructions stay");
        let tight = history.prompt(&tokenizer, shorter + 1, 20).expect("room for one token").len();
        assert_eq!(tight, shorter, "half of the window is not free, but the last question is answered");
        let refused = history.prompt(&tokenizer, shorter, 20).expect_err("no room").to_string();
        assert!(refused.contains("instructions included"), "{refused}");
        assert_eq!(history.messages.len(), 1, "a refused question is forgotten");
    }
}
