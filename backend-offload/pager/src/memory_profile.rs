//! Simulated memory after each operation of a moving window. A tree of maxima: changes and queries take logarithmic
//! time.

use std::ops::Range;

#[derive(Debug, Default)]
pub(crate) struct MemoryProfile {
    /// Binary tree, root at 1: maxima below, without amounts added at higher nodes.
    highest: Vec<i64>,
    /// Added to all levels below a node; contained in its `highest`.
    added: Vec<i64>,
}

impl MemoryProfile {
    pub fn of(operations: u64) -> Self {
        let leaves = operations.max(1).next_power_of_two() as usize;
        Self { highest: vec![0; 2 * leaves], added: vec![0; 2 * leaves] }
    }

    pub fn kept(&self) -> u64 {
        self.highest.len() as u64 / 2
    }

    fn leaves_of(&self, operations: &Range<u64>) -> [Range<usize>; 2] {
        let leaves = self.kept();
        let count = operations.end.saturating_sub(operations.start).min(leaves);
        let begin = (operations.start % leaves) as usize;
        let (end, all) = (begin + count as usize, leaves as usize);
        [begin..end.min(all), 0..end.saturating_sub(all)]
    }

    /// Drops the oldest level.
    pub fn set(&mut self, operation: u64, level: i64) {
        let before = self.highest(operation..operation + 1).unwrap_or(0);
        self.add(operation..operation + 1, level - before);
    }

    pub fn add(&mut self, operations: Range<u64>, bytes: i64) {
        for stretch in self.leaves_of(&operations) {
            self.add_below(1, 0..self.kept() as usize, &stretch, bytes);
        }
    }

    fn add_below(&mut self, node: usize, covers: Range<usize>, stretch: &Range<usize>, bytes: i64) {
        if stretch.start >= covers.end || stretch.end <= covers.start {
            return;
        }
        if stretch.start <= covers.start && covers.end <= stretch.end {
            self.highest[node] += bytes;
            self.added[node] += bytes;
            return;
        }
        let middle = usize::midpoint(covers.start, covers.end);
        self.add_below(2 * node, covers.start..middle, stretch, bytes);
        self.add_below(2 * node + 1, middle..covers.end, stretch, bytes);
        self.highest[node] = self.highest[2 * node].max(self.highest[2 * node + 1]) + self.added[node];
    }

    /// `None` for an empty range.
    pub fn highest(&self, operations: Range<u64>) -> Option<i64> {
        let stretches = self.leaves_of(&operations);
        stretches.iter().filter_map(|stretch| self.highest_below(1, 0..self.kept() as usize, stretch)).max()
    }

    fn highest_below(&self, node: usize, covers: Range<usize>, stretch: &Range<usize>) -> Option<i64> {
        if stretch.start >= covers.end || stretch.end <= covers.start {
            return None;
        }
        if stretch.start <= covers.start && covers.end <= stretch.end {
            return Some(self.highest[node]);
        }
        let middle = usize::midpoint(covers.start, covers.end);
        let low = self.highest_below(2 * node, covers.start..middle, stretch);
        let high = self.highest_below(2 * node + 1, middle..covers.end, stretch);
        Some(low.max(high)? + self.added[node])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changes_leave_the_levels_that_a_list_of_them_has() {
        const KEPT: u64 = 16;
        let mut levels = MemoryProfile::of(KEPT);
        let mut list = vec![0i64; 400];
        let mut chance = 1u64;
        let mut next = |below: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % below
        };
        for now in KEPT..400 {
            let level = next(1000) as i64 - 500;
            levels.set(now, level);
            list[now as usize] = level;
            let first = now + 1 - KEPT;
            for _ in 0..3 {
                let begin = first + next(KEPT);
                let end = begin + next(now + 2 - begin);
                let bytes = next(200) as i64 - 100;
                levels.add(begin..end, bytes);
                list[begin as usize..end as usize].iter_mut().for_each(|level| *level += bytes);
                let begin = first + next(KEPT);
                let end = begin + next(now + 2 - begin);
                let highest = list[begin as usize..end as usize].iter().copied().max();
                assert_eq!(levels.highest(begin..end), highest, "{begin}..{end} at {now}");
            }
        }
    }
}
