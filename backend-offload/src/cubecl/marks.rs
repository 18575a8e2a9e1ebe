//! Points in a stream's work, after which freed memory may be overwritten.
//!
//! A copy onto the device that waits for all of a stream's work overlaps none of it. So while blocks move, a point
//! precedes each piece of work, and freed memory keeps its last piece. A copy waits for the next point
//! (`memory_waits_for_the_first_point_after_its_last_use`); points are bounded
//! (`points_are_bounded_and_forgotten_when_no_block_moves`).
//!
//! It waits for all queued work if the memory is fresh from the driver, or if another stream, a copy or the runtime's
//! small buffers may use it.

use std::collections::{HashMap, VecDeque};

const KEPT: usize = 64;

const MOVING: u32 = 256;

#[derive(Debug)]
pub(super) struct Marks<E> {
    /// Points, each after a number of pieces.
    points: VecDeque<(u64, E)>,
    free: HashMap<u64, u64>,
    /// Pieces of work until marking ends.
    left: u32,
}

impl<E> Default for Marks<E> {
    fn default() -> Self {
        Self { points: VecDeque::new(), free: HashMap::new(), left: 0 }
    }
}

impl<E> Marks<E> {
    pub fn moves(&mut self) {
        self.left = MOVING;
    }

    pub fn is_moving(&self) -> bool {
        self.left > 0
    }

    /// Without a point, or when marking ends, forgets all.
    pub fn mark(&mut self, pieces: u64, point: Option<E>) {
        self.left -= 1;
        let Some(point) = point.filter(|_| self.left > 0) else { return self.forget_all() };
        if self.points.len() == KEPT {
            self.points.pop_front();
        }
        self.points.push_back((pieces, point));
    }

    /// `last` is `None` if other work may still use the memory.
    pub fn release(&mut self, address: u64, last: Option<u64>) {
        match last {
            Some(last) => _ = self.free.insert(address, last),
            None => _ = self.free.remove(&address),
        }
    }

    pub fn take(&mut self, address: u64) -> Option<&E> {
        let last = self.free.remove(&address)?;
        self.after(last)
    }

    pub fn after(&self, last: u64) -> Option<&E> {
        let first = self.points.partition_point(|(pieces, _)| *pieces < last);
        self.points.get(first).map(|(_, point)| point)
    }

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
            marks.release(address, Some(last));
        }
        marks.release(1, Some(16));
        assert_eq!(marks.take(1), Some(&16), "it was used again");
        assert_eq!(marks.take(1), None, "it is in use");
        assert_eq!(marks.take(2), Some(&10), "any later point will do");
        assert_eq!(marks.take(3), Some(&19));
        assert_eq!(marks.take(4), None, "no point comes after it");
        marks.release(5, Some(12));
        marks.release(5, None);
        assert_eq!(marks.take(5), None, "others may use it");
    }

    #[test]
    fn points_are_bounded_and_forgotten_when_no_block_moves() {
        let mut marks = marked(0..200);
        assert_eq!(marks.points.len(), KEPT);
        marks.release(1, Some(2));
        assert_eq!(marks.take(1), Some(&136));
        marks.release(1, Some(2));
        for pieces in 200..256 {
            marks.mark(pieces, Some(pieces));
        }
        assert!(!marks.is_moving());
        assert_eq!(marks.take(1), None);
    }
}
