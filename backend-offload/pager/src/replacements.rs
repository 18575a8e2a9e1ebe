//! New blocks that replaced old ones in a period, as Burn's optimizers do with parameters' blocks. The new block is
//! inserted in the last operation on the old one, has its size, and takes over its uses.

use crate::block::BlockId;
use crate::history::{History, Next};

/// The replacing block by place, found backwards from the period's end.
#[derive(Debug)]
pub(crate) struct Replacements {
    begin: u64,
    last: Vec<Option<BlockId>>,
    inherits: Vec<bool>,
}

impl Replacements {
    pub fn new(places: std::ops::Range<u64>) -> Self {
        let count = places.end.saturating_sub(places.start) as usize;
        Self { begin: places.start, last: vec![None; count], inherits: vec![false; count] }
    }

    fn index(&self, place: u64) -> Option<usize> {
        let index = place.checked_sub(self.begin)? as usize;
        (index < self.last.len()).then_some(index)
    }

    /// The live block that replaced the one at `place`, if visited.
    pub fn at(&self, place: u64) -> Option<BlockId> {
        self.last[self.index(place)?]
    }

    pub fn inherits(&self, place: u64) -> bool {
        self.index(place).is_some_and(|index| self.inherits[index])
    }

    /// Visits an operation after all later ones.
    pub fn look_at(&mut self, trace: &History, number: u64) {
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
            let takes_over = |replacement: &u64| {
                trace.size(*replacement) == (bytes, true)
                    && !self.inherits(*replacement)
                    && self.at(*replacement).is_some()
            };
            if let Some(replacement) = places.clone().find(takes_over)
                && let (Some(from), Some(to)) = (self.index(place), self.index(replacement))
            {
                self.last[from] = self.last[to];
                self.inherits[to] = true;
            }
        }
    }
}
