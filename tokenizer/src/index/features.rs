//! The feature of positions of a dataset: what followed the longest earlier occurrence of the context there.
//!
//! "Earlier" means in the text that all indexes make in their order. A position of an indexed split therefore has matches
//! in the indexes before and, in its own, among the positions before it; these the build has found. A position of any
//! other split has matches in all indexes and in its own document before it.

use std::{
    borrow::Borrow,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rayon::prelude::*;

use super::{Corpora, matcher::Past};
use crate::{
    data::dataset::{Cursor, TokenDataset},
    error::Error,
};

/// Tokens before a stretch in which its document may begin, for splits without an index: so many, up to twice as many.
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
        self.window_on(cursor, &mut Walk::new())
    }

    /// The features of several windows, as [`window`](Self::window) gives them one by one. A document without an index is
    /// gone through once for all windows that lie in it.
    pub fn windows(&self, cursors: &[Cursor]) -> Result<Vec<Vec<Option<u32>>>, Error> {
        self.windows_unless(cursors, &AtomicBool::new(false))
    }

    /// The same, or an error soon after `stop` is set.
    pub fn windows_unless(
        &self,
        cursors: &[Cursor],
        stop: &AtomicBool,
    ) -> Result<Vec<Vec<Option<u32>>>, Error> {
        let mut order: Vec<usize> = (0..cursors.len()).collect();
        order.sort_by_key(|at| self.dataset().positions(cursors[*at]).start);
        let (mut windows, mut walk) = (vec![Vec::new(); cursors.len()], Walk::new());
        for at in order {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            windows[at] = self.window_on(cursors[at], &mut walk)?;
        }
        Ok(windows)
    }

    fn window_on(&self, cursor: Cursor, walk: &mut Walk) -> Result<Vec<Option<u32>>, Error> {
        let mut features = self.on(self.dataset().positions(cursor), walk)?;
        features.resize(self.dataset().window_length(), None);
        Ok(features)
    }

    /// The features of `positions` of the split, as far as it has them. In a split without an index, a document is
    /// searched for matches with itself from its beginning on, or else from between 32,768 and 65,536 tokens before
    /// `positions`.
    pub fn at(&self, positions: Range<u64>) -> Result<Vec<Option<u32>>, Error> {
        self.on(positions, &mut Walk::new())
    }

    fn on(&self, positions: Range<u64>, walk: &mut Walk) -> Result<Vec<Option<u32>>, Error> {
        match self.own {
            Some(0) => {
                let found = self.corpora.indexes()[0].followers(positions)?;
                Ok(found.into_iter().map(|found| self.corpora.long_enough(found)).collect())
            }
            Some(own) => self.among_others(own, positions),
            None => self.outside(positions, walk),
        }
    }

    /// Features of an indexed split that has other indexes before it.
    fn among_others(&self, own: usize, positions: Range<u64>) -> Result<Vec<Option<u32>>, Error> {
        let index = &self.corpora.indexes()[own];
        let found = index.followers(positions.clone())?;
        // One binary search each, in memory that is mapped: the slowest part of reading a batch.
        let corpora = &*self.corpora;
        let features = found.into_par_iter().enumerate().map(|(place, found)| {
            let context = index.text().context(positions.start + place as u64);
            match corpora.search(&context, own) {
                Some(before) if before.length >= found.length => Some(before.next),
                _ => corpora.long_enough(found),
            }
        });
        Ok(features.collect())
    }

    /// Features of a split without an index.
    fn outside(&self, positions: Range<u64>, walk: &mut Walk) -> Result<Vec<Option<u32>>, Error> {
        let Range { start, end } = positions;
        let base = start.saturating_sub(REACH) / REACH * REACH;
        let ids = self.dataset().read(base..end)?;
        let bos = self.dataset().bos();
        let before = &ids[..ids.len().min((start - base) as usize + 1)];
        let opening = base + before.iter().rposition(|id| Some(*id) == bos).unwrap_or(0) as u64;
        if walk.opening != opening || start < walk.first {
            *walk = Walk { opening, first: opening, next: opening, found: Vec::new(), past: Past::new(true) };
        }
        if start >= walk.next {
            walk.found.clear();
            walk.first = start;
        }
        for (at, id) in (base..).zip(ids).skip((walk.next - base) as usize) {
            if Some(id) == bos {
                walk.opening = at;
            }
            let found = walk.past.push(&self.corpora, id, at >= start);
            if at >= start {
                walk.found.push(found.map(|found| found.next));
            }
            walk.next = at + 1;
        }
        let known = (start - walk.first) as usize..(end.min(walk.next).max(start) - walk.first) as usize;
        Ok(walk.found[known].to_vec())
    }
}

/// A split without an index as far as it was gone through, so that what comes next in a document need not begin it anew.
#[derive(Debug)]
struct Walk {
    /// Where the present document is taken to begin.
    opening: u64,
    /// Where `found` begins; it ends before `next`.
    first: u64,
    next: u64,
    found: Vec<Option<u32>>,
    past: Past,
}

impl Walk {
    fn new() -> Self {
        Self { opening: u64::MAX, first: 0, next: 0, found: Vec::new(), past: Past::new(true) }
    }
}
