//! Token shards, between preparation and training.
//!
//! A shard has llm.c's `.bin` format: a header, then ids. So do loss masks and documents' beginnings. A manifest
//! describes a set.

mod header;
mod manifest;
mod mapped;
mod starts;
mod writer;

pub(crate) use header::{Content, Header, Origin, ShardFile};
pub use manifest::{Input, MANIFEST, Manifest, ShardEntry, SideEntry, SplitEntry, SplitRule, TokenizerEntry};
pub(crate) use mapped::{MaskMap, ShardMap, read_across};
pub(crate) use starts::Starts;
pub(crate) use writer::SplitWriter;

use crate::fingerprint::Fingerprint;

/// Why a shard or manifest is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardProblem {
    /// A file shorter than a header.
    #[error("has {found} bytes where a shard begins with a header of {}", Header::BYTES)]
    NoHeader {
        /// File bytes.
        found: u64,
    },
    /// Another program's file.
    #[error("begins with the number {found}; expected {expected}")]
    Magic {
        /// The first integer.
        found: i32,
        /// Expected value.
        expected: &'static str,
    },
    /// Another format version.
    #[error("is of version {found}; expected {expected}")]
    Version {
        /// The second integer.
        found: i32,
        /// Expected value.
        expected: i32,
    },
    /// A size that contradicts the header.
    #[error(
        "is truncated or overwritten: its header announces {tokens} tokens, hence {expected} bytes, but it has {found}"
    )]
    Size {
        /// Tokens in the header.
        tokens: u64,
        /// Header and tokens.
        expected: u64,
        /// File bytes.
        found: u64,
    },
    /// An empty headerless file, or one with half a token.
    #[error("has {found} bytes; a headerless file of 16-bit tokens has an even number above 0")]
    NotPairs {
        /// File bytes.
        found: u64,
    },
    /// A number of tokens other than the manifest's.
    #[error("holds {found} tokens; the manifest states {expected}")]
    Tokens {
        /// In the manifest.
        expected: u64,
        /// In the header.
        found: u64,
    },
    /// Another tokenizer, by digest.
    #[error(
        "was made with the tokenizer {found}; expected {expected}. Prepare the text again with this tokenizer, or \
         load the one in the set's folder"
    )]
    Tokenizer {
        /// Tokenizer in use.
        expected: Fingerprint,
        /// Tokenizer in the manifest.
        found: Fingerprint,
    },
    /// Another tokenizer, by the header's mark.
    #[error("carries the tokenizer mark {found}; expected {expected}. It belongs to another set")]
    TokenizerMark {
        /// From the manifest.
        expected: String,
        /// From the header.
        found: String,
    },
    /// An id beyond the vocabulary.
    #[error("has token id {id} at position {at}; expected ids below {vocabulary}")]
    TokenId {
        /// The id.
        id: u32,
        /// In the shard.
        at: u64,
        /// Number of ids.
        vocabulary: u32,
    },
    /// A mask byte other than 0 and 1.
    #[error("has the byte {value} at position {at}; a loss mask holds 0 and 1")]
    MaskByte {
        /// The byte.
        value: u8,
        /// In the mask.
        at: u64,
    },
    /// Beginnings out of order or beyond the shard.
    #[error("lists the beginning {at} out of order, or beyond the shard's {tokens} tokens")]
    Start {
        /// The position.
        at: u32,
        /// Tokens of the shard.
        tokens: u64,
    },
    /// Tokens changed since writing.
    #[error("has changed since it was written: its tokens' SHA-256 is {found}; expected {expected}")]
    Checksum {
        /// Digest in the manifest.
        expected: Fingerprint,
        /// Computed digest.
        found: Fingerprint,
    },
    /// An unparsable manifest.
    #[error("does not parse: {0}")]
    Json(#[from] serde_json::Error),
    /// A manifest of another version.
    #[error("is a manifest of format {found}; expected {}", Manifest::FORMAT)]
    Format {
        /// Version found.
        found: u32,
    },
    /// A file outside the manifest's folder.
    #[error("names the file {0:?}; expected a name without folders")]
    FileName(String),
    /// A split without shards.
    #[error("has no shards in its {0} split")]
    NoShards(&'static str),
    /// Shards shorter than a window.
    #[error(
        "holds no window of {length} tokens and the one that follows; the longest shard has {longest} tokens"
    )]
    NoWindow {
        /// Window length.
        length: usize,
        /// In the longest shard.
        longest: u64,
    },
    /// A loss mask that marks nothing.
    #[error(
        "holds no target that counts: its loss mask marks no token, in this shard or any other of the split"
    )]
    NoTarget,
    /// Windows by document, without an opening token.
    #[error(
        "cannot be read by document: its tokenizer has no token that opens one. Read it in order or shuffled"
    )]
    NoDocumentToken,
}
