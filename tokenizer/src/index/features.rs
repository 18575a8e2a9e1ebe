//! The feature of positions of a dataset: what followed the longest earlier occurrence of the context there.
//!
//! "Earlier" means in the text that all indexes make in their order. A position of an indexed split therefore has matches
//! in the indexes before and, in its own, among the positions before it; these the build has found. A position of any
//! other split has matches in all indexes and in its own document before it.

use std::{borrow::Borrow, ops::Range, sync::Arc};

use super::{Corpora, Follower, matcher::Past};
use crate::{
    data::dataset::{Cursor, TokenDataset},
    error::Error,
};

/// Tokens before a stretch in which its document may begin, for splits without an index.
const REACH: u64 = 1 << 15;

/// A dataset beside the indexes that are searched for it.
#[derive(Debug)]
pub struct Features<D> {
    corpora: Arc<Corpora>,
    dataset: D,
    own: Option<usize>,
}

impl<D: Borrow<TokenDataset>> Features<D> {
    pub(super) fn new(corpora: Arc<Corpora>, dataset: D) -> Result<Self, Error> {
        let own = corpora.own_index(dataset.borrow())?;
        Ok(Self { corpora, dataset, own })
    }

    fn dataset(&self) -> &TokenDataset {
        self.dataset.borrow()
    }

    /// The features of the inputs `x` of the window at `cursor`; `None` where there is no match.
    pub fn window(&self, cursor: Cursor) -> Result<Vec<Option<u32>>, Error> {
        let mut features = self.at(self.dataset().positions(cursor))?;
        features.resize(self.dataset().window_length(), None);
        Ok(features)
    }

    /// The features of `positions` of the split, as far as it has them. In a split without an index, a document is
    /// searched for matches with itself from 32,768 tokens before `positions` on.
    pub fn at(&self, positions: Range<u64>) -> Result<Vec<Option<u32>>, Error> {
        match self.own {
            Some(0) => {
                let found = self.corpora.indexes()[0].followers(positions)?;
                Ok(found.into_iter().map(|found| self.long_enough(found)).collect())
            }
            Some(own) => self.among_others(own, positions),
            None => self.outside(positions),
        }
    }

    fn long_enough(&self, found: Follower) -> Option<u32> {
        (found.length >= self.corpora.shortest()).then_some(found.next)
    }

    /// Of an indexed split behind others.
    fn among_others(&self, own: usize, positions: Range<u64>) -> Result<Vec<Option<u32>>, Error> {
        let index = &self.corpora.indexes()[own];
        let found = index.followers(positions.clone())?;
        let features = positions.zip(found).map(|(at, found)| {
            match self.corpora.search(&index.text().context(at), own) {
                Some(before) if before.length >= found.length => Some(before.next),
                _ => self.long_enough(found),
            }
        });
        Ok(features.collect())
    }

    fn outside(&self, positions: Range<u64>) -> Result<Vec<Option<u32>>, Error> {
        let from = positions.start.saturating_sub(REACH);
        let ids = self.dataset().read(from..positions.end)?;
        let first = (positions.start - from) as usize;
        let bos = self.dataset().bos();
        let opening = ids.iter().take(first + 1).rposition(|id| Some(*id) == bos).unwrap_or(0);
        let mut past = Past::new(true);
        let mut features = Vec::new();
        for (place, id) in ids.into_iter().enumerate().skip(opening) {
            let found = past.push(&self.corpora, id, place >= first);
            if place >= first {
                features.push(found.map(|found| found.next));
            }
        }
        Ok(features)
    }
}
