//! Faults of index files.

use super::format::{FORMAT, HEADER_BYTES};
use crate::fingerprint::Fingerprint;

/// Why an index is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexProblem {
    /// A folder without a finished index.
    #[error(
        "holds no index of longest matches: it has no index.json. Build one from a set of shards; a build that was \
         stopped goes on when it is started again"
    )]
    NoIndex,
    /// A file shorter than a header.
    #[error("has {found} bytes where a file of an index begins with a header of {}; {REBUILD}", HEADER_BYTES)]
    NoHeader {
        /// File bytes.
        found: u64,
    },
    /// Another kind, or another program's file.
    #[error("does not begin like this file of an index; {REBUILD}")]
    Magic,
    /// Another format version.
    #[error("is of format {found}; expected {}. {REBUILD}", FORMAT)]
    Format {
        /// Version found.
        found: u32,
    },
    /// A size that contradicts the number of entries.
    #[error("has {found} bytes; expected {expected}. It is truncated or damaged; {REBUILD}")]
    Size {
        /// Header and entries.
        expected: u64,
        /// File bytes.
        found: u64,
    },
    /// Other shards than the set's.
    #[error(
        "was built from other shards (tokens {expected}) than the set it is opened with has (tokens {found}). Name \
         the set it was built from, or build the index of this set"
    )]
    OtherShards {
        /// Indexed tokens.
        expected: Fingerprint,
        /// The set's tokens.
        found: Fingerprint,
    },
    /// Index and set that disagree.
    #[error("differs from its set in {0}; {REBUILD}")]
    OtherSet(&'static str),
    /// Two tokenizers.
    #[error(
        "was made with the tokenizer {found}; the index listed first has {expected}. Leave one of them out"
    )]
    OtherTokenizer {
        /// Of the first index.
        expected: Fingerprint,
        /// Of this index.
        found: Fingerprint,
    },
    /// Contents changed since writing.
    #[error("has changed since it was written: its SHA-256 is {found}; expected {expected}. {REBUILD}")]
    Checksum {
        /// From header or manifest.
        expected: Fingerprint,
        /// Computed, or from the header.
        found: Fingerprint,
    },
    /// An entry that no build writes.
    #[error("holds an impossible entry at position {at}: it is damaged; {REBUILD}")]
    Entry {
        /// Its position.
        at: u64,
    },
    /// An unparsable manifest.
    #[error("does not parse: {0}")]
    Json(#[from] serde_json::Error),
}

const REBUILD: &str = "remove the index and build it again";
