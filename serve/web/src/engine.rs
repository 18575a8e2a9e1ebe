//! The engine: the interface between this crate, which knows requests, and a model, which knows tokens.
//!
//! An [`Engine`] lives on the one inference thread and advances all its sequences together, a token each per
//! [`Engine::step`]. When a sequence joins or leaves is not its business: the scheduler decides that between two
//! steps. A [`Vocabulary`] is shared with the threads that read requests.

use std::fmt;

/// A sequence for as long as it is in an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// How tokens are chosen. Every value has been checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 always takes the likeliest token.
    pub temperature: f64,
    /// Only the `k` likeliest tokens.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together reach this probability.
    pub top_p: Option<f64>,
    /// Only tokens at least this likely relative to the likeliest.
    pub min_p: Option<f64>,
    /// Makes tokens that occurred less likely.
    pub repetition_penalty: Option<f64>,
    /// Fixes the random choices of a request.
    pub seed: u64,
    /// Tells its choices apart: equal seeds and choices give equal answers.
    pub choice: u64,
}

/// One sequence to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Tokens to add at most, at least one; with the prompt they fit the model's context.
    pub most: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// How many alternatives to name beside each token, if probabilities are wanted at all.
    pub alternatives: Option<usize>,
}

/// The next token of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// The token's id in the vocabulary.
    pub id: u32,
    /// How likely the model thought it, where the [`Ask`] wanted to know.
    pub likelihood: Option<Likelihood>,
}

/// Natural logarithms of the model's own probabilities, before temperature and filters.
#[derive(Debug, Clone, PartialEq)]
pub struct Likelihood {
    /// Log-probability of the chosen token.
    pub chosen: f64,
    /// The likeliest tokens, best first.
    pub alternatives: Vec<(u32, f64)>,
}

/// Why an engine could not go on. The text is for whoever asked and for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);

/// A batch of sequences in the middle of being continued.
pub trait Engine {
    /// How many sequences it advances at once.
    fn slots(&self) -> usize;

    /// Takes a sequence in; returns how many tokens of its prompt need not be read again.
    fn join(&mut self, key: Key, ask: Ask) -> Result<usize, EngineError>;

    /// Forgets a sequence that is in it, at once.
    fn leave(&mut self, key: Key);

    /// Advances its sequences by at most one token each. Some may have none yet: a long prompt is read in pieces.
    /// Calls in a row, while there are sequences, bring each of them its next token.
    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError>;

    /// Forgets everything, after an error or a panic.
    fn reset(&mut self);
}

/// The speaker of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The speaker.
    pub role: Role,
    /// The text.
    pub content: String,
}

/// A text or conversation that has no tokens; the message is for whoever sent it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EncodeError(pub String);

/// Texts to tokens and back.
pub trait Vocabulary: Send + Sync {
    /// A text to continue, with whatever a document begins with. Text never becomes a control token.
    fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError>;

    /// A conversation up to where the model's answer begins.
    fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, EncodeError>;

    /// Tokens as they come to text.
    fn decoder(&self) -> Box<dyn Decoder + '_>;

    /// The bytes of one token by itself; not always a whole character.
    fn bytes(&self, token: u32) -> Vec<u8>;

    /// Whether a token ends an answer.
    fn ends(&self, token: u32) -> bool;
}

/// Holds bytes back until they are whole characters.
pub trait Decoder {
    /// The text that `token` completes; often its own, sometimes none.
    fn push(&mut self, token: u32) -> String;

    /// The text still held back, with U+FFFD in place of incomplete characters.
    fn finish(&mut self) -> String;
}

/// Facts about a model that clients can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The name requests know it by.
    pub id: String,
    /// Seconds since 1970 at which it was made.
    pub created: u64,
    /// Tokens it reads at once, prompt and answer together.
    pub context: usize,
    /// Tokens it knows.
    pub vocabulary: usize,
}

/// A number for `/metrics` that the engine's surroundings count.
#[derive(Debug, Clone, PartialEq)]
pub struct Counter {
    /// Name in Prometheus' alphabet, without a prefix.
    pub name: &'static str,
    /// Description, one line.
    pub help: &'static str,
    /// Whether the value only grows.
    pub total: bool,
    /// Its value.
    pub value: f64,
}

/// The numbers at this moment.
pub type Counters = Box<dyn Fn() -> Vec<Counter> + Send + Sync>;

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        })
    }
}
