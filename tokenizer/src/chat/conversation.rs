//! Encodes conversations, with a mask of trained tokens.
//!
//! Templates are rendered with placeholders for contents. Control tokens count only around them: a message with
//! `<|assistant_start|>` is ordinary text.

use std::io;

use minijinja::{Environment, Value, context, syntax::SyntaxConfig};
use serde::{Deserialize, Serialize};

use crate::{
    chat::published::PublishedFormat,
    encode::{
        special::{Segment, SpecialTokens},
        tokenizer::Tokenizer,
    },
    error::Error,
};

/// A message's speaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions; only first.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl std::fmt::Display for Role {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.write_str(self.name())
    }
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// The speaker.
    pub role: Role,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// An encoded conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatIds {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Whether each id is trained: the assistant's text and the control token that ends it.
    pub trained: Vec<bool>,
}

/// Why a conversation cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatProblem {
    /// The tokenizer has no template.
    #[error("the tokenizer has no chat template; train one with `train tokenizer train`, which writes one")]
    NoTemplate,
    /// A required role is missing.
    #[error("the conversation has no {0} message; at least one is needed")]
    Missing(&'static str),
    /// A message is empty.
    #[error("message {at}, the {role}'s, is empty; leave the message out, or say something")]
    Empty {
        /// From 1.
        at: usize,
        /// Its role.
        role: Role,
    },
    /// Turns out of order.
    #[error(
        "message {at} is the {role}'s where the {expected}'s is expected: an optional system message first, then \
         user and assistant in turn"
    )]
    OutOfTurn {
        /// From 1.
        at: usize,
        /// Its role.
        role: Role,
        /// The expected role.
        expected: Role,
    },
    /// A prompt that ends with an answer.
    #[error("a prompt ends with the user's message, this one ends with the assistant's")]
    NothingToAnswer,
    /// A template that failed or exceeded its steps.
    #[error("the chat template: {0:#}")]
    Template(#[from] minijinja::Error),
    /// A template that repeats itself.
    #[error("the chat template writes more than {limit} bytes for this conversation, so it repeats itself")]
    TooLong {
        /// The template once per message, and once more.
        limit: usize,
    },
    /// A template that leaves out a message.
    #[error("the chat template leaves out message {at}; its text would be lost")]
    LeftOut {
        /// From 1.
        at: usize,
    },
    /// An unsupported construct in the template.
    #[error(
        "the chat template uses `{0}`, and it is none of ChatML's, Llama's, Gemma's or Mistral's; others may only use \
         `for NAME in messages`, `if`, names, texts and comparisons, like the one `train tokenizer train` writes"
    )]
    Program(String),
    /// The placeholders' characters in the template.
    #[error("the chat template contains U+F0000 or U+F0001, which mark the messages' places")]
    Marks,
}

impl ChatProblem {
    pub(crate) fn is_about_messages(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::Empty { .. } | Self::OutOfTurn { .. } | Self::LeftOut { .. })
    }
}

/// Private-use characters around a message's number.
const OPEN: char = '\u{F0000}';
const CLOSE: char = '\u{F0001}';
/// Steps of a template per message, plus once; this crate's needs about 30.
const FUEL: u64 = 200;
/// Most bytes that a placeholder adds.
const MARK_BYTES: usize = 256;
/// Without assignments, macros and repetition, intermediate values stay as short as the template.
const STATEMENTS: [&str; 6] = ["for", "endfor", "if", "elif", "else", "endif"];

#[derive(Clone, Debug)]
pub(crate) struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
    /// For a template that cannot be run.
    published: Option<PublishedFormat>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part<'r> {
    Template(&'r str),
    Content(usize),
}

impl ChatTemplate {
    pub(crate) fn new(source: String, bos: String, eos: String) -> Self {
        let mut template = Self { published: None, source, bos, eos };
        let probe = [Message::new(Role::User, ""), Message::new(Role::Assistant, "")];
        if template.render(&probe, true).is_err() {
            template.published = PublishedFormat::recognised(&template.source);
        }
        template
    }

    pub(crate) fn published(&self) -> Option<&PublishedFormat> {
        self.published.as_ref()
    }

    /// Checks source text, where quotes cannot hide a statement; so it refuses quoted `{%` or `*`.
    fn check(&self) -> Result<(), ChatProblem> {
        if self.source.contains([OPEN, CLOSE]) {
            return Err(ChatProblem::Marks);
        }
        if self.source.contains('*') {
            return Err(ChatProblem::Program("*".to_owned()));
        }
        for statement in self.source.split("{%").skip(1) {
            let statement = statement.trim_start_matches(['-', '+']).trim_start();
            let end = statement.find(|c: char| !c.is_alphanumeric()).unwrap_or(statement.len());
            let (keyword, rest) = statement.split_at(end);
            if !STATEMENTS.contains(&keyword) {
                return Err(ChatProblem::Program(keyword.to_owned()));
            }
            // `for b in [a + a]` would assign, and double a text at no cost in steps.
            if keyword == "for" && !is_over_messages(rest) {
                return Err(ChatProblem::Program("for".to_owned()));
            }
        }
        Ok(())
    }

    fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatProblem> {
        let placed = |at: usize| format!("{OPEN}{at}{CLOSE}");
        if let Some(format) = &self.published {
            let numbered = messages.iter().enumerate();
            let messages: Vec<_> = numbered.map(|(at, message)| (message.role, placed(at))).collect();
            return Ok(format.render(&messages, &self.bos, &self.eos, add_generation_prompt));
        }
        self.check()?;
        let mut environment = Environment::empty();
        // As in Hugging Face's renderer.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL * (messages.len() as u64 + 1)));

        let placeholders: Vec<Value> = messages
            .iter()
            .enumerate()
            .map(|(at, message)| context! { role => message.role.name(), content => placed(at) })
            .collect();
        let (bos_token, eos_token) = (&self.bos, &self.eos);
        let context = context! { messages => placeholders, bos_token, eos_token, add_generation_prompt };
        let limit = (messages.len() + 1) * (self.source.len() + MARK_BYTES);
        let mut out = Rendered { text: Vec::new(), limit, is_full: false };
        match environment.template_from_str(&self.source)?.render_captured_to(context, &mut out) {
            Err(_) if out.is_full => Err(ChatProblem::TooLong { limit }),
            Err(error) => Err(error.into()),
            Ok(_) => String::from_utf8(out.text).map_err(|_| ChatProblem::Marks),
        }
    }
}

/// Fails at its limit: each message may repeat the template once.
struct Rendered {
    text: Vec<u8>,
    limit: usize,
    is_full: bool,
}

impl io::Write for Rendered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            self.is_full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the statement is only `NAME in messages`.
fn is_over_messages(statement: &str) -> bool {
    let statement = statement.split("%}").next().unwrap_or_default().trim_end_matches(['-', '+']);
    let mut words = statement.split_whitespace();
    let name = words.next().unwrap_or_default();
    name.chars().all(|c| c.is_alphanumeric() || c == '_') && words.eq(["in", "messages"])
}

fn parts(rendered: &str, messages: usize) -> Result<Vec<Part<'_>>, ChatProblem> {
    let mut parts = Vec::new();
    let mut seen = vec![false; messages];
    let mut rest = rendered;
    while let Some((before, after)) = rest.split_once(OPEN) {
        parts.push(Part::Template(before));
        let (number, behind) = after.split_once(CLOSE).ok_or(ChatProblem::Marks)?;
        let at: usize = number.parse().map_err(|_| ChatProblem::Marks)?;
        *seen.get_mut(at).ok_or(ChatProblem::Marks)? = true;
        parts.push(Part::Content(at));
        rest = behind;
    }
    parts.push(Part::Template(rest));
    match seen.iter().position(|seen| !seen) {
        Some(at) => Err(ChatProblem::LeftOut { at: at + 1 }),
        None => Ok(parts),
    }
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
        for part in parts(&rendered, messages.len())? {
            match part {
                Part::Content(at) => {
                    let Message { role, content } = &messages[at];
                    let assistant = *role == Role::Assistant;
                    let trims = template.published().is_some_and(|format| format.trims(*role));
                    turns.text(if trims { content.trim() } else { content }, assistant)?;
                    ends_assistant = assistant;
                }
                Part::Template(text) => turns.template(text, self.specials(), &mut ends_assistant)?,
            }
        }
        turns.flush()?;
        Ok(turns.out)
    }
}

/// Merges may span a message and the template, so adjacent text is joined first.
struct TurnEncoder<'t> {
    tokenizer: &'t Tokenizer,
    text: String,
    trained: bool,
    out: ChatIds,
}

impl TurnEncoder<'_> {
    fn template(&mut self, text: &str, specials: &SpecialTokens, ends: &mut bool) -> Result<(), Error> {
        for segment in specials.segments(text) {
            match segment {
                Segment::Text(text) => self.text(text, false)?,
                Segment::Special(id) => {
                    self.flush()?;
                    self.out.ids.push(id);
                    self.out.trained.push(std::mem::take(ends));
                }
            }
        }
        Ok(())
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
