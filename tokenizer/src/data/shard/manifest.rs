//! `manifest.json`: what a set of shards holds. It is the last file to appear, so a folder that has one is whole.

use std::{
    io::ErrorKind,
    path::{Component, Path},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ShardProblem;
use crate::{data::prepare::BadRecords, error::Error, fingerprint::Fingerprint, regular};

/// The manifest's name within a set's folder.
pub const MANIFEST: &str = "manifest.json";

/// A manifest lists thousands of shards in well under this.
const MAX_BYTES: u64 = 64 << 20;

/// The contents of a set. Nothing in it depends on when or where the set was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this file's format.
    pub format: u32,
    /// The tokenizer whose ids the shards hold.
    pub tokenizer: TokenizerEntry,
    /// The input files.
    pub inputs: Vec<Input>,
    /// The rule that divided documents.
    pub split: SplitRule,
    /// The most tokens a shard was to hold.
    pub shard_tokens: u64,
    /// Whether every shard has a loss mask.
    pub loss_mask: bool,
    /// The split to learn from.
    pub train: SplitEntry,
    /// The split to measure with.
    pub val: SplitEntry,
    /// Records of the input that could not be used.
    #[serde(default, skip_serializing_if = "BadRecords::is_empty")]
    pub bad_records: BadRecords,
}

/// The tokenizer of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerEntry {
    /// SHA-256 of its `tokenizer.json`, a copy of which lies in the folder.
    pub sha256: Fingerprint,
    /// The number of ids; all are below it.
    pub vocab_size: u32,
    /// The id that opens every document, where there is one.
    pub bos: Option<u32>,
}

/// An input file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its path within the input folder, or its own name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// The rule that divides documents between the splits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "by")]
pub enum SplitRule {
    /// A hash of each document's text decides, so that copies of a document stay together. An input of one document
    /// alone is divided by [`Position`](Self::Position).
    Document {
        /// The share that is measured with.
        val_fraction: f64,
        /// Seeds the hash.
        seed: u64,
    },
    /// The end of the input is measured with.
    Position {
        /// The share of the input's bytes.
        val_fraction: f64,
    },
}

/// One split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitEntry {
    /// Tokens in all its shards.
    pub tokens: u64,
    /// Documents that begin in it.
    pub documents: u64,
    /// Bytes of text its tokens stand for.
    pub bytes: u64,
    /// Its files in order.
    pub shards: Vec<ShardEntry>,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// Its name within the folder.
    pub file: String,
    /// The number of its tokens.
    pub tokens: u64,
    /// Documents that begin in it.
    pub documents: u64,
    /// SHA-256 of what follows its header.
    pub sha256: Fingerprint,
    /// Its loss mask.
    pub mask: Option<MaskEntry>,
}

/// One shard's loss mask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaskEntry {
    /// Its name within the folder.
    pub file: String,
    /// SHA-256 of what follows its header.
    pub sha256: Fingerprint,
}

impl SplitRule {
    /// The share that is measured with.
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
    /// The version written here.
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

    /// Reads a manifest's text.
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
