//! Conversations: encoding with a loss mask, and a generated corpus.

mod chatml;
mod conversation;
pub mod dialogues;
pub(crate) mod format;
pub(crate) mod message;
pub(crate) mod problem;
pub(crate) mod published;
pub(crate) mod template;

pub use conversation::ChatIds;
pub use format::{ChatFormat, UnknownFormat};
pub use message::{Message, Role};
pub use problem::ChatProblem;
