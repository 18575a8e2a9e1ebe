//! `manifest.json`: a set's contents. Written last: its folder is complete.

use std::{
    io::ErrorKind,
    path::{Component, Path},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ShardProblem;
use crate::{data::prepare::BadRecords, error::Error, fingerprint::Fingerprint, regular};

/// The manifest's name.
pub const MANIFEST: &str = "manifest.json";

const MAX_BYTES: u64 = 64 << 20;

/// A set's manifest, independent of time and place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version.
    pub format: u32,
    /// The ids' tokenizer.
    pub tokenizer: TokenizerEntry,
    /// Input files.
    pub inputs: Vec<Input>,
    /// Division into splits.
    pub split: SplitRule,
    /// Most tokens per shard.
    pub shard_tokens: u64,
    /// Whether shards have loss masks.
    pub loss_mask: bool,
    /// Training split.
    pub train: SplitEntry,
    /// Validation split.
    pub val: SplitEntry,
    /// Records left out.
    #[serde(default, skip_serializing_if = "BadRecords::is_empty")]
    pub bad_records: BadRecords,
}

/// A set's tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerEntry {
    /// Digest of `tokenizer.json`; the set holds a copy.
    pub sha256: Fingerprint,
    /// All ids are below.
    pub vocab_size: u32,
    /// Opens documents.
    pub bos: Option<u32>,
    /// Closes documents of text, where it is another token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos: Option<u32>,
}

/// An input file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Path within the input folder, or the file name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// Division of documents into splits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "by")]
pub enum SplitRule {
    /// By a hash of each document's text: copies stay together. A single document is divided by
    /// [`Position`](Self::Position).
    Document {
        /// Share for validation.
        val_fraction: f64,
        /// Seeds the hash.
        seed: u64,
    },
    /// The end of the input validates.
    Position {
        /// Share of the bytes.
        val_fraction: f64,
    },
}

/// One split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitEntry {
    /// Tokens in all shards.
    pub tokens: u64,
    /// Documents that begin here.
    pub documents: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Shards in order.
    pub shards: Vec<ShardEntry>,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// Name in the set's folder.
    pub file: String,
    /// Its tokens.
    pub tokens: u64,
    /// Documents that begin here.
    pub documents: u64,
    /// Digest after the header.
    pub sha256: Fingerprint,
    /// Loss mask.
    pub mask: Option<SideEntry>,
    /// Beginnings of documents and questions; older sets have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts: Option<SideEntry>,
}

/// A file beside a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SideEntry {
    /// Name in the set's folder.
    pub file: String,
    /// Digest after the header.
    pub sha256: Fingerprint,
}

impl SplitRule {
    /// Share for validation.
    pub fn val_fraction(self) -> f64 {
        match self {
            Self::Document { val_fraction, .. } | Self::Position { val_fraction } => val_fraction,
        }
    }
}

impl SplitEntry {
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut digest = Sha256::new();
        self.shards.iter().for_each(|shard| digest.update(shard.sha256.to_string()));
        Fingerprint::finish(digest)
    }
}

impl Manifest {
    /// Version written here.
    pub const FORMAT: u32 = 1;

    /// Reads the manifest in `folder`.
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
            let beside = [&shard.mask, &shard.starts].into_iter().flatten().map(|entry| &entry.file);
            for file in std::iter::once(&shard.file).chain(beside) {
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
