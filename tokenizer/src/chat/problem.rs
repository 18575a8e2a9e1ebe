//! Faults of conversations and templates.

use super::message::Role;

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
