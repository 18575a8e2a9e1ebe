//! `manifest.json`: the contents of a set of shards. It is written last, so a folder that has one is complete.

use std::{
    io::ErrorKind,
    path::{Component, Path},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ShardProblem;
use crate::{data::prepare::BadRecords, error::Error, fingerprint::Fingerprint, regular};

/// Name of the manifest in a set's folder.
pub const MANIFEST: &str = "manifest.json";

/// A manifest of thousands of shards is far smaller.
const MAX_BYTES: u64 = 64 << 20;

/// The manifest of a set. It does not depend on the time or place of preparation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the manifest's format.
    pub format: u32,
    /// The tokenizer of the shards' ids.
    pub tokenizer: TokenizerEntry,
    /// The input files.
    pub inputs: Vec<Input>,
    /// How documents were divided between the splits.
    pub split: SplitRule,
    /// The most tokens of a shard.
    pub shard_tokens: u64,
    /// Whether the shards have loss masks.
    pub loss_mask: bool,
    /// The training split.
    pub train: SplitEntry,
    /// The validation split.
    pub val: SplitEntry,
    /// Records that were left out.
    #[serde(default, skip_serializing_if = "BadRecords::is_empty")]
    pub bad_records: BadRecords,
}

/// The tokenizer of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerEntry {
    /// SHA-256 of its `tokenizer.json`; the set's folder holds a copy.
    pub sha256: Fingerprint,
    /// The number of ids; all ids are below it.
    pub vocab_size: u32,
    /// The id that opens every document, if any.
    pub bos: Option<u32>,
}

/// An input file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Path within the input folder, or the file's own name.
    pub name: String,
    /// Bytes of the contents.
    pub bytes: u64,
}

/// The rule that divides documents between the splits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "by")]
pub enum SplitRule {
    /// By a hash of each document's text, so that copies stay together. An input of a single document is divided by
    /// [`Position`](Self::Position).
    Document {
        /// The share for validation.
        val_fraction: f64,
        /// Seeds the hash.
        seed: u64,
    },
    /// The end of the input is for validation.
    Position {
        /// The share of the input's bytes.
        val_fraction: f64,
    },
}

/// One split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitEntry {
    /// Tokens in all shards.
    pub tokens: u64,
    /// Documents that begin in the split.
    pub documents: u64,
    /// Bytes of the tokens' text.
    pub bytes: u64,
    /// The shards in order.
    pub shards: Vec<ShardEntry>,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// File name in the set's folder.
    pub file: String,
    /// The number of tokens.
    pub tokens: u64,
    /// Documents that begin in the shard.
    pub documents: u64,
    /// SHA-256 of the contents after the header.
    pub sha256: Fingerprint,
    /// The shard's loss mask.
    pub mask: Option<MaskEntry>,
}

/// A shard's loss mask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaskEntry {
    /// File name in the set's folder.
    pub file: String,
    /// SHA-256 of the contents after the header.
    pub sha256: Fingerprint,
}

impl SplitRule {
    /// The share for validation.
    pub fn val_fraction(self) -> f64 {
        match self {
            Self::Document { val_fraction, .. } | Self::Position { val_fraction } => val_fraction,
        }
    }
}

impl SplitEntry {
    /// Identifies the tokens of all shards.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut digest = Sha256::new();
        self.shards.iter().for_each(|shard| digest.update(shard.sha256.to_string()));
        Fingerprint::finish(digest)
    }
}

impl Manifest {
    /// The version that this crate writes.
    pub const FORMAT: u32 = 1;

    /// Reads the manifest of the set in `folder`.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let path = folder.join(MANIFEST);
        let json = match regular::read(&path, MAX_BYTES) {
            Err(Error::Read { cause, .. }) if cause.kind() == ErrorKind::NotFound => {
                return Err(Error::NoSet { path: folder.to_owned() });
            }
            json => json?,
        };
        Self::parse(&json).map_err(|problem| Error::Shard { path, problem })
    }

    /// Parses and checks a manifest.
    pub fn parse(json: &[u8]) -> Result<Self, ShardProblem> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } = serde_json::from_slice(json)?;
        if format != Self::FORMAT {
            return Err(ShardProblem::Format { found: format });
        }
        let manifest: Self = serde_json::from_slice(json)?;
        for shard in manifest.train.shards.iter().chain(&manifest.val.shards) {
            for file in std::iter::once(&shard.file).chain(shard.mask.as_ref().map(|mask| &mask.file)) {
                let mut parts = Path::new(file).components();
                if !matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == file.as_str())
                {
                    return Err(ShardProblem::FileName(file.clone()));
                }
            }
        }
        Ok(manifest)
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("strings and numbers always serialise");
        json.push(b'\n');
        json
    }
}
