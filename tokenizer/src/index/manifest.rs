//! `index.json`: an index's inputs and checksums. Written last: its folder is complete.

use std::{io::ErrorKind, path::Path};

use serde::{Deserialize, Serialize};

use super::{IndexProblem, format::FORMAT};
use crate::{
    data::{
        dataset::Split,
        shard::{Manifest, TokenizerEntry},
    },
    error::Error,
    fingerprint::Fingerprint,
    regular,
};

pub(super) const NAME: &str = "index.json";

const MAX_BYTES: u64 = 1 << 20;

/// An index's manifest, independent of time, place and memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexManifest {
    /// All files' format version.
    pub format: u32,
    /// The ids' tokenizer.
    pub tokenizer: TokenizerEntry,
    /// Indexed split.
    pub split: Split,
    /// The split's tokens.
    pub tokens: u64,
    /// The split's [`TokenDataset::fingerprint`](crate::TokenDataset::fingerprint).
    pub shards: Fingerprint,
    /// Digest of `order.bin`'s entries.
    pub order: Fingerprint,
    /// Digest of `followers.bin`'s entries.
    pub followers: Fingerprint,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IndexPlan {
    pub(super) format: u32,
    pub(super) tokenizer: TokenizerEntry,
    pub(super) split: Split,
    pub(super) tokens: u64,
    pub(super) shards: Fingerprint,
}

impl IndexPlan {
    pub(super) fn new(manifest: &Manifest, split: Split) -> Self {
        let entry = split.entry(manifest);
        let (tokenizer, tokens, shards) = (manifest.tokenizer.clone(), entry.tokens, entry.fingerprint());
        Self { format: IndexManifest::FORMAT, tokenizer, split, tokens, shards }
    }

    pub(super) fn mark(&self) -> [u8; 8] {
        self.shards.short()
    }

    pub(super) fn finish(self, order: Fingerprint, followers: Fingerprint) -> IndexManifest {
        let Self { format, tokenizer, split, tokens, shards } = self;
        IndexManifest { format, tokenizer, split, tokens, shards, order, followers }
    }

    pub(super) fn check(&self, folder: &Path, made: &IndexManifest) -> Result<(), Error> {
        let refuse = |problem| Err(Error::index(folder.join(NAME), problem));
        if made.shards != self.shards {
            return refuse(IndexProblem::OtherShards { expected: made.shards, found: self.shards });
        }
        let stated = made.clone();
        let differences = [
            (stated.tokenizer != self.tokenizer, "its tokenizer"),
            (stated.tokens != self.tokens, "its number of tokens"),
            (stated.split != self.split, "its split"),
        ];
        let first = differences.into_iter().find_map(|(differs, what)| differs.then_some(what));
        first.map_or(Ok(()), |what| refuse(IndexProblem::OtherSet(what)))
    }
}

impl IndexManifest {
    /// Version written here.
    pub const FORMAT: u32 = FORMAT;

    /// Reads the manifest in `folder`.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let path = folder.as_ref().join(NAME);
        let json = match regular::read(&path, MAX_BYTES) {
            Err(Error::Read { cause, .. }) if cause.kind() == ErrorKind::NotFound => {
                return Err(Error::index(folder.as_ref(), IndexProblem::NoIndex));
            }
            json => json?,
        };
        let refused = |cause: serde_json::Error| Error::index(&path, cause);
        let Format { format } = serde_json::from_slice(&json).map_err(refused)?;
        if format != Self::FORMAT {
            return Err(Error::index(path, IndexProblem::Format { found: format }));
        }
        serde_json::from_slice(&json).map_err(refused)
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("strings and numbers always serialise");
        json.push(b'\n');
        json
    }
}
