//! The longest earlier match within a growing document.
//!
//! Positions are sorted by context. Following matches, whose lengths fall, finds the first that shares `n` tokens: at
//! most 32 steps.

use super::{
    self_matches::EarlierMatch,
    text::{Context, LONGEST},
};

#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    ids: Vec<u32>,
    order: Vec<u32>,
    found: Vec<EarlierMatch>,
}

impl Document {
    pub(super) fn push(&mut self, id: u32) -> EarlierMatch {
        if let Some(last) = self.ids.len().checked_sub(1) {
            let place = self.place(&self.context(last as u32));
            self.order.insert(place, last as u32);
        }
        self.ids.push(id);
        let found = self.longest();
        self.found.push(found);
        found
    }

    pub(super) fn next(&self, found: EarlierMatch) -> u32 {
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

    fn longest(&self) -> EarlierMatch {
        let context = self.context(self.ids.len() as u32 - 1);
        let place = self.place(&context);
        let neighbours = [place.checked_sub(1), Some(place)].into_iter().flatten();
        let common = |at: u32| EarlierMatch::new(self.context(at).common(&context), at);
        let nearest = neighbours.filter_map(|place| self.order.get(place)).map(|at| common(*at)).max();
        let Some(nearest) = nearest.filter(|nearest| nearest.length() > 0) else {
            return EarlierMatch::default();
        };
        let (length, mut first) = (nearest.length(), nearest.position());
        while self.found[first as usize].length() >= length {
            first = self.found[first as usize].position();
        }
        EarlierMatch::new(length, first)
    }
}
