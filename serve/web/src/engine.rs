//! The interface between this crate, which handles requests, and a model, which handles tokens.
//!
//! An [`Engine`] runs on the inference thread and advances all its sequences together. The scheduler decides between
//! two steps which sequences join and leave. A [`Vocabulary`] is shared with the threads that read requests.

use std::fmt;

/// Identifies a sequence while it is in an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// Parameters of token sampling, already validated.
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
    /// Penalty on tokens that already occurred.
    pub repetition_penalty: Option<f64>,
    /// Seed of the request's random choices.
    pub seed: u64,
    /// Index of the answer to its prompt. Equal seeds and indices give equal answers.
    pub choice: u64,
}

/// A sequence to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceRequest {
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Maximum number of new tokens, at least one. Prompt and answer fit the context.
    pub max_tokens: usize,
    /// Parameters of token sampling.
    pub sampling: Sampling,
    /// Number of alternatives to report per token; `None` reports no probabilities.
    pub alternatives: Option<usize>,
}

/// The next token of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id in the vocabulary.
    pub id: u32,
    /// Its log-probability, if the request asked for it.
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

/// A failure of an engine; the message is for client and log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);

/// A batch of sequences being continued.
pub trait Engine {
    /// Maximum number of sequences in the batch.
    fn slots(&self) -> usize;

    /// Adds a sequence. Returns how many tokens of its prompt were cached.
    fn join(&mut self, key: Key, request: SequenceRequest) -> Result<usize, EngineError>;

    /// Removes a sequence from the batch.
    fn leave(&mut self, key: Key);

    /// Advances each sequence by at most one token. While a long prompt is read in pieces, its sequence gets none.
    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError>;

    /// Removes all sequences and caches, after an error or a panic.
    fn reset(&mut self);
}

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its author.
    pub role: Role,
    /// Its text.
    pub content: String,
}

/// A failure to encode text; the message is for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EncodeError(pub String);

/// Conversion between text and tokens.
pub trait Vocabulary: Send + Sync {
    /// Encodes the beginning of a document. Text never becomes a control token.
    fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError>;

    /// Encodes a conversation up to the start of the model's answer.
    fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, EncodeError>;

    /// Returns a decoder for one stream of tokens.
    fn decoder(&self) -> Box<dyn Decoder + '_>;

    /// Bytes of a single token, not always whole characters.
    fn bytes(&self, token: u32) -> Vec<u8>;

    /// Whether a token ends an answer.
    fn ends(&self, token: u32) -> bool;
}

/// A streaming decoder that holds back incomplete characters.
pub trait Decoder {
    /// Returns the text that `token` completes, which may be empty.
    fn push(&mut self, token: u32) -> String;

    /// Returns the rest, with U+FFFD in place of incomplete characters.
    fn finish(&mut self) -> String;
}

/// Facts about a model that clients can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Name that requests use.
    pub id: String,
    /// Creation time in seconds since 1970.
    pub created: u64,
    /// Context length in tokens, prompt and answer together.
    pub context: usize,
    /// Number of known tokens.
    pub vocabulary: usize,
}

/// A metric that the model's program adds to `/metrics`.
#[derive(Debug, Clone, PartialEq)]
pub struct Counter {
    /// Name in Prometheus' alphabet, without a prefix.
    pub name: &'static str,
    /// One-line description.
    pub help: &'static str,
    /// Whether the value only grows.
    pub total: bool,
    /// Current value.
    pub value: f64,
}

/// Reads the current counters. Called on the inference thread only, so it may wait for the device.
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
