//! Small indexed sets.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use proptest::prelude::*;
use tempfile::TempDir;
use tokenizer::{
    Align, Corpora, Error, IndexBuild, IndexManifest, Preparation, Split, SplitRule, TokenDataset, Tokenizer,
    WindowPlan,
};

use crate::fixtures::{by_document, preparation, written};

/// Other ids are bytes.
pub(super) const BOS: u32 = 256;

pub(super) fn bytes() -> Tokenizer {
    Tokenizer::bytes(&["<|bos|>"])
}

/// Few letters and repetitions give long matches.
pub(super) fn documents() -> impl Strategy<Value = Vec<String>> {
    let letters = prop_oneof!["[ab]{1,60}", "[a-d]{1,40}", "a{1,80}", "(abc){1,30}"];
    let pool = prop::collection::vec(letters, 1..6);
    (pool, prop::collection::vec((0usize..6, any::<bool>(), "[a-c]{0,3}"), 1..10)).prop_map(
        |(pool, picks)| {
            let one = |(at, twice, tail): (usize, bool, String)| {
                let text = &pool[at % pool.len()];
                if twice { format!("{text}{tail}{text}") } else { format!("{text}{tail}") }
            };
            picks.into_iter().map(one).collect()
        },
    )
}

pub(super) struct Sets {
    pub(super) folder: TempDir,
}

impl Sets {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// In shards of 101 tokens.
    pub(super) fn prepare(&self, name: &str, documents: &[String], measured: &[String]) {
        let (input, out) = (self.path(&format!("{name}.jsonl")), self.path(name));
        let line = |text: &String| format!("{{\"text\": {text:?}}}\n");
        let text: String = documents.iter().chain(measured).map(line).collect();
        fs::write(&input, &text).expect("writing");
        let behind: String = measured.iter().map(line).collect();
        let share = behind.len() as f64 / text.len() as f64;
        let split = match measured {
            [] => by_document(0.0),
            _ => SplitRule::Position { val_fraction: (share - 1e-9).max(0.0) },
        };
        let made = written(&Preparation { shard_tokens: 101, ..preparation(&input, &out, split) }, &bytes());
        assert_eq!(
            (made.train.documents, made.val.documents),
            (documents.len() as u64, measured.len() as u64)
        );
    }

    pub(super) fn build(&self, name: &str) -> IndexBuild {
        IndexBuild {
            set: self.path(name),
            split: Split::Train,
            out: self.path(&format!("{name}-index")),
            memory: 128 << 10,
            chunk_tokens: Some(29),
            threads: 2,
        }
    }

    pub(super) fn open(&self, names: &[&str], shortest: usize) -> Result<Arc<Corpora>, Error> {
        let folders = names.iter().map(|name| (self.path(&format!("{name}-index")), self.path(name)));
        Corpora::open(folders, shortest).map(Arc::new)
    }

    pub(super) fn indexed(&self, names: &[&str], shortest: usize) -> Arc<Corpora> {
        for name in names {
            run(&self.build(name)).expect("the index is built");
        }
        self.open(names, shortest).expect("the indexes open")
    }

    pub(super) fn dataset(&self, name: &str, split: Split) -> TokenDataset {
        dataset(&self.path(name), split)
    }
}

pub(super) fn dataset(set: &Path, split: Split) -> TokenDataset {
    let plan = WindowPlan { length: 1, align: Align::Anywhere, shuffle: false };
    TokenDataset::open(set, split, &bytes(), plan).expect("the set opens")
}

pub(super) fn run(build: &IndexBuild) -> Result<IndexManifest, Error> {
    build.run(&AtomicBool::new(false), |_| {})
}

pub(super) fn tokens(documents: &[String]) -> Vec<u32> {
    documents.iter().flat_map(|text| std::iter::once(BOS).chain(text.bytes().map(u32::from))).collect()
}
