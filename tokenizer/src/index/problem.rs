//! Reasons to refuse a file of an index.

use super::{IndexManifest, files::Header};
use crate::fingerprint::Fingerprint;

/// Why an index is refused: the expected and the found value.
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
        /// Bytes of the file.
        found: u64,
    },
    /// The file is of another kind or program.
    #[error("does not begin like this file of an index; {REBUILD}")]
    Magic,
    /// The file has another format version.
    #[error("is of format {found}; expected {}. {REBUILD}", IndexManifest::FORMAT)]
    Format {
        /// The version found.
        found: u32,
    },
    /// The file's size does not match its number of entries.
    #[error("has {found} bytes; expected {expected}. It is truncated or damaged; {REBUILD}")]
    Size {
        /// Bytes of header and entries.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// The index was not built from the shards of the set.
    #[error(
        "was built from other shards (tokens {expected}) than the set it is opened with has (tokens {found}). Name \
         the set it was built from, or build the index of this set"
    )]
    OtherShards {
        /// Fingerprint of the indexed tokens.
        expected: Fingerprint,
        /// Fingerprint of the set's tokens.
        found: Fingerprint,
    },
    /// The index and its set disagree.
    #[error("differs from its set in {0}; {REBUILD}")]
    OtherSet(&'static str),
    /// Two indexes use different tokenizers.
    #[error(
        "was made with the tokenizer {found}; the index listed first has {expected}. Leave one of them out"
    )]
    OtherTokenizer {
        /// The tokenizer of the first index.
        expected: Fingerprint,
        /// The tokenizer of this index.
        found: Fingerprint,
    },
    /// The contents have changed since they were written.
    #[error("has changed since it was written: its SHA-256 is {found}; expected {expected}. {REBUILD}")]
    Checksum {
        /// The digest in the header or the manifest.
        expected: Fingerprint,
        /// The digest computed, or in the header.
        found: Fingerprint,
    },
    /// An entry that no build writes.
    #[error("holds an impossible entry at position {at}: it is damaged; {REBUILD}")]
    Entry {
        /// Position of the entry.
        at: u64,
    },
    /// The manifest does not parse.
    #[error("does not parse: {0}")]
    Json(#[from] serde_json::Error),
}

const REBUILD: &str = "remove the index and build it again";
