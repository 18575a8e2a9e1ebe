//! The eviction order for a known future. An eviction costs a copy out unless another tier has the contents, and a copy
//! back before the next use. Blocks of one preference leave in this order:
//!
//! 1. blocks that cost nothing, largest first;
//! 2. blocks without a known next use, longest unused first: a known use is at most a period away;
//! 3. others, by operations gained per byte copied, those needed within [`NEAR`] operations last.
//!
//! A gain counts up to twice the missing bytes. Two copies count as four, since later evictions of a copied block cost
//! half. Replays gave both numbers. Heap entries may be stale; each use checks them.
//!
//! Recorded steps move at most a tenth more than the lower bound at 75, 50 and 25 % of their memory
//! (`bytes_of_recorded_steps_are_on_record_below_recency_and_within_a_tenth_of_the_bound`,
//! `more_memory_never_moves_more`); one moves a fifth more in a quarter (`bytes_of_further_steps_equal_the_record`).

use crate::block::{BlockId, Preference};
use crate::forecast::Future;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Operands of so many next operations leave last.
const NEAR: u64 = 4;

const MOST_EMPTY: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictionCost {
    /// No copy.
    Free,
    /// Smaller `recent` leaves earlier.
    Unknown { recent: u64 },
    /// Used or freed by operation `due`; takes one or two `copies`.
    Known { due: u64, copies: u64 },
}

impl EvictionCost {
    pub fn of(defined: bool, dirty: bool, future: Future, now: u64, recent: u64) -> Self {
        let out = u64::from(dirty);
        let (due, back) = match future {
            Future::Unknown if defined => return Self::Unknown { recent },
            Future::Unknown => return Self::Free,
            Future::Used(after) => (now + after, u64::from(defined)),
            Future::Freed(after) => (now + after, 0),
        };
        match out + back {
            0 => Self::Free,
            copies => Self::Known { due, copies },
        }
    }

    pub fn is_near(self, now: u64) -> bool {
        matches!(self, Self::Known { due, .. } if due <= now + NEAR)
    }

    /// A greater rank leaves earlier, within one preference.
    fn rank(self, now: u64, bytes: u64, missing: u64, index: u32) -> (u8, u64, u64, u64, Reverse<u32>) {
        let index = Reverse(index);
        match self {
            Self::Free => (3, self.key(bytes), 0, bytes, index),
            Self::Unknown { .. } => (2, self.key(bytes), 0, bytes, index),
            Self::Known { due, copies } => {
                let gained = u128::from(due - now) * u128::from(bytes.min(missing.saturating_mul(2)));
                let paid = u128::from(bytes.max(1)) * u128::from(copies * copies);
                // Fixed point: small gains are not rounded to zero.
                let worth = (gained << 16) / paid;
                (u8::from(!self.is_near(now)), u64::try_from(worth).unwrap_or(u64::MAX), due, bytes, index)
            }
        }
    }

    fn kind(self, bytes: u64) -> Kind {
        match self {
            Self::Free => Kind::Free,
            Self::Unknown { .. } => Kind::Unknown,
            Self::Known { copies, .. } => Kind::Known { copies, bytes },
        }
    }

    fn key(self, bytes: u64) -> u64 {
        match self {
            Self::Free => bytes,
            Self::Unknown { recent } => u64::MAX - recent,
            Self::Known { due, .. } => due,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Free,
    Unknown,
    Known { copies: u64, bytes: u64 },
}

type Class = (Preference, Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    key: u64,
    bytes: u64,
    /// Lower index first.
    index: Reverse<u32>,
    generation: u32,
}

impl Entry {
    fn id(&self) -> BlockId {
        BlockId { index: self.index.0, generation: self.generation }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    pub id: BlockId,
    pub bytes: u64,
    pub preference: Preference,
    pub cost: EvictionCost,
}

impl Resident {
    fn class(&self) -> Class {
        (self.preference, self.cost.kind(self.bytes))
    }

    /// Greater leaves earlier.
    fn rank(&self, now: u64, missing: u64) -> impl Ord + use<> {
        (Reverse(self.preference), self.cost.rank(now, self.bytes, missing, self.id.index))
    }

    fn entry(&self) -> Entry {
        let Self { id, bytes, cost, .. } = *self;
        Entry { key: cost.key(bytes), bytes, index: Reverse(id.index), generation: id.generation }
    }
}

#[derive(Debug, Default)]
pub(crate) struct EvictionOrder {
    heaps: Vec<(Class, BinaryHeap<Entry>)>,
    entries: usize,
    /// Known ones, soonest first: the next to pass.
    passing: BinaryHeap<Reverse<Entry>>,
    awake: bool,
    asked: bool,
    /// Blocks that may not leave, during a search.
    aside: Vec<Entry>,
    moved: Vec<Resident>,
}

impl EvictionOrder {
    /// Whether entries are kept; otherwise rebuild before use.
    pub fn is_awake(&self) -> bool {
        self.awake
    }

    pub fn is_stale(&self, live: u64) -> bool {
        (self.entries + self.passing.len()) as u64 > 8 * live + 256
    }

    /// Returns whether to rebuild: not if no victim was wanted since.
    pub fn clear(&mut self) -> bool {
        if self.heaps.len() > MOST_EMPTY {
            self.heaps.clear();
        }
        self.heaps.iter_mut().for_each(|(_, heap)| heap.clear());
        self.entries = 0;
        self.passing.clear();
        self.awake = std::mem::take(&mut self.asked);
        self.awake
    }

    pub fn has_preferences(&self) -> bool {
        let ends = self.heaps.first().into_iter().chain(self.heaps.last());
        ends.map(|((preference, _), _)| *preference).any(|preference| preference != Preference::Policy)
    }

    pub fn wake(&mut self) {
        self.awake = true;
    }

    pub fn sleep(&mut self) {
        self.asked = false;
        self.clear();
    }

    pub fn enter(&mut self, resident: &Resident) {
        let entry = resident.entry();
        if let EvictionCost::Known { .. } = resident.cost {
            self.passing.push(Reverse(entry));
        }
        let class = resident.class();
        let at = self.heaps.binary_search_by_key(&class, |(class, _)| *class).unwrap_or_else(|at| {
            self.heaps.insert(at, (class, BinaryHeap::new()));
            at
        });
        self.heaps[at].1.push(entry);
        self.entries += 1;
    }

    /// `look` returns a block and its cost, or `None` off the device.
    pub fn first(
        &mut self,
        now: u64,
        missing: u64,
        look: &dyn Fn(BlockId) -> Option<Resident>,
        may_leave: &dyn Fn(BlockId) -> bool,
    ) -> Option<BlockId> {
        self.asked = true;
        while let Some(Reverse(passed)) = self.passing.peek().filter(|passed| passed.0.key <= now).copied() {
            self.passing.pop();
            if let Some(resident) = look(passed.id())
                && matches!(resident.cost, EvictionCost::Unknown { .. })
            {
                self.enter(&resident);
            }
        }
        loop {
            let mut best = None;
            for at in 0..self.heaps.len() {
                if let Some(found) = self.top(at, look, may_leave) {
                    best = best.max(Some((found.rank(now, missing), found.id)));
                }
            }
            if self.moved.is_empty() {
                return best.map(|(_, id)| id);
            }
            while let Some(resident) = self.moved.pop() {
                self.enter(&resident);
            }
        }
    }

    /// Blocks with stale entries go to `moved`.
    fn top(
        &mut self,
        at: usize,
        look: &dyn Fn(BlockId) -> Option<Resident>,
        may_leave: &dyn Fn(BlockId) -> bool,
    ) -> Option<Resident> {
        let Self { heaps, entries, aside, moved, .. } = self;
        let (class, heap) = &mut heaps[at];
        let mut found = None;
        while let Some(entry) = heap.peek().copied() {
            let resident = look(entry.id());
            let is_there =
                |resident: &Resident| resident.class() == *class && resident.entry().key == entry.key;
            let there = resident.filter(is_there);
            if there.is_some() && may_leave(entry.id()) {
                found = there;
                break;
            }
            heap.pop();
            if there.is_some() {
                aside.push(entry);
            } else {
                *entries -= 1;
                moved.extend(resident);
            }
        }
        heap.extend(aside.drain(..));
        found
    }
}

/// The first block to leave, by a search of all.
#[cfg(test)]
pub(crate) fn first_of(blocks: impl Iterator<Item = Resident>, now: u64, missing: u64) -> Option<BlockId> {
    blocks.max_by_key(|found| found.rank(now, missing)).map(|found| found.id)
}
