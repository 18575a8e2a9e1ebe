//! Text to tokens, and tokens to training data, without Python.
//!
//! - [`Tokenizer`] encodes text and decodes ids: byte-level BPE, raw bytes or characters. [`BpeTraining`] trains one;
//!   [`Tokenizer::load`] and [`Tokenizer::save`] share files with `transformers`.
//! - [`Tokenizer::encode_chat`] and [`Tokenizer::encode_prompt`] encode conversations. [`DecodeStream`] decodes during
//!   generation.
//! - [`Preparation`] turns text into memory-mapped shards; [`TokenDataset`] reads windows of them.
//! - [`IndexBuild`] indexes a split. [`Corpora`] finds the longest earlier occurrence of a context.
//! - [`dialogues`] generates a corpus.
//!
//! ```
//! use tokenizer::{BpeTraining, DecodeStream, Tokenizer};
//!
//! let text = "the river rises, the river widens, the river falls. ".repeat(20);
//! let training = BpeTraining { vocab_size: 280, ..BpeTraining::default() };
//! let tokenizer: Tokenizer = training.train([Ok(text)])?;
//!
//! let ids = tokenizer.encode("the river 🌊")?;
//! let mut stream: DecodeStream = tokenizer.decode_stream();
//! let mut shown = String::new();
//! for id in &ids {
//!     shown += &stream.push(*id)?;
//! }
//! assert_eq!(shown + &stream.finish()?, "the river 🌊");
//! # Ok::<(), tokenizer::Error>(())
//! ```
//!
//! # Promises
//!
//! - **Equal input gives equal bytes**, whatever threads, timing and machine.
//! - **Text never becomes a control token.** [`SpecialTokens`] come from a chat template or by name.
//! - **Files are not trusted.** [`limits`] bounds their cost; of regular expressions only a [`Pattern`] runs.
//! - **A file is complete or absent**, even if its writing was interrupted.
//! - The crate knows no models, devices or tensors.
//!
//! # Two encoders
//!
//! This crate's encoder runs byte-level BPE over a known pattern: nearly every vocabulary since GPT-2. It gives the ids
//! of Hugging Face's `tokenizers` several times faster, by a DFA, no offsets, and no cache shared by threads. Their
//! code trains vocabularies and runs the rest of the BPE family.

mod chat;
mod data;
mod encode;
mod error;
mod fingerprint;
mod format;
mod index;
mod lock;
mod permutation;
mod regular;

pub use chat::{ChatFormat, ChatIds, ChatProblem, Message, Role, UnknownFormat, dialogues};
pub use data::{
    Align, BadRecords, Body, Compression, Corpus, CorpusFile, Cursor, Format, Input, MANIFEST, Manifest,
    OnBadRecord, Outcome, Part, Preparation, Progress, ShardEntry, ShardFormat, ShardProblem, SideEntry,
    Split, SplitEntry, SplitRule, Targets, TokenDataset, TokenizerEntry, Window, WindowPlan,
};
pub use encode::{BpeTraining, CHAT_SPECIALS, DecodeStream, Pattern, SpecialToken, SpecialTokens, Tokenizer};
pub use error::Error;
pub use fingerprint::{Fingerprint, NotADigest};
pub use format::{Limit, LlamaCpp, NotInLlamaCpp, Problem, limits};
pub use index::{
    Corpora, Duplicates, Features, Index, IndexBuild, IndexManifest, IndexProblem, IndexProgress, IndexStep,
    Match, Matcher, Source,
};
