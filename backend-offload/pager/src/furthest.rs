//! The order in which blocks leave the device while the planner knows the future, kept so that the first one is
//! found without a look at all others.
//!
//! A block that leaves costs copies: one out if its contents are nowhere else, one back if it is used again. What it
//! gives is its memory for as long as it is not needed. So blocks leave in this order:
//!
//! 1. those that cost nothing, largest first;
//! 2. those of which nothing is known, for longest unused first: what is known is near, at most a period away;
//! 3. the others by operations gained for each copy: furthest next use first among those with the same cost. Those
//!    needed within the next [`NEAR`] operations come last. Of a block larger than a tenth of the budget only a tenth
//!    counts as gained, because more is rarely wanted at once, and all of it has to be copied.
//!
//! Each of these is a heap of entries that may be out of date: whatever comes to the top is compared with the block as it
//! is, and entered anew if it has changed. That makes an entry cheap to add, which is what every operation does, and
//! an order right when it is asked for. Nobody asks while everything fits, and then nothing is kept.

use crate::block::BlockId;
use crate::limit::Limit;
use crate::planner::Future;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Operations whose operands leave only when nothing else can.
const NEAR: u64 = 4;

/// The reason for which a block leaves earlier or later than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It costs nothing.
    Free,
    /// Nothing is known of its future. The less `recent`, the earlier it leaves.
    Unknown { recent: u64 },
    /// It is used or let go by operation `due`, and takes as many `copies`: one or two.
    Known { due: u64, copies: u64 },
}

impl Standing {
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

    /// Greater leaves earlier. Blocks above `large` bytes are worth no more than that.
    fn rank(self, now: u64, bytes: u64, large: u64, index: u32) -> (u8, u64, u64, u64, Reverse<u32>) {
        let index = Reverse(index);
        match self {
            Self::Free => (3, bytes, 0, 0, index),
            Self::Unknown { recent } => (2, u64::MAX - recent, 0, bytes, index),
            Self::Known { due, copies } => {
                let after = due - now;
                let gained = 2 * after / copies;
                let worth = u128::from(gained) * u128::from(large.min(bytes)) / u128::from(bytes.max(1));
                (u8::from(after > NEAR), worth as u64, 2 - copies, bytes, index)
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The key its heap orders by.
    key: u64,
    bytes: u64,
    /// The lower one first.
    index: Reverse<u32>,
    generation: u32,
}

impl Entry {
    fn id(&self) -> BlockId {
        BlockId { index: self.index.0, generation: self.generation }
    }
}

/// A block on the device, as the order sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    pub id: BlockId,
    pub bytes: u64,
    pub standing: Standing,
}

const HEAPS: usize = 4;
const FREE: usize = 0;
const UNKNOWN: usize = 1;

#[derive(Debug, Default)]
pub(crate) struct Furthest {
    /// Free, unknown, and known with one and with two copies.
    heaps: [BinaryHeap<Entry>; HEAPS],
    /// Known ones by when they are due, soonest first, to notice those whose time has passed.
    passing: BinaryHeap<Reverse<Entry>>,
    /// Known ones larger than `limit`, in no order: there is room for a few at a time.
    large: Vec<BlockId>,
    /// A tenth of the budget.
    limit: u64,
    /// Entries are kept.
    awake: bool,
    /// It was asked since entries were last made from scratch.
    asked: bool,
    aside: Vec<(usize, Entry)>,
}

impl Furthest {
    /// Whether entries are kept. Otherwise they have to be made before it is asked.
    pub fn is_awake(&self) -> bool {
        self.awake
    }

    /// Whether there are so many entries that most are out of date.
    pub fn is_stale(&self, live: u64) -> bool {
        let entries: usize = self.heaps.iter().map(BinaryHeap::len).sum();
        entries as u64 + self.passing.len() as u64 > 8 * live + 256
    }

    /// Forgets all entries. Returns whether new ones are to be made: nobody has asked for a while otherwise.
    pub fn clear(&mut self) -> bool {
        self.heaps.iter_mut().for_each(BinaryHeap::clear);
        self.passing.clear();
        self.large.clear();
        self.awake = std::mem::take(&mut self.asked);
        self.awake
    }

    /// Entries are kept from here on, under this budget.
    pub fn wake(&mut self, budget: Limit) {
        self.limit = budget.cut(u64::MAX) / 10;
        self.awake = true;
    }

    /// No entries are kept until somebody asks.
    pub fn sleep(&mut self) {
        self.asked = false;
        self.clear();
    }

    pub fn enter(&mut self, resident: &Resident) {
        let Resident { id, bytes, standing } = *resident;
        let entry = |key| Entry { key, bytes, index: Reverse(id.index), generation: id.generation };
        match standing {
            Standing::Free => self.heaps[FREE].push(entry(bytes)),
            Standing::Unknown { recent } => self.heaps[UNKNOWN].push(entry(u64::MAX - recent)),
            Standing::Known { due, copies } => {
                if bytes > self.limit {
                    if !self.large.contains(&id) {
                        self.large.push(id);
                    }
                } else {
                    self.heaps[UNKNOWN + copies as usize].push(entry(due));
                }
                self.passing.push(Reverse(entry(due)));
            }
        }
    }

    /// The first to leave of those that `may_leave`. `look` tells how a block stands; nothing for one that is not on
    /// the device.
    pub fn first(
        &mut self,
        now: u64,
        look: &dyn Fn(BlockId) -> Option<Resident>,
        may_leave: &dyn Fn(BlockId) -> bool,
    ) -> Option<BlockId> {
        self.asked = true;
        while let Some(Reverse(passed)) = self.passing.peek().filter(|passed| passed.0.key <= now).copied() {
            self.passing.pop();
            if let Some(resident) = look(passed.id())
                && matches!(resident.standing, Standing::Unknown { .. })
            {
                self.enter(&resident);
            }
        }
        loop {
            let mut best = None;
            let mut complete = true;
            for heap in 0..HEAPS {
                let Some(found) = self.top(heap, look, may_leave, &mut complete) else { continue };
                best = best
                    .max(Some((found.standing.rank(now, found.bytes, self.limit, found.id.index), found.id)));
            }
            self.large.retain(|id| {
                let known = look(*id).filter(|found| matches!(found.standing, Standing::Known { .. }));
                let Some(found) = known else { return false };
                if may_leave(*id) {
                    let rank = found.standing.rank(now, found.bytes, self.limit, id.index);
                    best = best.max(Some((rank, *id)));
                }
                true
            });
            while let Some((heap, entry)) = self.aside.pop() {
                self.heaps[heap].push(entry);
            }
            if complete {
                return best.map(|(_, id)| id);
            }
        }
    }

    /// The first of one heap, whose entry is set aside with those that may not leave. Not `complete` if one was found to
    /// belong to a heap before this one.
    fn top(
        &mut self,
        heap: usize,
        look: &dyn Fn(BlockId) -> Option<Resident>,
        may_leave: &dyn Fn(BlockId) -> bool,
        complete: &mut bool,
    ) -> Option<Resident> {
        while let Some(entry) = self.heaps[heap].pop() {
            let id = entry.id();
            let Some(resident) = look(id) else { continue };
            let (true_heap, true_key) = match resident.standing {
                Standing::Free => (FREE, resident.bytes),
                Standing::Unknown { recent } => (UNKNOWN, u64::MAX - recent),
                Standing::Known { due, copies } => (UNKNOWN + copies as usize, due),
            };
            if (true_heap, true_key) != (heap, entry.key) {
                *complete &= true_heap >= heap;
                self.enter(&resident);
                continue;
            }
            self.aside.push((heap, entry));
            if may_leave(id) {
                return Some(resident);
            }
        }
        None
    }
}

/// The first to leave, by a look at all of them.
pub(crate) fn first_of(blocks: impl Iterator<Item = Resident>, now: u64, budget: Limit) -> Option<BlockId> {
    let large = budget.cut(u64::MAX) / 10;
    let rank = |found: &Resident| found.standing.rank(now, found.bytes, large, found.id.index);
    blocks.max_by_key(rank).map(|found| found.id)
}
