//! Conversations: encoding with a loss mask, and a generated corpus.

pub(crate) mod conversation;
pub mod dialogues;
pub(crate) mod published;

pub use conversation::{ChatIds, ChatProblem, Message, Role};
