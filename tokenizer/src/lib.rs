//! Text to tokens, and tokens to training data, without Python.
//!
//! - [`Tokenizer`] turns text into ids and back: byte-level BPE, raw bytes or characters. [`BpeTraining`] makes
//!   one from text; [`Tokenizer::load`] reads Hugging Face's `tokenizer.json` and GPT-2's two files;
//!   [`Tokenizer::save`] writes what Python's `transformers` loads.
//! - [`Tokenizer::encode_chat`] and [`Tokenizer::encode_prompt`] take conversations, [`DecodeStream`] shows text
//!   while it is generated.
//! - [`Preparation`] turns folders of text into memory-mapped shards, [`TokenDataset`] reads windows of them at
//!   any position.
//! - [`IndexBuild`] indexes a split by longest matches, [`Corpora`] tells of any context what followed its longest
//!   earlier occurrence: a second input for a model.
//! - [`dialogues`] is a corpus for a machine that has none.
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
//! - **The same input gives the same bytes**: vocabularies, shards and windows depend on neither the number of
//!   threads nor their timing, and seeds mean the same on every machine.
//! - **Text never becomes a control token.** Ids of [`SpecialTokens`] come from a chat template or by name.
//! - **Files are not trusted.** What a file may ask for is bounded by [`limits`]; no regular expression out of a
//!   file is run unless it is a [`Pattern`].
//! - **A file is complete or absent**, whatever interrupts its writing.
//! - Nothing here knows of models, devices or tensors.
//!
//! # Two encoders
//!
//! Hugging Face's `tokenizers` trains the vocabularies and runs what of the BPE family is more than byte-level
//! BPE: normalizers, prefix spaces, byte fallback. Byte-level BPE over a known pattern, which is every vocabulary
//! trained here and nearly every one published since GPT-2, runs on an encoder of this crate. It gives the same
//! ids, several times faster: a DFA where theirs backtracks, no offsets, and caches that threads do not share.

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

pub use chat::{ChatIds, ChatProblem, Message, Role, dialogues};
pub use data::{
    Align, BadRecords, Body, Compression, Corpus, CorpusFile, Cursor, Format, Input, MANIFEST, Manifest,
    MaskEntry, OnBadRecord, Outcome, Part, Preparation, Progress, ShardEntry, ShardFormat, ShardProblem,
    Split, SplitEntry, SplitRule, Targets, TokenDataset, TokenizerEntry, Window, WindowPlan,
};
pub use encode::{BpeTraining, CHAT_SPECIALS, DecodeStream, Pattern, SpecialToken, SpecialTokens, Tokenizer};
pub use error::Error;
pub use fingerprint::{Fingerprint, NotADigest};
pub use format::{Limit, Problem, limits};
pub use index::{
    Corpora, Duplicates, Features, Index, IndexBuild, IndexManifest, IndexProblem, IndexProgress, IndexStep,
    Match, Matcher, Source,
};
