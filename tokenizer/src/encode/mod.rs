//! Text to ids and back, and training of vocabularies.

mod alphabet;
pub(crate) mod byte_bpe;
mod characters;
mod kind;
mod merge;
mod pipeline;
pub(crate) mod special;
pub(crate) mod split;
mod stream;
mod token_bytes;
pub(crate) mod tokenizer;
mod train_bpe;

pub use special::{CHAT_SPECIALS, SpecialToken, SpecialTokens};
pub use split::Pattern;
pub use stream::DecodeStream;
pub use tokenizer::Tokenizer;
pub use train_bpe::BpeTraining;
