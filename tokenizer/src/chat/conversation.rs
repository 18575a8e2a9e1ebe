//! Encodes conversations, with a mask of trained tokens.
//!
//! Templates are rendered with placeholders for contents. Control tokens count only around them: a message with
//! `<|assistant_start|>` is ordinary text.

use std::ops::Range;

use crate::{
    encode::{special::Segment, tokenizer::Tokenizer},
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

    /// For trusted text such as a template: control tokens count.
    pub fn encode_with_specials(&self, text: &str) -> Result<Vec<u32>, Error> {
        let mut turns = TurnEncoder::new(self);
        turns.template(text, &mut false)?;
        turns.flush()?;
        Ok(turns.out.ids)
    }

    fn encode_turns(&self, messages: &[Message], prompt: bool) -> Result<ChatIds, Error> {
        let template = self.chat.as_ref().ok_or(ChatProblem::NoTemplate)?;
        let rendered = template.render(messages, prompt)?;
        let mut turns = TurnEncoder::new(self);
        let mut ends_assistant = false;
        let mut question = None;
        for part in parts(&rendered, messages.len())? {
            match part {
                Part::Content(at) => {
                    let message = &messages[at];
                    let is_answer = message.role == Role::Assistant;
                    let content = match template.published() {
                        Some(format) => format.written(message, at + 1 == messages.len()),
                        None => message.content.as_str().into(),
                    };
                    turns.text(&content, is_answer);
                    ends_assistant = is_answer;
                    turns.out.questions.extend(question.take().filter(|_| message.role == Role::User));
                }
                Part::Template(text) => {
                    let follows = ends_assistant;
                    question = turns.template(text, &mut ends_assistant)?.filter(|_| follows);
                }
            }
        }
        turns.flush()?;
        Ok(turns.out)
    }
}

/// Merges may span a message and the template: text between control tokens is joined first.
struct TurnEncoder<'t> {
    tokenizer: &'t Tokenizer,
    /// Since the last control token.
    text: String,
    runs: Vec<Run>,
    /// Whether the last control token swallows the blanks that follow.
    swallows: bool,
    out: ChatIds,
}

/// A stretch of text between control tokens: an answer, or words that are not trained.
struct Run {
    range: Range<usize>,
    trained: bool,
}

impl<'t> TurnEncoder<'t> {
    fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, text: String::new(), runs: Vec::new(), swallows: false, out: ChatIds::default() }
    }

    /// Returns where the next turn begins: at the second control token, or after the only one.
    fn template(&mut self, text: &str, ends: &mut bool) -> Result<Option<usize>, Error> {
        let specials = self.tokenizer.specials();
        let (mut begins, mut seen) = (None, 0);
        for segment in specials.segments(text) {
            match segment {
                Segment::Text(text) => self.text(text, false),
                Segment::Special(id) => {
                    if specials.swallows_before(id) {
                        self.trim_end();
                    }
                    self.flush()?;
                    self.swallows = specials.swallows_after(id);

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

    fn text(&mut self, text: &str, trained: bool) {
        let text = if self.swallows { text.trim_start() } else { text };
        self.swallows &= text.is_empty();

        let start = self.text.len();
        self.text.push_str(text);
        let end = self.text.len();
        match self.runs.last_mut() {
            Some(run) if run.trained == trained => run.range.end = end,
            _ => self.runs.push(Run { range: start..end, trained }),
        }
    }

    fn trim_end(&mut self) {
        let kept = self.text.trim_end().len();
        self.text.truncate(kept);
        for Run { range, .. } in &mut self.runs {
            *range = range.start.min(kept)..range.end.min(kept);
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let (text, runs) = (std::mem::take(&mut self.text), std::mem::take(&mut self.runs));
        if let Some(tokens) = self.joined(&text, &runs)? {
            let (ids, trained): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
            self.out.ids.extend(ids);
            self.out.trained.extend(trained);
            return Ok(());
        }

        for Run { range, trained } in runs {
            let begins = self.out.ids.is_empty();
            self.out.ids.extend(self.tokenizer.encode_at(&text[range], begins)?);
            self.out.trained.resize(self.out.ids.len(), trained);
        }
        Ok(())
    }

    /// Each token with whether it is trained, as `transformers` cuts the rendered text. `None` for vocabularies that
    /// this crate encodes, and where a token holds words of an answer and of its neighbour.
    fn joined(&self, text: &str, runs: &[Run]) -> Result<Option<Vec<(u32, bool)>>, Error> {
        if runs.len() < 2 {
            return Ok(None);
        }
        let tokens = self.tokenizer.encode_with_places(text, self.out.ids.is_empty())?;
        let trained = |(id, place): (u32, Range<usize>)| Some((id, is_trained(text, runs, &place)?));
        Ok(tokens.and_then(|tokens| tokens.into_iter().map(trained).collect()))
    }
}

/// A token belongs to the words that it holds, and one of blanks alone to an answer. `None` if it holds words of both.
fn is_trained(text: &str, runs: &[Run], place: &Range<usize>) -> Option<bool> {
    let end = place.end.max(place.start + 1);
    let first = runs.partition_point(|run| run.range.end <= place.start);
    let (mut touches, mut words) = (false, [false; 2]);
    for Run { range, trained } in runs[first..].iter().take_while(|run| run.range.start < end) {
        let shared = range.start.max(place.start)..range.end.min(end);
        touches |= *trained && !shared.is_empty();
        // A part of a character is no blank.
        let is_blank = text.get(shared).is_some_and(|shared| shared.trim_start().is_empty());
        words[usize::from(*trained)] |= !is_blank;
    }
    match words {
        [true, true] => None,
        [false, false] => Some(touches),
        [_, trained] => Some(trained),
    }
}
