//! Divides work among ranks: micro-batches, slices of a buffer, whole parameters.

use std::cmp::Reverse;
use std::ops::Range;

use crate::pairwise::blocks;

/// One rank's share of a step's micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Micro-batches of all ranks.
    pub count: u64,
    /// Number of ranks.
    pub world: usize,
    /// This rank.
    pub rank: usize,
}

impl Share {
    /// Global numbers of this rank's micro-batches.
    pub fn range(&self) -> Range<u64> {
        range(self.count, self.world, self.rank)
    }

    /// This rank's micro-batches in [`groups`] of at most `most`.
    pub fn groups(&self, most: usize) -> Vec<Range<usize>> {
        let own = self.range();
        groups([own.start; 2], (own.end - own.start) as usize, most)
    }

    /// Partial sums held after this rank's first `added` micro-batches.
    pub fn held(&self, added: u64) -> usize {
        let begin = self.range().start;
        blocks(begin..begin + added).len()
    }
}

/// Consecutive micro-batches of `rank`; counts differ by at most one between ranks.
pub fn range(count: u64, world: usize, rank: usize) -> Range<u64> {
    let begin = |rank: usize| (u128::from(count) * rank as u128 / world as u128) as u64;
    begin(rank)..begin(rank + 1)
}

/// Splits `count` micro-batches, numbered from each of `starts`, into groups of at most `most`. A group's size is a
/// power of two that divides both numbers of its first micro-batch: its sum is a pairwise sum.
pub fn groups(starts: [u64; 2], count: usize, most: usize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut begin = 0;
    while begin < count {
        let aligned = starts.map(|start| (start + begin as u64).trailing_zeros());
        let level = most.min(count - begin).ilog2().min(aligned[0]).min(aligned[1]);
        groups.push(begin..begin + (1 << level));
        begin += 1 << level;
    }
    groups
}

/// Elements of each rank's part of an evenly divided buffer.
pub fn even(len: usize, world: usize) -> Vec<usize> {
    (0..world)
        .map(|rank| range(len as u64, world, rank))
        .map(|range| (range.end - range.start) as usize)
        .collect()
}

/// Each parameter's owner, balanced by bytes: largest first, to the rank with least. Ties go by index, so all ranks
/// agree.
pub fn shards(sizes: &[u64], world: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|index| Reverse(sizes[*index]));
    let mut loads = vec![0_u64; world];
    let mut owners = vec![0; sizes.len()];
    for index in order {
        let least = (0..world).min_by_key(|rank| loads[*rank]).unwrap_or(0);
        loads[least] += sizes[index];
        owners[index] = least;
    }
    owners
}

/// Groups neighbours of at most `most` together, or one longer one.
pub fn neighbours(lens: &[usize], most: usize) -> Vec<Range<usize>> {
    let (mut groups, mut filled) = (Vec::<Range<usize>>::new(), 0_usize);
    for (at, len) in lens.iter().enumerate() {
        filled = filled.saturating_add(*len);
        match groups.last_mut() {
            Some(group) if filled <= most => group.end = at + 1,
            _ => {
                filled = *len;
                groups.push(at..at + 1);
            }
        }
    }
    groups
}

pub(crate) fn places(parts: &[usize]) -> Vec<Range<usize>> {
    let place = |end: &mut usize, part: &usize| {
        let begin = *end;
        *end += part;
        Some(begin..*end)
    };
    parts.iter().scan(0, place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_powers_of_two_at_multiples_of_their_size() {
        let sizes = |starts, count, most| -> Vec<usize> {
            let groups = groups(starts, count, most);
            let ends = groups.windows(2).all(|pair| pair[0].end == pair[1].start);
            assert!(ends && groups.last().map_or(0, |last| last.end) == count, "{groups:?}");
            groups.iter().map(ExactSizeIterator::len).collect()
        };
        assert_eq!(sizes([0, 0], 8, 1), [1; 8]);
        assert_eq!(sizes([0, 0], 8, 8), [8]);
        assert_eq!(sizes([0, 0], 7, 4), [4, 2, 1]);
        assert_eq!(sizes([3, 3], 5, 16), [1, 4]);
        assert_eq!(sizes([3, 0], 2, 16), [1, 1]);
        assert_eq!(sizes([2, 0], 3, 16), [2, 1]);
        assert_eq!(sizes([0, 0], 0, 4), [0; 0]);
    }

    #[test]
    fn every_micro_batch_has_one_rank_and_uneven_counts_differ_by_one() {
        for (count, world) in [(8, 4), (7, 3), (2, 5), (0, 2), (u64::MAX, 3)] {
            let ranges: Vec<_> = (0..world).map(|rank| range(count, world, rank)).collect();
            assert_eq!((ranges[0].start, ranges[world - 1].end), (0, count));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths: Vec<_> = ranges.iter().map(|range| range.end - range.start).collect();
            let (least, most) = (lengths.iter().min(), lengths.iter().max());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{lengths:?}");
        }
        assert_eq!(even(10, 4), [2, 3, 2, 3]);
    }

    #[test]
    fn the_largest_parameter_goes_first_to_the_rank_with_the_least() {
        assert_eq!(shards(&[1, 5, 4, 3, 3], 2), [1, 0, 1, 1, 0]);
        assert_eq!(shards(&[7, 7, 7], 3), [0, 1, 2]);
        assert_eq!(shards(&[7, 7], 1), [0, 0]);
        assert_eq!(shards(&[], 4), [0_usize; 0]);
    }
}
