//! Conversations: as ids with a loss mask, and a generated corpus of them.

pub(crate) mod conversation;
pub mod dialogues;

pub use conversation::{ChatIds, ChatProblem, Message, Role};
