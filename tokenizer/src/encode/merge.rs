//! Merges a piece's byte pairs: the best-ranked adjacent pair first, the leftmost on a tie.
//!
//! A heap of candidates over linked symbols: n symbols cost O(n log n).

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

const NONE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct MergeTable {
    ranks: HashMap<u64, u32, ahash::RandomState>,
    results: Vec<u32>,
}

impl MergeTable {
    /// `false` for a repeated pair: readers disagree on its rank.
    #[must_use]
    pub(crate) fn push(&mut self, left: u32, right: u32, result: u32) -> bool {
        self.results.push(result);
        self.ranks.insert(join(left, right), self.results.len() as u32 - 1).is_none()
    }

    fn rank(&self, left: u32, right: u32) -> Option<u32> {
        self.ranks.get(&join(left, right)).copied()
    }
}

fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    /// [`NONE`] once merged into its left neighbour.
    id: u32,
    previous: u32,
    next: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    /// Rank, then the left symbol's position.
    candidates: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Appends the merged `ids`, fewer than [`u32::MAX`], to `out`.
    pub(crate) fn merge(&mut self, ids: impl Iterator<Item = u32>, table: &MergeTable, out: &mut Vec<u32>) {
        self.symbols.clear();
        self.candidates.clear();
        for (at, id) in ids.enumerate() {
            let at = at as u32;
            self.symbols.push(Symbol { id, previous: at.checked_sub(1).unwrap_or(NONE), next: at + 1 });
        }
        let Some(last) = self.symbols.last_mut() else { return };
        last.next = NONE;
        for at in 0..self.symbols.len() as u32 - 1 {
            self.propose(at, table);
        }
        while let Some(Reverse(candidate)) = self.candidates.pop() {
            self.apply(candidate as u32, table.results[(candidate >> 32) as usize], table);
        }
        out.extend(self.symbols.iter().map(|symbol| symbol.id).filter(|id| *id != NONE));
    }

    fn propose(&mut self, left: u32, table: &MergeTable) {
        let symbol = self.symbols[left as usize];
        if symbol.next == NONE {
            return;
        }
        if let Some(rank) = table.rank(symbol.id, self.symbols[symbol.next as usize].id) {
            self.candidates.push(Reverse(join(rank, left)));
        }
    }

    fn apply(&mut self, at: u32, result: u32, table: &MergeTable) {
        let left = self.symbols[at as usize];
        if left.id == NONE || left.next == NONE {
            return;
        }
        let right = self.symbols[left.next as usize];
        // Stale if the pair is gone. Like Hugging Face, compares results: another pair may have the same.
        if table.rank(left.id, right.id).is_none_or(|rank| table.results[rank as usize] != result) {
            return;
        }
        self.symbols[left.next as usize].id = NONE;
        self.symbols[at as usize] = Symbol { id: result, next: right.next, ..left };
        if right.next != NONE {
            self.symbols[right.next as usize].previous = at;
        }
        if left.previous != NONE {
            self.propose(left.previous, table);
        }
        self.propose(at, table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(ids: &[u32], merges: &[(u32, u32, u32)]) -> Vec<u32> {
        let mut table = MergeTable::default();
        for &(left, right, result) in merges {
            assert!(table.push(left, right, result));
        }
        let mut out = Vec::new();
        Merger::default().merge(ids.iter().copied(), &table, &mut out);
        out
    }

    #[test]
    fn the_better_rank_wins_over_the_left_position() {
        assert_eq!(merged(&[1, 2, 3], &[(2, 3, 10), (1, 2, 11)]), [1, 10]);
    }

    #[test]
    fn equal_ranks_merge_from_the_left() {
        assert_eq!(merged(&[1, 1, 1], &[(1, 1, 10)]), [10, 1]);
    }

    #[test]
    fn merged_symbols_merge_again_on_both_sides() {
        assert_eq!(merged(&[1, 1, 1, 1, 2], &[(1, 1, 10), (10, 10, 11), (11, 2, 12)]), [12]);
    }

    #[test]
    fn empty_and_single_symbol_inputs_are_unchanged() {
        assert!(merged(&[], &[(1, 1, 10)]).is_empty());
        assert_eq!(merged(&[7], &[(1, 1, 10)]), [7]);
    }
}
