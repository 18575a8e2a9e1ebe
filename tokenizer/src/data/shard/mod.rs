//! Token shards: the files between preparing text and training on it.
//!
//! A shard is one of llm.c's `.bin` files: a header of 256 32-bit integers, then the token ids. A set of them is
//! described by a manifest. Beside each shard of conversations lies a file of the same shape with one byte per
//! token, the loss mask.

mod header;
mod manifest;
mod mapped;
mod writer;

pub(crate) use header::{Content, Header, Origin};
pub use manifest::{Input, MANIFEST, Manifest, MaskEntry, ShardEntry, SplitEntry, SplitRule, TokenizerEntry};
pub(crate) use mapped::{MaskMap, ShardMap, read_across};
pub(crate) use writer::SplitWriter;

use crate::fingerprint::Fingerprint;

/// Why a shard or manifest is refused: what was expected, and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardProblem {
    /// The file is shorter than a header.
    #[error("has {found} bytes where a shard begins with a header of {}", Header::BYTES)]
    NoHeader {
        /// The size of the file.
        found: u64,
    },
    /// The file is another program's.
    #[error("begins with the number {found}; expected {expected}")]
    Magic {
        /// The first integer.
        found: i32,
        /// The expected value.
        expected: &'static str,
    },
    /// The shard is of another version of the format.
    #[error("is of version {found}; expected {expected}")]
    Version {
        /// The second integer.
        found: i32,
        /// The expected value.
        expected: i32,
    },
    /// The file is shorter or longer than its header says.
    #[error(
        "is truncated or overwritten: its header announces {tokens} tokens, hence {expected} bytes, but it has {found}"
    )]
    Size {
        /// Tokens by the header.
        tokens: u64,
        /// Bytes they need, header included.
        expected: u64,
        /// The size of the file.
        found: u64,
    },
    /// A headerless file ends in half a token, or is empty.
    #[error("has {found} bytes; a headerless file of 16-bit tokens has an even number above 0")]
    NotPairs {
        /// The size of the file.
        found: u64,
    },
    /// The number of tokens differs from the manifest's.
    #[error("holds {found} tokens; the manifest states {expected}")]
    Tokens {
        /// The value in the manifest.
        expected: u64,
        /// The value in the header.
        found: u64,
    },
    /// Tokens of another vocabulary, as the whole digests show.
    #[error(
        "was made with the tokenizer {found}; expected {expected}. Prepare the text again with this tokenizer, or \
         load the one in the set's folder"
    )]
    Tokenizer {
        /// The tokenizer in use.
        expected: Fingerprint,
        /// The one in the manifest.
        found: Fingerprint,
    },
    /// Tokens of another vocabulary, as the header shows.
    #[error("carries the tokenizer mark {found}; expected {expected}. It belongs to another set")]
    TokenizerMark {
        /// The mark of the manifest's tokenizer.
        expected: String,
        /// The mark in the header.
        found: String,
    },
    /// An id is beyond the vocabulary.
    #[error("has token id {id} at position {at}; expected ids below {vocabulary}")]
    TokenId {
        /// The id.
        id: u32,
        /// Its position in the shard.
        at: u64,
        /// The number of ids.
        vocabulary: u32,
    },
    /// A mask byte that is neither 0 nor 1.
    #[error("has the byte {value} at position {at}; a loss mask holds 0 and 1")]
    MaskByte {
        /// The byte.
        value: u8,
        /// Its position.
        at: u64,
    },
    /// The tokens have changed since they were written.
    #[error("has changed since it was written: its tokens' SHA-256 is {found}; expected {expected}")]
    Checksum {
        /// The value in the manifest.
        expected: Fingerprint,
        /// Computed.
        found: Fingerprint,
    },
    /// A manifest that does not parse.
    #[error("does not parse: {0}")]
    Json(#[from] serde_json::Error),
    /// A manifest of a later version.
    #[error("is a manifest of format {found}; expected {}", Manifest::FORMAT)]
    Format {
        /// The version.
        found: u32,
    },
    /// A manifest that names a file outside its folder.
    #[error("names the file {0:?}; expected a name without folders")]
    FileName(String),
    /// The split has no shards.
    #[error("has no shards in its {0} split")]
    NoShards(&'static str),
    /// No shard has as many tokens as one window takes.
    #[error(
        "holds no window of {length} tokens and the one that follows; the longest shard has {longest} tokens"
    )]
    NoWindow {
        /// The window's length.
        length: usize,
        /// Tokens in the longest shard.
        longest: u64,
    },
    /// A loss mask that marks nothing.
    #[error(
        "holds no target that counts: its loss mask marks no token, in this shard or any other of the split"
    )]
    NoTarget,
    /// Windows that begin with documents, where their beginnings are not marked.
    #[error(
        "cannot be read by document: its tokenizer has no token that opens one. Read it in order or shuffled"
    )]
    NoDocumentToken,
}
