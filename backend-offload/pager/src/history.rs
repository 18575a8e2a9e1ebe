//! The program's latest operations, and the next use or end of each operand.
//!
//! A step repeats, but not its block ids: a block is known by the place of its latest use. Operations with operands of
//! equal sizes look alike; [`CONTEXT`] in a row find a place. Full rings are reused, without allocations.

use crate::block::BlockId;

pub(crate) const CONTEXT: u64 = 4;

/// Dozens of steps of small models, several of large ones.
const MOST_OPERATIONS: usize = 1 << 18;
const MOST_USES: usize = 1 << 20;

/// Longer marked steps make the rings grow, up to this factor.
const LONGEST: usize = 1 << 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Unknown,
    /// Used again this many operations later.
    Used(u64),
    /// Freed this many operations later, unused.
    Freed(u64),
}

/// [`Next`] in four bytes. Distances beyond two billion are unknown.
#[derive(Debug, Clone, Copy, Default)]
struct PackedNext(u32);

const FREED: u32 = 1 << 31;

impl PackedNext {
    fn of(next: Next) -> Self {
        let distance = |after: u64| u32::try_from(after).ok().filter(|after| *after < FREED);
        Self(match next {
            Next::Unknown => 0,
            Next::Used(after) => distance(after).unwrap_or(0),
            Next::Freed(after) => distance(after).map_or(0, |after| after | FREED),
        })
    }

    fn get(self) -> Next {
        match self.0 {
            0 => Next::Unknown,
            after if after & FREED == 0 => Next::Used(u64::from(after)),
            after => Next::Freed(u64::from(after & !FREED)),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Operation {
    /// Hash of its operand sizes.
    look: u64,
    /// Hash of its look and earlier ones.
    context: u64,
    first: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    pub block: BlockId,
    pub bytes: u64,
    pub is_new: bool,
}

#[derive(Debug, Clone, Copy)]
struct Use {
    block: BlockId,
    next: PackedNext,
    size: PackedSize,
    /// Position among its next operation's operands.
    operand: u16,
    written: bool,
    first: bool,
}

impl Use {
    fn of(block: BlockId, size: PackedSize) -> Self {
        Self { block, next: PackedNext::default(), size, operand: 0, written: false, first: true }
    }
}

/// Size in units of 512 bytes, rounded up, at most a terabyte; and whether the block was new.
#[derive(Debug, Clone, Copy, Default)]
struct PackedSize(u32);

const NEW: u32 = 1 << 31;

impl PackedSize {
    const UNIT: u64 = 512;

    fn of(bytes: u64, is_new: bool) -> Self {
        let units = u32::try_from(bytes.div_ceil(Self::UNIT)).unwrap_or(NEW).min(NEW - 1);
        Self(if is_new { units | NEW } else { units })
    }

    fn bytes(self) -> u64 {
        u64::from(self.0 & !NEW) * Self::UNIT
    }

    fn is_new(self) -> bool {
        self.0 & NEW != 0
    }
}

/// Numbers of operations and operands only grow.
#[derive(Debug)]
pub(crate) struct History {
    operations: Ring<Operation>,
    uses: Ring<Use>,
    /// The latest operation by bits of its context's hash.
    latest: Vec<u64>,
}

const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

impl History {
    pub fn new() -> Self {
        Self {
            operations: Ring::new(MOST_OPERATIONS, Operation::default()),
            uses: Ring::new(
                MOST_USES,
                Use::of(BlockId { index: u32::MAX, generation: 0 }, PackedSize::default()),
            ),
            latest: Vec::new(),
        }
    }

    pub fn end(&self) -> u64 {
        self.operations.end + 1
    }

    pub fn uses_end(&self) -> u64 {
        self.uses.end
    }

    /// Keeps two steps of so many operations and uses: the second is recognised.
    pub fn keep_steps(&mut self, operations: u64, uses: u64) {
        self.operations.keep(2 * operations, MOST_OPERATIONS * LONGEST);
        self.uses.keep(2 * uses, MOST_USES * LONGEST);
    }

    /// Returns the latest earlier operation of the same context.
    pub fn push(&mut self, operands: impl Iterator<Item = Named>) -> Option<u64> {
        let (first, number) = (self.uses.end, self.end());
        let mut look = 1u64;
        for Named { block, bytes, is_new } in operands {
            look = (look ^ bytes).wrapping_mul(BASE).rotate_left(29);
            let size = PackedSize::of(bytes, is_new);
            self.uses.push(Use::of(block, size));
        }
        let before = self.operation(number - 1).map_or(0, |operation| operation.context);
        let leaving = self.operation(number.saturating_sub(CONTEXT)).map_or(0, |operation| operation.look);
        let weight = BASE.wrapping_pow(CONTEXT as u32);
        let context = before.wrapping_mul(BASE).wrapping_add(look).wrapping_sub(leaving.wrapping_mul(weight));
        if self.operations.push(Operation { look, context, first }) {
            self.reindex();
        }
        let slot = self.slot(context);
        let earlier = std::mem::replace(&mut self.latest[slot], number);
        self.operation(earlier).filter(|operation| operation.context == context && number > CONTEXT)?;
        Some(earlier)
    }

    fn slot(&self, context: u64) -> usize {
        (context.wrapping_mul(BASE) >> 20) as usize & (self.latest.len() - 1)
    }

    fn reindex(&mut self) {
        self.latest.clear();
        self.latest.resize(self.operations.slots.len() * 2, 0);
        for number in self.first()..self.end() - 1 {
            let slot = self.slot(self.operations.slots[self.operations.at(number - 1)].context);
            self.latest[slot] = number;
        }
    }

    fn first(&self) -> u64 {
        self.operations.begin + 1
    }

    fn operation(&self, number: u64) -> Option<&Operation> {
        self.operations.get(number.checked_sub(1)?)
    }

    pub fn look_alike(&self, one: u64, other: u64) -> bool {
        let look = |number| self.operation(number).map(|operation| operation.look);
        look(one).is_some() && look(one) == look(other)
    }

    /// Empty if forgotten.
    pub fn uses(&self, number: u64) -> std::ops::Range<u64> {
        let Some(operation) = self.operation(number) else { return 0..0 };
        let end = self.operation(number + 1).map_or(self.uses.end, |next| next.first);
        operation.first.max(self.uses.begin)..end
    }

    pub fn block(&self, place: u64) -> Option<BlockId> {
        self.uses.get(place).map(|used| used.block)
    }

    pub fn next(&self, place: u64) -> Next {
        self.uses.get(place).map_or(Next::Unknown, |used| used.next.get())
    }

    pub fn size(&self, place: u64) -> (u64, bool) {
        self.uses.get(place).map_or((0, false), |used| (used.size.bytes(), used.size.is_new()))
    }

    pub fn learn(&mut self, place: u64, next: Next, operand: usize) {
        if let Some(used) = self.uses.get_mut(place) {
            let operand = u16::try_from(operand);
            used.next = operand.map_or_else(|_| PackedNext::default(), |_| PackedNext::of(next));
            used.operand = operand.unwrap_or(0);
        }
    }

    pub fn operand(&self, place: u64) -> usize {
        self.uses.get(place).map_or(0, |used| usize::from(used.operand))
    }

    pub fn used_before(&mut self, place: u64) {
        if let Some(used) = self.uses.get_mut(place) {
            used.first = false;
        }
    }

    pub fn is_first(&self, place: u64) -> bool {
        self.uses.get(place).is_some_and(|used| used.first)
    }

    pub fn write(&mut self, place: u64) {
        if let Some(used) = self.uses.get_mut(place) {
            used.written = true;
        }
    }

    pub fn is_written(&self, place: u64) -> bool {
        self.uses.get(place).is_some_and(|used| used.written)
    }

    pub fn next_place(&self, number: u64, place: u64) -> Option<u64> {
        let Next::Used(after) = self.next(place) else { return None };
        self.uses(number + after).nth(self.operand(place))
    }
}

#[derive(Debug)]
struct Ring<T> {
    slots: Vec<T>,
    begin: u64,
    end: u64,
    most: usize,
    blank: T,
}

impl<T: Copy> Ring<T> {
    const FEWEST: usize = 1 << 10;

    fn new(most: usize, blank: T) -> Self {
        Self { slots: Vec::new(), begin: 0, end: 0, most, blank }
    }

    fn at(&self, number: u64) -> usize {
        number as usize & (self.slots.len() - 1)
    }

    fn keep(&mut self, items: u64, limit: usize) {
        let wanted = usize::try_from(items).unwrap_or(limit).min(limit);
        self.most = self.most.max(wanted.next_power_of_two());
    }

    fn push(&mut self, item: T) -> bool {
        let is_full = self.end - self.begin == self.slots.len() as u64;
        let grows = is_full && self.slots.len() < self.most;
        if grows {
            self.grow();
        } else if is_full {
            self.begin += 1;
        }
        let at = self.at(self.end);
        self.slots[at] = item;
        self.end += 1;
        grows
    }

    #[cold]
    fn grow(&mut self) {
        let kept = self.begin..self.end;
        let items: Vec<T> = kept.clone().map(|number| self.slots[self.at(number)]).collect();
        self.slots.resize((self.slots.len() * 2).max(Self::FEWEST), self.blank);
        for (number, item) in kept.zip(items) {
            let at = self.at(number);
            self.slots[at] = item;
        }
    }

    fn get(&self, number: u64) -> Option<&T> {
        (self.begin..self.end).contains(&number).then(|| &self.slots[self.at(number)])
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let at = (self.begin..self.end).contains(&number).then(|| self.at(number))?;
        self.slots.get_mut(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_survive_packing_and_those_too_large_are_unknown() {
        for next in [Next::Unknown, Next::Used(1), Next::Used(1 << 30), Next::Freed(0), Next::Freed(77)] {
            assert_eq!(PackedNext::of(next).get(), next);
        }
        assert_eq!(PackedNext::of(Next::Used(1 << 31)).get(), Next::Unknown);
    }

    #[test]
    fn sizes_are_packed_to_no_less_up_to_a_terabyte() {
        for (bytes, packed) in [(0, 0), (1, 512), (512, 512), (513, 1024), (1 << 39, 1 << 39)] {
            let (old, new) = (PackedSize::of(bytes, false), PackedSize::of(bytes, true));
            assert_eq!((old.bytes(), old.is_new()), (packed, false));
            assert_eq!((new.bytes(), new.is_new()), (packed, true));
        }
        assert!(!PackedSize::of(u64::MAX, false).is_new());
        assert!(PackedSize::of(u64::MAX, true).bytes() > 1 << 39);
    }

    #[test]
    fn a_ring_grows_to_its_limit_and_then_forgets_the_oldest_until_the_limit_grows() {
        let mut ring = Ring::new(2048, 0u64);
        (0..5000).for_each(|n| _ = ring.push(n));
        assert_eq!((ring.slots.len(), ring.begin), (2048, 5000 - 2048));
        assert_eq!((ring.get(2951), ring.get(2952), ring.get(4999)), (None, Some(&2952), Some(&4999)));
        assert_eq!(ring.get(5000), None);

        ring.keep(5000, 4096);
        (5000..7000).for_each(|n| _ = ring.push(n));
        assert_eq!((ring.slots.len(), ring.begin), (4096, 5000 - 2048), "what it held is kept");
        assert!((5000 - 2048..7000).all(|n| ring.get(n) == Some(&n)));
        (7000..9000).for_each(|n| _ = ring.push(n));
        assert_eq!((ring.begin, ring.get(9000 - 4096)), (9000 - 4096, Some(&(9000 - 4096))));
    }
}
