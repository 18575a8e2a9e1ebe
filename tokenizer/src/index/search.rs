//! Binary search in the order. A match is compared with the text: files are not trusted.

use std::{cmp::Ordering, ops::Range};

use super::{
    minima,
    text::{Context, Text},
};

#[derive(Debug)]
pub(super) struct Order<B> {
    bytes: B,
    start: usize,
    levels: Vec<Range<u64>>,
}

impl<B: AsRef<[u8]>> Order<B> {
    /// From byte `start` on: positions, then their tree.
    pub(super) fn new(bytes: B, start: usize, positions: u64) -> Self {
        Self { bytes, start, levels: minima::levels(positions) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    fn positions(&self) -> u64 {
        self.levels[0].end
    }

    fn get(&self, at: u64) -> u32 {
        let start = self.start + at as usize * 4;
        let entry = self.bytes.as_ref().get(start..start + 4).and_then(|bytes| bytes.first_chunk());
        entry.map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes))
    }

    /// Length and first position.
    pub(super) fn longest(&self, text: &Text, query: &Context) -> Option<(usize, u32)> {
        let context = |at| text.context(self.get(at).into());
        let after = partition(0..self.positions(), |at| context(at).cmp(query) == Ordering::Less);
        let neighbours = [after.checked_sub(1), Some(after).filter(|after| *after < self.positions())];
        let length = neighbours.into_iter().flatten().map(|at| context(at).common(query)).max()?;
        if length == 0 {
            return None;
        }
        let shares = |at: u64| context(at).common(query) >= length;
        let from = gallop(|away| after.checked_sub(away + 1).is_some_and(shares));
        let to = gallop(|away| after + away < self.positions() && shares(after + away));
        let stretch = after - from..after + to;
        let first = minima::least(&self.levels, |at| self.get(at), stretch);
        (text.context(first.into()).common(query) >= length).then_some((length, first))
    }
}

fn partition(range: Range<u64>, below: impl Fn(u64) -> bool) -> u64 {
    let Range { start: mut low, end: mut high } = range;
    while low < high {
        let middle = low.midpoint(high);
        if below(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

fn gallop(within: impl Fn(u64) -> bool) -> u64 {
    let mut reach = 1;
    while within(reach - 1) {
        reach *= 2;
    }
    partition(reach / 2..reach - 1, within)
}
