//! The indexed texts that a model with `model.longest_match` looks its own text up in.
//!
//! They are those of `data.indexes` and, behind them, the run's own training text, whose index lies beside its shards. A
//! checkpoint says by digest which texts they were in training. A run goes on with the same ones alone; to answer, a model
//! does without where they are missing, as it did in training wherever a match was hidden.

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

/// An indexed text, as a checkpoint knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexedText {
    shards: Fingerprint,
    tokens: u64,
}

impl IndexedText {
    /// The indexed texts that a checkpoint names.
    fn of(checkpoint: &Path) -> anyhow::Result<Vec<Self>> {
        let path = checkpoint.join(INDEXES);
        let read = || -> anyhow::Result<Vec<Self>> { Ok(serde_json::from_slice(&fs::read(&path)?)?) };
        read().with_context(|| format!("reading {}", path.display()))
    }
}

/// The folder of a run's own index, in its folder of data.
fn own_index(data: &Path) -> PathBuf {
    data.join("index")
}

/// The folder of the shards that a run learns from: those it names, or those it has cut into its folder of data.
pub fn own_shards(config: &Config, data: &Path) -> PathBuf {
    match (config.data.source, &config.data.path) {
        (DataSource::Shards, Some(path)) => path.clone(),
        _ => data.join("shards"),
    }
}

/// The index of a run's own training text.
pub fn own_entry(config: &Config, data: &Path) -> IndexEntry {
    IndexEntry { index: own_index(data), set: own_shards(config, data) }
}

impl Indexes {
    /// Opens them, to be searched in this order.
    pub fn open(entries: &[IndexEntry]) -> Result<Self, tokenizer::Error> {
        let folders = entries.iter().map(|entry| (&entry.index, &entry.set));
        Ok(Self(Arc::new(Corpora::open(folders, Corpora::SHORTEST)?)))
    }

    /// Opens those of the texts that the checkpoint was trained with, in their order, wherever among `candidates` they are.
    pub fn of_checkpoint(checkpoint: &Path, candidates: &[IndexEntry]) -> anyhow::Result<Self> {
        let mut found = Vec::new();
        for text in IndexedText::of(checkpoint)? {
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

    /// Whether one of them is of the text with this digest.
    pub fn have(&self, shards: Fingerprint) -> bool {
        self.texts().iter().any(|text| text.shards == shards)
    }

    /// The texts, to look positions of a data set up.
    pub fn corpora(&self) -> &Arc<Corpora> {
        &self.0
    }

    fn texts(&self) -> Vec<IndexedText> {
        let manifests = self.0.indexes().iter().map(Index::manifest);
        manifests.map(|manifest| IndexedText { shards: manifest.shards, tokens: manifest.tokens }).collect()
    }

    /// Writes into a checkpoint which texts these are.
    pub fn save(&self, checkpoint: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(&self.texts())?;
        text.push(b'\n');
        fs::write(checkpoint.join(INDEXES), text).context("writing which texts are looked up")
    }

    /// Refuses other texts than the checkpoint was trained with.
    pub fn check(&self, checkpoint: &Path) -> anyhow::Result<()> {
        let trained = IndexedText::of(checkpoint)?;
        let found = self.texts();
        if trained == found {
            return Ok(());
        }
        let told = |texts: &[IndexedText]| {
            let each = texts.iter().map(|text| format!("{} of {} tokens", text.shards, text.tokens));
            each.collect::<Vec<_>>().join(", ")
        };
        Err(BadInput(format!(
            "the indexed texts are not those that the model was trained with: they were {} and are {}; name the same ones \
             in the same order in `data.indexes`",
            told(&trained),
            told(&found)
        ))
        .into())
    }
}

impl Lookup for Indexes {
    fn begin(&self) -> Box<dyn Matching> {
        Box::new(Reading(self.0.matcher(true)))
    }
}

#[derive(Debug)]
struct Reading(Matcher);

impl Matching for Reading {
    fn follower_after(&mut self, token: u32) -> Option<u32> {
        self.0.push(token).map(|found| found.next)
    }
}
