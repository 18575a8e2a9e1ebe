//! Sequences of one text or of a mixture, by their number.

use std::{path::Path, sync::Arc, sync::atomic::AtomicBool};

use runs::Indexes;
use runs::config::Config;
use sha2::{Digest, Sha256};
use tokenizer::{
    Cursor, Error, Features, Fingerprint, ShardProblem, Split, Targets, TokenDataset, Tokenizer, WindowPlan,
};

use super::corpus::{Data, Source};
use super::mixture::Mixture;
use super::windows::MicroBatch;

#[derive(Debug)]
pub(super) struct Sequences {
    sources: Vec<Arc<TokenDataset>>,
    names: Vec<(String, f64)>,
    mixture: Mixture,
    /// Of a single source.
    features: Option<Features<Arc<TokenDataset>>>,
    none: i32,
}

#[derive(Debug)]
pub(crate) struct SourceUse {
    pub(crate) name: String,
    pub(crate) share: f64,
    pub(crate) tokens: u64,
    pub(crate) sequences: u64,
}

impl Sequences {
    pub(super) fn open(
        config: &Config,
        data: &Data,
        indexes: Option<&Indexes>,
        split: Split,
        shuffle: bool,
    ) -> Result<Self, Error> {
        let plan = Data::windows(config, shuffle);
        let of_its_own = data.validation.as_ref().filter(|_| split == Split::Val);
        let (sources, names) = if let Some(set) = of_its_own {
            (vec![Arc::new(measured(set, &data.tokenizer, plan)?)], vec![(String::new(), 1.0)])
        } else {
            let open = |source: &Source| {
                TokenDataset::open(&source.shards, split, &data.tokenizer, plan).map(Arc::new)
            };
            let sources = data.sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            (sources, data.sources.iter().map(|source| (source.name.clone(), source.weight)).collect())
        };
        let features = |indexes: &Indexes| indexes.corpora().features(Arc::clone(&sources[0]));
        let features = indexes.map(features).transpose()?;
        let mixture = Mixture::new(&names.iter().map(|(_, weight)| *weight).collect::<Vec<_>>());
        Ok(Self { sources, names, mixture, features, none: config.model.vocab_size as i32 })
    }

    pub(super) fn first(&self) -> &Arc<TokenDataset> {
        &self.sources[0]
    }

    pub(super) fn count(&self) -> u64 {
        self.sources.iter().map(|source| source.windows()).sum()
    }

    pub(super) fn tokens(&self) -> u64 {
        self.sources.iter().map(|source| source.tokens()).sum()
    }

    pub(super) fn targets(&self) -> Targets {
        let add = |sum: Targets, more: Targets| Targets {
            counted: sum.counted + more.counted,
            seen: sum.seen + more.seen,
        };
        self.sources.iter().map(|source| source.targets()).fold(Targets::default(), add)
    }

    pub(super) fn fingerprint(&self) -> Result<Fingerprint, Error> {
        if let [source] = &self.sources[..] {
            return source.fingerprint();
        }
        let mut digest = Sha256::new();
        for (source, (_, weight)) in self.sources.iter().zip(&self.names) {
            digest.update(source.fingerprint()?.to_string());
            digest.update(weight.to_le_bytes());
        }
        Ok(Fingerprint::finish(digest))
    }

    pub(super) fn cursor(&self, start: Cursor, number: u64) -> Cursor {
        match &self.sources[..] {
            [source] => source.skip(start, number),
            _ => Cursor { index: number, ..start },
        }
    }

    pub(super) fn place(&self, start: Cursor, number: u64) -> (usize, Cursor) {
        let (source, before) = self.mixture.place(number);
        (source, self.sources[source].skip(start, before))
    }

    pub(super) fn place_in_order(&self, start: Cursor, mut number: u64) -> (usize, Cursor) {
        for (source, sequences) in self.sources.iter().map(|source| source.windows()).enumerate() {
            if number < sequences {
                return (source, self.sources[source].skip(start, number));
            }
            number -= sequences;
        }
        (0, start)
    }

    pub(super) fn uses(&self) -> Vec<SourceUse> {
        let each = self.sources.iter().zip(&self.names).enumerate();
        let used = |(at, (source, (name, _))): (usize, (&Arc<TokenDataset>, &(String, f64)))| SourceUse {
            name: name.clone(),
            share: self.mixture.share(at),
            tokens: source.tokens(),
            sequences: source.windows(),
        };
        each.map(used).collect()
    }

    pub(super) fn followers(
        &self,
        places: &[(usize, Cursor)],
        stop: &AtomicBool,
    ) -> Result<Option<Vec<i32>>, Error> {
        let Some(features) = &self.features else { return Ok(None) };
        let cursors: Vec<_> = places.iter().map(|(_, cursor)| *cursor).collect();
        let found = features.windows_unless(&cursors, stop)?.into_iter().flatten();
        Ok(Some(found.map(|id| id.map_or(self.none, |id| id as i32)).collect()))
    }

    pub(super) fn read(
        &self,
        places: &[(usize, Cursor)],
        followers: Option<Vec<i32>>,
    ) -> Result<MicroBatch, Error> {
        let window = |(source, cursor): &(usize, Cursor)| self.sources[*source].window(*cursor);
        let windows = places.iter().map(window).collect::<Result<Vec<_>, _>>()?;
        Ok(MicroBatch { followers, ..MicroBatch::new(&windows) })
    }
}

fn measured(set: &Path, tokenizer: &Tokenizer, plan: WindowPlan) -> Result<TokenDataset, Error> {
    match TokenDataset::open(set, Split::Val, tokenizer, plan) {
        Err(Error::Shard { problem: ShardProblem::NoShards(_), .. }) => {
            TokenDataset::open(set, Split::Train, tokenizer, plan)
        }
        opened => opened,
    }
}
