//! Encodes conversations, with a mask of trained tokens.
//!
//! Templates are rendered with placeholders for contents. Control tokens count only around them: a message with
//! `<|assistant_start|>` is ordinary text.

use crate::{
    encode::{
        special::{Segment, SpecialTokens},
        tokenizer::Tokenizer,
    },
    error::Error,
};

use super::{
    message::{Message, Role},
    problem::ChatProblem,
    template::{Part, parts},
};

/// An encoded conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatIds {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Whether each id is trained: the assistant's text and its closing control token.
    pub trained: Vec<bool>,
    /// Where in `ids` questions after the first begin.
    pub questions: Vec<usize>,
}

fn check_turns(messages: &[Message]) -> Result<(), ChatProblem> {
    let opening = usize::from(messages.first().is_some_and(|message| message.role == Role::System));
    for (index, message) in messages.iter().enumerate() {
        let (at, role) = (index + 1, message.role);
        if message.content.is_empty() {
            return Err(ChatProblem::Empty { at, role });
        }
        let expected = match index.checked_sub(opening) {
            None => Role::System,
            Some(turn) if turn % 2 == 0 => Role::User,
            Some(_) => Role::Assistant,
        };
        if role != expected {
            return Err(ChatProblem::OutOfTurn { at, role, expected });
        }
    }
    if messages.len() == opening { Err(ChatProblem::Missing("user")) } else { Ok(()) }
}

impl Tokenizer {
    /// Encodes a finished conversation.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<ChatIds, Error> {
        check_turns(messages)?;
        if messages.iter().all(|message| message.role != Role::Assistant) {
            return Err(ChatProblem::Missing("assistant").into());
        }
        self.encode_turns(messages, false)
    }

    /// Encodes a conversation to be answered.
    pub fn encode_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        check_turns(messages)?;
        if messages.last().is_some_and(|last| last.role == Role::Assistant) {
            return Err(ChatProblem::NothingToAnswer.into());
        }
        Ok(self.encode_turns(messages, true)?.ids)
    }

    fn encode_turns(&self, messages: &[Message], prompt: bool) -> Result<ChatIds, Error> {
        let template = self.chat.as_ref().ok_or(ChatProblem::NoTemplate)?;
        let rendered = template.render(messages, prompt)?;
        let mut turns =
            TurnEncoder { tokenizer: self, text: String::new(), trained: false, out: ChatIds::default() };
        let mut ends_assistant = false;
        let mut question = None;
        for part in parts(&rendered, messages.len())? {
            match part {
                Part::Content(at) => {
                    let Message { role, content } = &messages[at];
                    let assistant = *role == Role::Assistant;
                    let format = template.published();
                    let content = format.map_or(content.as_str(), |format| format.trimmed(*role, content));
                    turns.text(content, assistant)?;
                    ends_assistant = assistant;
                    turns.out.questions.extend(question.take().filter(|_| *role == Role::User));
                }
                Part::Template(text) => {
                    let follows = ends_assistant;
                    question =
                        turns.template(text, self.specials(), &mut ends_assistant)?.filter(|_| follows);
                }
            }
        }
        turns.flush()?;
        Ok(turns.out)
    }
}

/// Merges may span a message and the template: adjacent text is joined first.
struct TurnEncoder<'t> {
    tokenizer: &'t Tokenizer,
    text: String,
    trained: bool,
    out: ChatIds,
}

impl TurnEncoder<'_> {
    /// Returns where the next turn begins: at the second control token, or after the only one.
    fn template(
        &mut self,
        text: &str,
        specials: &SpecialTokens,
        ends: &mut bool,
    ) -> Result<Option<usize>, Error> {
        let (mut begins, mut seen) = (None, 0);
        for segment in specials.segments(text) {
            match segment {
                Segment::Text(text) => self.text(text, false)?,
                Segment::Special(id) => {
                    self.flush()?;
                    seen += 1;
                    if seen <= 2 {
                        begins = Some(self.out.ids.len() + usize::from(seen == 1));
                    }
                    self.out.ids.push(id);
                    self.out.trained.push(std::mem::take(ends));
                }
            }
        }
        Ok(begins)
    }

    fn text(&mut self, text: &str, trained: bool) -> Result<(), Error> {
        if trained != self.trained {
            self.flush()?;
        }
        self.trained = trained;
        self.text.push_str(text);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        let ids = self.tokenizer.encode(&self.text)?;
        self.text.clear();
        self.out.trained.resize(self.out.trained.len() + ids.len(), self.trained);
        self.out.ids.extend(ids);
        Ok(())
    }
}
