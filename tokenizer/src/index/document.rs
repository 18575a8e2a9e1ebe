//! The longest earlier match within a document that grows by one token at a time.
//!
//! Positions are kept in the order of their contexts, as in an index. From any position that shares `n` tokens, the first
//! one that does is found by going from match to match: each is the first with its length, so lengths fall from step to
//! step, and there are at most 32.

use super::{
    earliest::Found,
    text::{Context, LONGEST},
};

/// A document so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    ids: Vec<u32>,
    /// Every position but the last in the order of their contexts.
    order: Vec<u32>,
    found: Vec<Found>,
}

impl Document {
    /// Appends a token and gives the longest match that ends before it.
    pub(super) fn push(&mut self, id: u32) -> Found {
        if let Some(last) = self.ids.len().checked_sub(1) {
            let place = self.place(&self.context(last as u32));
            self.order.insert(place, last as u32);
        }
        self.ids.push(id);
        let found = self.longest();
        self.found.push(found);
        found
    }

    /// The id behind a match.
    pub(super) fn next(&self, found: Found) -> u32 {
        self.ids[found.position() as usize + 1]
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.order.clear();
        self.found.clear();
    }

    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    fn context(&self, at: u32) -> Context {
        let end = at as usize + 1;
        Context::after(&self.ids[end.saturating_sub(LONGEST)..end], None)
    }

    fn place(&self, context: &Context) -> usize {
        self.order.partition_point(|at| self.context(*at).cmp(context).is_lt())
    }

    fn longest(&self) -> Found {
        let context = self.context(self.ids.len() as u32 - 1);
        let place = self.place(&context);
        let neighbours = [place.checked_sub(1), Some(place)].into_iter().flatten();
        let common = |at: u32| Found::new(self.context(at).common(&context), at);
        let nearest = neighbours.filter_map(|place| self.order.get(place)).map(|at| common(*at)).max();
        let Some(nearest) = nearest.filter(|nearest| nearest.length() > 0) else { return Found::default() };
        let (length, mut first) = (nearest.length(), nearest.position());
        while self.found[first as usize].length() >= length {
            first = self.found[first as usize].position();
        }
        Found::new(length, first)
    }
}
