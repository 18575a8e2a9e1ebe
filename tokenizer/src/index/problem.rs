//! The reasons for which a file of an index is refused.

use super::{IndexManifest, files::Header};
use crate::fingerprint::Fingerprint;

/// Why an index is refused: what was expected, and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexProblem {
    /// The folder holds no finished index.
    #[error(
        "holds no index of longest matches: it has no index.json. Build one from a set of shards; a build that was \
         stopped goes on when it is started again"
    )]
    NoIndex,
    /// The file is shorter than a header.
    #[error(
        "has {found} bytes where a file of an index begins with a header of {}; {REBUILD}",
        Header::BYTES
    )]
    NoHeader {
        /// The size of the file.
        found: u64,
    },
    /// The file is another one, or another program's.
    #[error("does not begin like this file of an index; {REBUILD}")]
    Magic,
    /// The file is of another version of the format.
    #[error("is of format {found}; expected {}. {REBUILD}", IndexManifest::FORMAT)]
    Format {
        /// The version found.
        found: u32,
    },
    /// The file is shorter or longer than its number of entries says.
    #[error("has {found} bytes; expected {expected}. It is truncated or damaged; {REBUILD}")]
    Size {
        /// The bytes that the entries need, header included.
        expected: u64,
        /// The size of the file.
        found: u64,
    },
    /// The index was built from other shards than those it is opened with.
    #[error(
        "was built from other shards (tokens {expected}) than the set it is opened with has (tokens {found}). Name \
         the set it was built from, or build the index of this set"
    )]
    OtherShards {
        /// Identifies the tokens that were indexed.
        expected: Fingerprint,
        /// Identifies the set's tokens.
        found: Fingerprint,
    },
    /// The index states about its set what the set does not.
    #[error("differs from its set in {0}; {REBUILD}")]
    OtherSet(&'static str),
    /// Indexes that are searched together have ids of different tokenizers.
    #[error(
        "was made with the tokenizer {found}; the index listed first has {expected}. Leave one of them out"
    )]
    OtherTokenizer {
        /// The tokenizer of the first index.
        expected: Fingerprint,
        /// The tokenizer of this one.
        found: Fingerprint,
    },
    /// The contents have changed since they were written.
    #[error("has changed since it was written: its SHA-256 is {found}; expected {expected}. {REBUILD}")]
    Checksum {
        /// The value in the header, or in the manifest.
        expected: Fingerprint,
        /// The value computed, or in the header.
        found: Fingerprint,
    },
    /// An entry that no build writes.
    #[error("holds an impossible entry at position {at}: it is damaged; {REBUILD}")]
    Entry {
        /// The position.
        at: u64,
    },
    /// A manifest that does not parse.
    #[error("does not parse: {0}")]
    Json(#[from] serde_json::Error),
}

const REBUILD: &str = "remove the index and build it again";
