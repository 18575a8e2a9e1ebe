//! Byte-pair merging of one piece: the best-ranked adjacent pair first, the leftmost on a tie.
//!
//! A heap of candidate pairs over a doubly linked list of symbols, so a piece of n symbols costs O(n log n) even
//! when it is a megabyte of one letter.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Where a symbol has no neighbour.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    pub(crate) rank: u32,
    pub(crate) result: u32,
}

/// Which adjacent token ids become which token.
#[derive(Debug, Default)]
pub(crate) struct MergeTable(std::collections::HashMap<u64, Merge, ahash::RandomState>);

impl MergeTable {
    pub(crate) fn with_capacity(merges: usize) -> Self {
        Self(std::collections::HashMap::with_capacity_and_hasher(merges, ahash::RandomState::default()))
    }

    /// `false` when the pair was listed before: which of two ranks holds is then a matter of the reader.
    #[must_use]
    pub(crate) fn insert(&mut self, left: u32, right: u32, merge: Merge) -> bool {
        self.0.insert(pair(left, right), merge).is_none()
    }

    fn get(&self, left: u32, right: u32) -> Option<Merge> {
        self.0.get(&pair(left, right)).copied()
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
    merged_away: bool,
}

/// Buffers reused from piece to piece.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Reverse<(u32, u32, u32)>>,
}

impl Merger {
    /// Appends the merged form of `ids`, at most [`u32::MAX`] of them, to `out`.
    pub(crate) fn merge(&mut self, ids: impl Iterator<Item = u32>, table: &MergeTable, out: &mut Vec<u32>) {
        self.symbols.clear();
        self.candidates.clear();
        for (at, id) in ids.enumerate() {
            let at = at as u32;
            let previous = at.checked_sub(1).unwrap_or(NONE);
            self.symbols.push(Symbol { id, previous, next: at + 1, merged_away: false });
        }
        let Some(last) = self.symbols.last_mut() else { return };
        last.next = NONE;
        for at in 0..self.symbols.len() as u32 - 1 {
            self.propose(at, table);
        }
        while let Some(Reverse((_, at, result))) = self.candidates.pop() {
            self.apply(at, result, table);
        }
        out.extend(self.symbols.iter().filter(|symbol| !symbol.merged_away).map(|symbol| symbol.id));
    }

    fn propose(&mut self, left: u32, table: &MergeTable) {
        let symbol = self.symbols[left as usize];
        if symbol.next == NONE {
            return;
        }
        if let Some(merge) = table.get(symbol.id, self.symbols[symbol.next as usize].id) {
            self.candidates.push(Reverse((merge.rank, left, merge.result)));
        }
    }

    fn apply(&mut self, at: u32, result: u32, table: &MergeTable) {
        let left = self.symbols[at as usize];
        if left.merged_away || left.next == NONE {
            return;
        }
        let right = self.symbols[left.next as usize];
        // A candidate is stale when its pair is gone. Comparing results instead of ranks keeps one whose pair was
        // replaced by another pair with the same result, exactly as Hugging Face's implementation does.
        if table.get(left.id, right.id).is_none_or(|merge| merge.result != result) {
            return;
        }
        self.symbols[left.next as usize].merged_away = true;
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
        for (rank, &(left, right, result)) in merges.iter().enumerate() {
            assert!(table.insert(left, right, Merge { rank: rank as u32, result }));
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
    fn nothing_and_one_symbol_pass_through() {
        assert!(merged(&[], &[(1, 1, 10)]).is_empty());
        assert_eq!(merged(&[7], &[(1, 1, 10)]), [7]);
    }
}
