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
use tokenizer::{Corpora, Fingerprint, Matcher};

use crate::BadInput;
use crate::checkpoint::INDEXES;
use crate::config::{Config, DataSource};

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

/// The folder of a run's own index, in its folder of data.
pub fn own_index(data: &Path) -> PathBuf {
    data.join("index")
}

/// The folder of the shards that a run learns from: those it names, or those it has cut into its folder of data.
pub fn own_shards(config: &Config, data: &Path) -> PathBuf {
    match (config.data.source, &config.data.path) {
        (DataSource::Shards, Some(path)) => path.clone(),
        _ => data.join("shards"),
    }
}

impl Indexes {
    /// Opens what a run with this configuration and folder of data looks up, in the order of search.
    pub fn open(config: &Config, data: &Path) -> anyhow::Result<Self> {
        let listed = config.data.indexes.iter().map(|listed| (listed.index.clone(), listed.set.clone()));
        let own = (own_index(data), own_shards(config, data));
        let corpora = Corpora::open(listed.chain([own]), Corpora::SHORTEST)?;
        Ok(Self(Arc::new(corpora)))
    }

    /// The texts, to look positions of a data set up.
    pub fn corpora(&self) -> &Arc<Corpora> {
        &self.0
    }

    fn texts(&self) -> Vec<IndexedText> {
        let manifests = self.0.indexes().iter().map(tokenizer::Index::manifest);
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
        let path = checkpoint.join(INDEXES);
        let read = || -> anyhow::Result<Vec<IndexedText>> { Ok(serde_json::from_slice(&fs::read(&path)?)?) };
        let trained = read().with_context(|| format!("reading {}", path.display()))?;
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
