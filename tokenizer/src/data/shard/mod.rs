//! Token shards: the files between preparing text and training.
//!
//! A shard has llm.c's `.bin` format: a header of 256 32-bit integers, then the token ids. A manifest describes a set
//! of shards. Each shard of conversations has a loss mask, a file of the same format with one byte per token.

mod header;
mod manifest;
mod mapped;
mod writer;

pub(crate) use header::{Content, Header, Origin};
pub use manifest::{Input, MANIFEST, Manifest, MaskEntry, ShardEntry, SplitEntry, SplitRule, TokenizerEntry};
pub(crate) use mapped::{MaskMap, ShardMap, read_across};
pub(crate) use writer::SplitWriter;

use crate::fingerprint::Fingerprint;

/// Why a shard or manifest is refused: the expected and the found value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardProblem {
    /// The file is shorter than a header.
    #[error("has {found} bytes where a shard begins with a header of {}", Header::BYTES)]
    NoHeader {
        /// Bytes of the file.
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
    /// The shard has another format version.
    #[error("is of version {found}; expected {expected}")]
    Version {
        /// The second integer.
        found: i32,
        /// The expected value.
        expected: i32,
    },
    /// The file's size does not match its header.
    #[error(
        "is truncated or overwritten: its header announces {tokens} tokens, hence {expected} bytes, but it has {found}"
    )]
    Size {
        /// Tokens in the header.
        tokens: u64,
        /// Bytes of header and tokens.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// A headerless file is empty or ends in half a token.
    #[error("has {found} bytes; a headerless file of 16-bit tokens has an even number above 0")]
    NotPairs {
        /// Bytes of the file.
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
    /// The set has another tokenizer, by its full digest.
    #[error(
        "was made with the tokenizer {found}; expected {expected}. Prepare the text again with this tokenizer, or \
         load the one in the set's folder"
    )]
    Tokenizer {
        /// The tokenizer in use.
        expected: Fingerprint,
        /// The tokenizer in the manifest.
        found: Fingerprint,
    },
    /// The shard has another tokenizer, by the mark in its header.
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
        /// Position in the shard.
        at: u64,
        /// The number of ids.
        vocabulary: u32,
    },
    /// A mask byte is neither 0 nor 1.
    #[error("has the byte {value} at position {at}; a loss mask holds 0 and 1")]
    MaskByte {
        /// The byte.
        value: u8,
        /// Position in the mask.
        at: u64,
    },
    /// The tokens have changed since they were written.
    #[error("has changed since it was written: its tokens' SHA-256 is {found}; expected {expected}")]
    Checksum {
        /// The digest in the manifest.
        expected: Fingerprint,
        /// The computed digest.
        found: Fingerprint,
    },
    /// The manifest does not parse.
    #[error("does not parse: {0}")]
    Json(#[from] serde_json::Error),
    /// The manifest has another format version.
    #[error("is a manifest of format {found}; expected {}", Manifest::FORMAT)]
    Format {
        /// The version found.
        found: u32,
    },
    /// The manifest names a file outside its folder.
    #[error("names the file {0:?}; expected a name without folders")]
    FileName(String),
    /// The split has no shards.
    #[error("has no shards in its {0} split")]
    NoShards(&'static str),
    /// Every shard is shorter than a window.
    #[error(
        "holds no window of {length} tokens and the one that follows; the longest shard has {longest} tokens"
    )]
    NoWindow {
        /// Tokens of a window.
        length: usize,
        /// Tokens in the longest shard.
        longest: u64,
    },
    /// The loss mask marks no token.
    #[error(
        "holds no target that counts: its loss mask marks no token, in this shard or any other of the split"
    )]
    NoTarget,
    /// Windows have to begin with documents, but no token opens one.
    #[error(
        "cannot be read by document: its tokenizer has no token that opens one. Read it in order or shuffled"
    )]
    NoDocumentToken,
}
