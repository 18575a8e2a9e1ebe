//! The interface between requests (this crate) and tokens (a model).
//!
//! An [`Engine`] advances all its sequences together, on the inference thread. Threads that read requests share the
//! [`Vocabulary`].

use std::fmt;

use crate::grammar::Grammar;

/// A sequence in an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// Validated parameters of sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Only the `k` likeliest tokens.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together reach this probability.
    pub top_p: Option<f64>,
    /// Only tokens at least this likely relative to the likeliest.
    pub min_p: Option<f64>,
    /// Penalty on earlier tokens.
    pub repetition_penalty: Option<f64>,
    /// Seed of the choices.
    pub seed: u64,
    /// Index among a prompt's answers. Equal seeds and indices give equal answers.
    pub choice: u64,
}

/// Validated additions to logits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Adjustment {
    /// Lowers a token's logit by this for each occurrence in the answer, not the prompt.
    pub frequency_penalty: f64,
    /// Lowers the logits of the answer's tokens by this.
    pub presence_penalty: f64,
    /// Tokens, and numbers added to their logits.
    pub biases: Vec<(u32, f64)>,
}

/// A sequence to continue.
#[derive(Debug, Clone)]
pub struct SequenceRequest {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// Prompt and answer fit the context. 0 reads the prompt only.
    pub max_tokens: usize,
    /// Parameters of sampling.
    pub sampling: Sampling,
    /// Additions to logits.
    pub adjustment: Adjustment,
    /// Alternatives to report per token; `None` reports no probabilities.
    pub alternatives: Option<usize>,
    /// Whether to report probabilities of the prompt's tokens too.
    pub score_prompt: bool,
    /// Tokens that may be chosen; `None` allows all.
    pub grammar: Option<Grammar>,
}

/// The next token of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Id in the vocabulary.
    pub id: u32,
    /// If requested.
    pub likelihood: Option<Likelihood>,
    /// With a sequence's first token.
    pub prompt: Option<PromptRead>,
}

/// How a prompt was read.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptRead {
    /// Tokens that another sequence had read.
    pub cached: usize,
    /// Likelihoods of the prompt's tokens after the first, if requested.
    pub likelihoods: Vec<Likelihood>,
}

/// Natural-log probabilities, before adjustment, temperature and filters.
#[derive(Debug, Clone, PartialEq)]
pub struct Likelihood {
    /// Log-probability of the chosen token.
    pub chosen: f64,
    /// The likeliest tokens, best first.
    pub alternatives: Vec<(u32, f64)>,
}

/// A failure of an engine, for client and log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);

/// A batch of sequences.
pub trait Engine {
    /// Sequences in the batch, at most.
    fn slots(&self) -> usize;

    /// Whether memory is left for the longest answer to `request`, else it waits. True for an empty batch.
    fn has_room(&self, request: &SequenceRequest) -> bool;

    /// Adds a sequence.
    fn join(&mut self, key: Key, request: SequenceRequest) -> Result<(), EngineError>;

    /// Removes a sequence.
    fn leave(&mut self, key: Key);

    /// Advances each sequence by at most a token: by none while its long prompt is read.
    fn step(&mut self) -> Result<Vec<(Key, Token)>, EngineError>;

    /// Drops caches, after an error: a second try has more memory. Sequences stay.
    fn forget(&mut self);

    /// Removes all sequences and caches, after a panic.
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

/// A turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: String,
}

/// A failure to encode, for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EncodeError(pub String);

/// Text to tokens and back.
pub trait Vocabulary: Send + Sync {
    /// Encodes the beginning of a document, without control tokens.
    fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError>;

    /// Encodes a conversation up to the model's answer.
    fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, EncodeError>;

    /// A decoder for one stream.
    fn decoder(&self) -> Box<dyn Decoder + '_>;

    /// A decoder for a text that continues `prompt`, which it does not repeat. A text's beginning may lose a blank; a
    /// continuation keeps it.
    fn decoder_after(&self, prompt: &[u32]) -> Box<dyn Decoder + '_>;

    /// A token's bytes, perhaps part of a character.
    fn bytes(&self, token: u32) -> Vec<u8>;

    /// Whether texts contain the token; control tokens are none.
    fn is_text(&self, token: u32) -> bool;

    /// Whether a token ends an answer.
    fn ends(&self, token: u32) -> bool;
}

/// Holds back incomplete characters.
pub trait Decoder {
    /// The text that `token` completes.
    fn push(&mut self, token: u32) -> String;

    /// The rest; U+FFFD for incomplete characters.
    fn finish(&mut self) -> String;
}

/// Facts about a model for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Name in requests.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Tokens of prompt and answer together.
    pub context: usize,
    /// Number of tokens.
    pub vocabulary: usize,
    /// Bounded memory for keys and values.
    pub kv: Option<KvMemory>,
}

/// Memory for keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvMemory {
    /// The limit in bytes, for all sequences.
    pub budget: u64,
    /// Bytes of a token.
    pub bytes_per_token: u64,
    /// Tokens that the limit holds.
    pub tokens: usize,
}

/// A metric of the model's program.
#[derive(Debug, Clone, PartialEq)]
pub struct Counter {
    /// In Prometheus' alphabet, without a prefix.
    pub name: &'static str,
    /// One line.
    pub help: &'static str,
    /// Whether it only grows.
    pub total: bool,
    /// Current value.
    pub value: f64,
}

/// Called on the inference thread, so it may wait for the device.
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
