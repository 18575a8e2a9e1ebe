//! Features of a dataset's positions: the token after the longest earlier occurrence of the context.
//!
//! An indexed split's positions match earlier indexes and the split's earlier positions. Others match all indexes and
//! the document's earlier positions.

use std::{
    borrow::Borrow,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rayon::prelude::*;

use super::{Corpora, matcher::DocumentMatcher};
use crate::{
    data::dataset::{Cursor, TokenDataset},
    error::Error,
};

/// Without an index, a document's beginning is sought one to two times as far back, in tokens.
const REACH: u64 = 1 << 15;

/// A dataset, and the indexes to search.
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

    /// Features of the inputs `x` of the window at `cursor`; `None` without a match.
    pub fn window(&self, cursor: Cursor) -> Result<Vec<Option<u32>>, Error> {
        self.window_with(cursor, &mut Scan::new())
    }

    /// [`window`](Self::window) for several. Without an index, a document's windows share a pass over it.
    pub fn windows(&self, cursors: &[Cursor]) -> Result<Vec<Vec<Option<u32>>>, Error> {
        self.windows_unless(cursors, &AtomicBool::new(false))
    }

    /// [`windows`](Self::windows), but fails soon after `stop` is set.
    pub fn windows_unless(
        &self,
        cursors: &[Cursor],
        stop: &AtomicBool,
    ) -> Result<Vec<Vec<Option<u32>>>, Error> {
        let mut order: Vec<usize> = (0..cursors.len()).collect();
        order.sort_by_key(|at| self.dataset().positions(cursors[*at]).start);
        let (mut windows, mut scan) = (vec![Vec::new(); cursors.len()], Scan::new());
        for at in order {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            windows[at] = self.window_with(cursors[at], &mut scan)?;
        }
        Ok(windows)
    }

    fn window_with(&self, cursor: Cursor, scan: &mut Scan) -> Result<Vec<Option<u32>>, Error> {
        let mut features = self.features_at(self.dataset().positions(cursor), scan)?;
        features.resize(self.dataset().window_length(), None);
        Ok(features)
    }

    /// Features of `positions`, up to the split's end. In a split without an index, matches begin with the document, or
    /// at most 65,536 tokens before `positions`.
    pub fn at(&self, positions: Range<u64>) -> Result<Vec<Option<u32>>, Error> {
        self.features_at(positions, &mut Scan::new())
    }

    fn features_at(&self, positions: Range<u64>, scan: &mut Scan) -> Result<Vec<Option<u32>>, Error> {
        match self.own {
            Some(0) => {
                let found = self.corpora.indexes()[0].followers(positions)?;
                Ok(found.into_iter().map(|found| self.corpora.long_enough(found)).collect())
            }
            Some(own) => self.indexed_split(own, positions),
            None => self.unindexed_split(positions, scan),
        }
    }

    fn indexed_split(&self, own: usize, positions: Range<u64>) -> Result<Vec<Option<u32>>, Error> {
        let index = &self.corpora.indexes()[own];
        let found = index.followers(positions.clone())?;
        // A batch's slowest part: a binary search in mapped memory per position.
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

    fn unindexed_split(&self, positions: Range<u64>, scan: &mut Scan) -> Result<Vec<Option<u32>>, Error> {
        let Range { start, end } = positions;
        let base = start.saturating_sub(REACH) / REACH * REACH;
        let ids = self.dataset().read(base..end)?;
        let bos = self.dataset().bos();
        let before = &ids[..ids.len().min((start - base) as usize + 1)];
        let opening = base + before.iter().rposition(|id| Some(*id) == bos).unwrap_or(0) as u64;

        if scan.opening != opening || start < scan.first {
            *scan = Scan {
                opening,
                first: opening,
                next: opening,
                found: Vec::new(),
                matcher: DocumentMatcher::new(true),
            };
        }
        if start >= scan.next {
            scan.found.clear();
            scan.first = start;
        }

        for (at, id) in (base..).zip(ids).skip((scan.next - base) as usize) {
            if Some(id) == bos {
                scan.opening = at;
            }
            let found = scan.matcher.push(&self.corpora, id, at >= start);
            if at >= start {
                scan.found.push(found.map(|found| found.next));
            }
            scan.next = at + 1;
        }

        let known = (start - scan.first) as usize..(end.min(scan.next).max(start) - scan.first) as usize;
        Ok(scan.found[known].to_vec())
    }
}

/// A pass that the document's later ranges resume.
#[derive(Debug)]
struct Scan {
    opening: u64,
    /// Position of `found[0]`; `found` ends before `next`.
    first: u64,
    next: u64,
    found: Vec<Option<u32>>,
    matcher: DocumentMatcher,
}

impl Scan {
    fn new() -> Self {
        Self { opening: u64::MAX, first: 0, next: 0, found: Vec::new(), matcher: DocumentMatcher::new(true) }
    }
}
