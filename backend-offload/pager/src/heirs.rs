//! Heirs: which block took over from which, within one period of the trace.
//!
//! Burn's optimizers make a new block of a parameter in each step and let go of the old one. Nobody says that the one
//! takes the other's place, but it shows: the new block is born in the operation that uses the old one last, and is as
//! large. So what came of the old one in this period is what will come of the new one in the next.

use crate::block::BlockId;
use crate::trace::{Next, Trace};

/// By place: the block that has come of the one there, looked at backwards from the period's end.
#[derive(Debug)]
pub(crate) struct Heirs {
    /// The place before which nothing is looked at.
    begin: u64,
    last: Vec<Option<BlockId>>,
    inherits: Vec<bool>,
}

impl Heirs {
    /// For the places in this range.
    pub fn new(places: std::ops::Range<u64>) -> Self {
        let count = places.end.saturating_sub(places.start) as usize;
        Self { begin: places.start, last: vec![None; count], inherits: vec![false; count] }
    }

    fn index(&self, place: u64) -> Option<usize> {
        let index = place.checked_sub(self.begin)? as usize;
        (index < self.last.len()).then_some(index)
    }

    /// The block that has come of the one at `place`, if its operation was looked at and it lives.
    pub fn at(&self, place: u64) -> Option<BlockId> {
        self.last[self.index(place)?]
    }

    /// Whether the block born at `place` took over from another one.
    pub fn inherits(&self, place: u64) -> bool {
        self.index(place).is_some_and(|index| self.inherits[index])
    }

    /// Looks at an operation; those after it have been looked at.
    pub fn look_at(&mut self, trace: &Trace, number: u64) {
        let places = trace.uses(number);
        for place in places.clone() {
            let last = match (trace.next(place), trace.next_place(number, place)) {
                (_, Some(next)) if self.index(next).is_some() => self.at(next),
                (Next::Freed(_), _) => None,
                _ => trace.block(place),
            };
            if let Some(index) = self.index(place) {
                self.last[index] = last;
            }
        }
        let freed = places.clone().filter(|place| matches!(trace.next(*place), Next::Freed(_)));
        for place in freed {
            let (bytes, _) = trace.size(place);
            let takes_over = |heir: &u64| {
                trace.size(*heir) == (bytes, true) && !self.inherits(*heir) && self.at(*heir).is_some()
            };
            if let Some(heir) = places.clone().find(takes_over)
                && let (Some(from), Some(to)) = (self.index(place), self.index(heir))
            {
                self.last[from] = self.last[to];
                self.inherits[to] = true;
            }
        }
    }
}
