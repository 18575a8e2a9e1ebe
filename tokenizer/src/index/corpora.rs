//! Searches several indexes as one long text.

use std::{borrow::Borrow, ops::Range, path::Path, sync::Arc};

use super::{Features, Follower, Index, IndexProblem, Matcher, manifest, text::Context};
use crate::{data::dataset::TokenDataset, error::Error};

/// Indexes of one tokenizer, in the given order.
#[derive(Debug)]
pub struct Corpora {
    indexes: Vec<Index>,
    shortest: usize,
}

/// A context's longest earlier occurrence, and its follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Common tokens, at most 32.
    pub length: usize,
    /// The id that followed.
    pub next: u32,
    /// Where it is.
    pub source: Source,
    /// Position of the last common token there.
    pub at: u64,
}

/// A searched text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This index's split.
    Index(usize),
    /// The document, up to the current token.
    Document,
}

impl Corpora {
    /// Default shortest match. One token says nothing: its first occurrence has a fixed follower.
    pub const SHORTEST: usize = 2;

    /// Opens indexes with their sets. Matches below `shortest` tokens (1 to 32) do not count.
    pub fn open<P: AsRef<Path>>(
        folders: impl IntoIterator<Item = (P, P)>,
        shortest: usize,
    ) -> Result<Self, Error> {
        if !(1..=super::text::LONGEST).contains(&shortest) {
            let (value, expected) = (shortest.to_string(), "from 1 to 32 tokens");
            return Err(Error::Option { option: "shortest match", value, expected });
        }
        let mut indexes: Vec<Index> = Vec::new();
        for (folder, set) in folders {
            let index = Index::open(&folder, set)?;
            let found = index.manifest().tokenizer.sha256;
            let expected = indexes.first().map_or(found, |first| first.manifest().tokenizer.sha256);
            if expected != found {
                let path = folder.as_ref().join(manifest::NAME);
                return Err(Error::index(path, IndexProblem::OtherTokenizer { expected, found }));
            }
            indexes.push(index);
        }
        Ok(Self { indexes, shortest })
    }

    /// In the order of [`Source::Index`].
    pub fn indexes(&self) -> &[Index] {
        &self.indexes
    }

    /// The longest match of the end of `context`, within its last document: the first of its length.
    pub fn longest(&self, context: &[u32]) -> Option<Match> {
        self.search(&Context::after(context, self.bos()), self.indexes.len())
    }

    /// Matches a growing document; with `own`, also against itself.
    pub fn matcher(self: &Arc<Self>, own: bool) -> Matcher {
        Matcher::new(Arc::clone(self), own)
    }

    /// Features of `dataset`'s positions.
    pub fn features<D: Borrow<TokenDataset>>(self: &Arc<Self>, dataset: D) -> Result<Features<D>, Error> {
        Features::new(Arc::clone(self), dataset)
    }

    pub(super) fn bos(&self) -> Option<u32> {
        self.indexes.first().and_then(|index| index.text().bos())
    }

    pub(super) fn long_enough(&self, found: Follower) -> Option<u32> {
        (found.length >= self.shortest).then_some(found.next)
    }

    pub(super) fn shortest(&self) -> usize {
        self.shortest
    }

    pub(super) fn search(&self, context: &Context, count: usize) -> Option<Match> {
        let mut best: Option<Match> = None;
        for (number, index) in self.indexes[..count].iter().enumerate() {
            let Some((length, at, next)) = index.longest(context) else { continue };
            if length >= self.shortest && best.is_none_or(|best| best.length < length) {
                best = Some(Match { length, next, source: Source::Index(number), at });
            }
        }
        best
    }

    pub(super) fn own_index(&self, dataset: &TokenDataset) -> Result<Option<usize>, Error> {
        let shards = dataset.fingerprint()?;
        Ok(self.indexes.iter().position(|index| index.manifest().shards == shards))
    }

    pub(super) fn read(&self, index: usize, positions: Range<u64>) -> Result<Vec<u32>, Error> {
        self.indexes[index].text().read(positions)
    }
}
