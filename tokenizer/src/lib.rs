//! Byte-pair tokenizers and token shards.

mod alphabet;
mod atomic;
mod byte_bpe;
mod characters;
mod chat;
mod component;
mod config;
mod corpus;
mod dataset;
mod definition;
pub mod dialogues;
mod error;
mod fingerprint;
mod kind;
pub mod limits;
mod load;
mod merge;
mod permutation;
mod pipeline;
mod prepare;
mod problem;
mod shard;
mod special;
mod split;
mod stream;
mod tokenizer;
mod train_bpe;

pub use chat::{ChatIds, ChatProblem, Message, Role};
pub use corpus::{Body, Corpus, CorpusFile, Format, Part};
pub use dataset::{Align, Cursor, ShardFormat, Split, TokenDataset, Window, WindowPlan};
pub use error::Error;
pub use fingerprint::{Fingerprint, NotADigest};
pub use prepare::{Outcome, Preparation, Progress};
pub use problem::{Limit, Problem};
pub use shard::{
    Input, MANIFEST, Manifest, MaskEntry, ShardEntry, ShardProblem, SplitEntry, SplitRule, TokenizerEntry,
};
pub use special::{CHAT_SPECIALS, SpecialToken, SpecialTokens};
pub use split::Pattern;
pub use stream::DecodeStream;
pub use tokenizer::Tokenizer;
pub use train_bpe::BpeTraining;
