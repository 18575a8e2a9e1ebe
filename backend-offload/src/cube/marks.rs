//! Points in a stream's work, and which of them memory that is free again waits for.
//!
//! A copy onto the device may start once its memory is free of earlier work. The stream may have been given much since, and a copy that
//! came after all of it would not be beside it. So while blocks move, a point is marked before each piece of work on buffers, and what is
//! let go of is remembered with the last piece that used it. Memory that nothing is remembered of, as any that is new from the driver, waits for all work.

use std::collections::{HashMap, VecDeque};

/// Points that are kept: further pieces of work are seldom queued at a time.
const KEPT: usize = 64;

/// Points are marked for so many pieces of work after a copy.
const MOVING: u32 = 256;

#[derive(Debug)]
pub(super) struct Marks<E> {
    /// Points, and how many pieces of work came before each.
    points: VecDeque<(u64, E)>,
    /// The last piece of work on memory that is free, by its address.
    free: HashMap<u64, u64>,
    /// Pieces of work for which points will be marked.
    left: u32,
}

impl<E> Default for Marks<E> {
    fn default() -> Self {
        Self { points: VecDeque::new(), free: HashMap::new(), left: 0 }
    }
}

impl<E> Marks<E> {
    /// A copy was started.
    pub fn moves(&mut self) {
        self.left = MOVING;
    }

    /// Whether blocks move, so that points are worth marking.
    pub fn is_moving(&self) -> bool {
        self.left > 0
    }

    /// Marks the point that comes after so many pieces of work; without one, nothing is known any more.
    pub fn mark(&mut self, pieces: u64, point: Option<E>) {
        self.left -= 1;
        let Some(point) = point.filter(|_| self.left > 0) else { return self.forget_all() };
        if self.points.len() == KEPT {
            self.points.pop_front();
        }
        self.points.push_back((pieces, point));
    }

    /// Memory is let go of, whose last use was this piece of work; `None` if other work may use it still.
    pub fn let_go(&mut self, address: u64, last: Option<u64>) {
        match last {
            Some(last) => _ = self.free.insert(address, last),
            None => _ = self.free.remove(&address),
        }
    }

    /// The point from which on this memory is free, if that is known; it is taken for something else.
    pub fn take(&mut self, address: u64) -> Option<&E> {
        let last = self.free.remove(&address)?;
        self.after(last)
    }

    /// The first point after a piece of work, if there is one.
    pub fn after(&self, last: u64) -> Option<&E> {
        let first = self.points.partition_point(|(pieces, _)| *pieces < last);
        self.points.get(first).map(|(_, point)| point)
    }

    /// Memory may come from the driver again at an address where other memory was.
    pub fn forget_all(&mut self) {
        self.points.clear();
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(points: std::ops::Range<u64>) -> Marks<u64> {
        let mut marks = Marks::default();
        marks.moves();
        for pieces in points {
            marks.mark(pieces, Some(pieces));
        }
        marks
    }

    #[test]
    fn memory_waits_for_the_first_point_after_its_last_use() {
        let mut marks = marked(10..20);
        for (address, last) in [(1, 15), (2, 3), (3, 19), (4, 20)] {
            marks.let_go(address, Some(last));
        }
        marks.let_go(1, Some(16));
        assert_eq!(marks.take(1), Some(&16), "it was used again");
        assert_eq!(marks.take(1), None, "it is somebody's now");
        assert_eq!(marks.take(2), Some(&10), "any later point will do");
        assert_eq!(marks.take(3), Some(&19));
        assert_eq!(marks.take(4), None, "no point comes after it");
        marks.let_go(5, Some(12));
        marks.let_go(5, None);
        assert_eq!(marks.take(5), None, "others may use it");
    }

    #[test]
    fn points_are_few_and_nothing_is_known_when_nothing_moves() {
        let mut marks = marked(0..200);
        assert_eq!(marks.points.len(), KEPT);
        marks.let_go(1, Some(2));
        assert_eq!(marks.take(1), Some(&136));
        marks.let_go(1, Some(2));
        for pieces in 200..256 {
            marks.mark(pieces, Some(pieces));
        }
        assert!(!marks.is_moving());
        assert_eq!(marks.take(1), None);
    }
}
