//! Indexed texts for `model.longest_match`: `data.indexes`, then the run's training text.
//!
//! A checkpoint stores their digests. Resuming needs the same texts
//! (`listed_texts_are_looked_up_too_and_must_not_change`). Without them a model answers as if it found no match, with a
//! warning (`a_model_without_its_index_answers_with_a_warning`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use models::{Lookup, Matching};
use serde::{Deserialize, Serialize};
use tokenizer::{Corpora, Fingerprint, Index, Matcher};

use crate::BadInput;
use crate::checkpoint::INDEXES;
use crate::config::{Config, DataSource, IndexEntry};

/// Opened indexes.
#[derive(Debug, Clone)]
pub struct Indexes(Arc<Corpora>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexedText {
    shards: Fingerprint,
    tokens: u64,
}

impl IndexedText {
    fn from_checkpoint(checkpoint: &Path) -> anyhow::Result<Vec<Self>> {
        let path = checkpoint.join(INDEXES);
        let read = || -> anyhow::Result<Vec<Self>> {
            Ok(serde_json::from_slice(&durable::regular::read(&path, MAX_BYTES)?)?)
        };
        read().with_context(|| format!("reading {}", path.display()))
    }
}

const MAX_BYTES: u64 = 4 << 20;

fn own_index(data: &Path) -> PathBuf {
    data.join("index")
}

/// The configured shards, or `shards` in the data folder.
pub fn own_shards(config: &Config, data: &Path) -> PathBuf {
    match (config.data.source, &config.data.path) {
        (DataSource::Shards, Some(path)) => path.clone(),
        _ => data.join("shards"),
    }
}

/// The run's own training text.
pub fn own_entry(config: &Config, data: &Path) -> IndexEntry {
    IndexEntry { index: own_index(data), set: own_shards(config, data) }
}

impl Indexes {
    /// Opens indexes, searched in this order.
    pub fn open(entries: &[IndexEntry]) -> Result<Self, tokenizer::Error> {
        let folders = entries.iter().map(|entry| (&entry.index, &entry.set));
        Ok(Self(Arc::new(Corpora::open(folders, Corpora::SHORTEST)?)))
    }

    /// Opens a checkpoint's texts from `candidates`, in its order.
    pub fn from_checkpoint(checkpoint: &Path, candidates: &[IndexEntry]) -> anyhow::Result<Self> {
        let mut found = Vec::new();
        for text in IndexedText::from_checkpoint(checkpoint)? {
            let mut problems = Vec::new();
            let entry =
                candidates.iter().find(|candidate| match Index::open(&candidate.index, &candidate.set) {
                    Ok(index) if index.manifest().shards == text.shards => true,
                    Ok(_other) => {
                        problems.push(format!("{} is of another text", candidate.index.display()));
                        false
                    }
                    Err(error) => {
                        problems.push(error.to_string());
                        false
                    }
                });

            let entry = entry.ok_or_else(|| {
                BadInput(format!(
                    "there is no index of the text {} of {} tokens ({}); name one in `data.indexes`",
                    text.shards,
                    text.tokens,
                    if problems.is_empty() { "none is known".to_owned() } else { problems.join("; ") }
                ))
            })?;
            found.push(entry.clone());
        }
        Ok(Self::open(&found)?)
    }

    /// Whether this text is indexed.
    pub fn have(&self, shards: Fingerprint) -> bool {
        self.texts().iter().any(|text| text.shards == shards)
    }

    /// The open texts.
    pub fn corpora(&self) -> &Arc<Corpora> {
        &self.0
    }

    fn texts(&self) -> Vec<IndexedText> {
        let manifests = self.0.indexes().iter().map(Index::manifest);
        manifests.map(|manifest| IndexedText { shards: manifest.shards, tokens: manifest.tokens }).collect()
    }

    /// Writes the identities into a checkpoint.
    pub fn save(&self, checkpoint: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(&self.texts())?;
        text.push(b'\n');
        fs::write(checkpoint.join(INDEXES), text).context("writing which texts are looked up")
    }

    /// Fails unless the checkpoint was trained with these texts.
    pub fn check(&self, checkpoint: &Path) -> anyhow::Result<()> {
        let trained = IndexedText::from_checkpoint(checkpoint)?;
        let found = self.texts();
        if trained == found {
            return Ok(());
        }
        let listed = |texts: &[IndexedText]| {
            let each = texts.iter().map(|text| format!("{} of {} tokens", text.shards, text.tokens));
            each.collect::<Vec<_>>().join(", ")
        };
        Err(BadInput(format!(
            "the indexed texts are not those that the model was trained with: they were {} and are {}; name the same ones \
             in the same order in `data.indexes`",
            listed(&trained),
            listed(&found)
        ))
        .into())
    }
}

impl Lookup for Indexes {
    fn begin(&self) -> Box<dyn Matching> {
        Box::new(IndexMatching(self.0.matcher(true)))
    }
}

#[derive(Debug)]
struct IndexMatching(Matcher);

impl Matching for IndexMatching {
    fn follower_after(&mut self, token: u32) -> Option<u32> {
        self.0.push(token).map(|found| found.next)
    }
}
