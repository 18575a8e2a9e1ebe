//! Pairwise sums in an order that no number of ranks changes.
//!
//! The numbers of contributions fix the association of floating-point sums: 2k and 2k + 1 are added first, then
//! neighbouring pairs, as a binary counter carries. Leftover blocks are added from the right: seven contributions make
//! `((0+1)+(2+3)) + ((4+5)+6)`.
//!
//! A rank sums complete blocks within its range of numbers; the exchange combines partial blocks in the same tree. **So
//! the sum has the same bits for every number of ranks** (`an_exact_sum_has_the_same_bits_in_every_world`). If count
//! and world are powers of two, a rank sends one row, otherwise one per block.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::share::Share;

/// One rank's contributions to a sum. Holds one buffer per incomplete block: for `n` contributions at most twice the
/// binary digits of `n`.
#[derive(Debug, Clone)]
pub struct Pairwise {
    share: Share,
    len: usize,
    added: u64,
    blocks: Vec<(Block, Vec<f32>)>,
}

/// The contributions from `index << level` on, `1 << level` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) level: u32,
    pub(crate) index: u64,
}

impl Block {
    fn join(self, right: Self) -> Option<Self> {
        let halves =
            self.level == right.level && self.index.is_multiple_of(2) && right.index == self.index + 1;
        halves.then_some(Self { level: self.level + 1, index: self.index / 2 })
    }
}

pub(crate) fn blocks(range: Range<u64>) -> Vec<Block> {
    let (mut begin, end) = (range.start, range.end);
    let mut blocks = Vec::new();
    while begin < end {
        let level = begin.trailing_zeros().min((end - begin).ilog2());
        blocks.push(Block { level, index: begin >> level });
        begin += 1 << level;
    }
    blocks
}

pub(crate) fn one_each(world: usize) -> Vec<Block> {
    (0..world as u64).map(|index| Block { level: 0, index }).collect()
}

/// `add` adds the second item to the first.
pub(crate) struct Tree<I> {
    stack: Vec<(Block, I)>,
}

impl<I> Tree<I> {
    pub(crate) fn new() -> Self {
        Self { stack: Vec::new() }
    }

    pub(crate) fn push(&mut self, block: Block, item: I, mut add: impl FnMut(&mut I, I)) {
        let mut top = (block, item);
        while let Some(joined) = self.stack.last().and_then(|(left, _)| left.join(top.0)) {
            let Some((_, mut left)) = self.stack.pop() else { break };
            add(&mut left, top.1);
            top = (joined, left);
        }
        self.stack.push(top);
    }

    /// In order.
    pub(crate) fn rows(self) -> Vec<I> {
        self.stack.into_iter().map(|(_, item)| item).collect()
    }

    pub(crate) fn finish(mut self, mut add: impl FnMut(&mut I, I)) -> Option<I> {
        let (_, mut sum) = self.stack.pop()?;
        while let Some((_, mut left)) = self.stack.pop() {
            add(&mut left, sum);
            sum = left;
        }
        Some(sum)
    }
}

pub(crate) fn add_to(sum: &mut [f32], more: &[f32]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += *more);
}

impl Pairwise {
    /// An empty sum of `len` elements.
    pub fn new(share: Share, len: usize) -> Self {
        Self { share, len, added: 0, blocks: Vec::new() }
    }

    /// Wraps sums made in the same order, one for each of the [`Share::held`] blocks.
    pub fn of_sums(share: Share, len: usize, sums: Vec<Vec<f32>>) -> Result<Self> {
        let blocks = blocks(share.range());
        if let Some(found) = sums.iter().map(Vec::len).find(|found| *found != len) {
            return Err(Error::Length { what: "a sum of contributions", expected: len, found });
        }
        if sums.len() != blocks.len() {
            let (expected, found) = (blocks.len(), sums.len());
            return Err(Error::Length { what: "a list of sums, one a block", expected, found });
        }
        let added = share.range().end - share.range().start;
        Ok(Self { share, len, added, blocks: blocks.into_iter().zip(sums).collect() })
    }

    /// Elements of the sum.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the sum is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// This rank's share.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Adds this rank's next contribution, in order of the numbers. Returns a freed buffer.
    pub fn push(&mut self, values: Vec<f32>) -> Result<Option<Vec<f32>>> {
        if values.len() != self.len {
            return Err(Error::Length { what: "a contribution", expected: self.len, found: values.len() });
        }
        let mut free = None;
        let mut tree = Tree { stack: std::mem::take(&mut self.blocks) };
        let block = Block { level: 0, index: self.share.range().start + self.added };
        tree.push(block, values, |sum, more| {
            add_to(sum, &more);
            free = Some(more);
        });
        self.blocks = tree.stack;
        self.added += 1;
        Ok(free)
    }

    pub(crate) fn complete(&self) -> Result<()> {
        let Share { count, world, rank } = self.share;
        let range = self.share.range();
        let (expected, found) = (range.end - range.start, self.added);
        if expected == found {
            return Ok(());
        }
        Err(Error::Contributions { rank, world, count, expected, found })
    }

    /// One sum of all buffers, which have the same share.
    pub(crate) fn beside(mut buffers: Vec<Self>) -> Result<Self> {
        for buffer in &buffers {
            buffer.complete()?;
        }
        let Some(last) = buffers.pop() else {
            return Err(Error::Length { what: "a list of buffers", expected: 1, found: 0 });
        };
        if buffers.is_empty() {
            return Ok(last);
        }
        buffers.push(last);
        let len = buffers.iter().map(Self::len).sum();
        let Self { share, added, .. } = buffers[0];
        let row = |(at, (block, _)): (usize, &(Block, Vec<f32>))| {
            let mut row = Vec::with_capacity(len);
            for buffer in &buffers {
                row.extend_from_slice(&buffer.blocks[at].1);
            }
            (*block, row)
        };
        let blocks = buffers[0].blocks.iter().enumerate().map(row).collect();
        Ok(Self { share, len, added, blocks })
    }

    pub(crate) fn rows(self) -> Vec<Vec<f32>> {
        self.blocks.into_iter().map(|(_, row)| row).collect()
    }

    /// The sum of this rank's contributions; zeros if it has none.
    pub fn fold(self) -> Result<Vec<f32>> {
        self.complete()?;
        let len = self.len;
        let sum = Tree { stack: self.blocks }.finish(|sum: &mut Vec<f32>, more| add_to(sum, &more));
        Ok(sum.unwrap_or_else(|| vec![0.0; len]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(count: u64) -> Share {
        Share { count, world: 1, rank: 0 }
    }

    /// Numbers whose sum shows its association.
    fn value(n: u64) -> f32 {
        [1e8, 1.0, -1e8, 0.5, 3e-7, 7.25, -3.0, 1e7][n as usize % 8] * (n + 1) as f32
    }

    #[test]
    fn neighbours_are_added_first_and_the_rest_from_the_right() {
        let mut sum = Pairwise::new(alone(7), 1);
        for n in 0..7 {
            sum.push(vec![value(n)]).expect("one element");
        }
        let v = value;
        let expected = ((v(0) + v(1)) + (v(2) + v(3))) + ((v(4) + v(5)) + v(6));
        assert_eq!(sum.fold().expect("complete")[0].to_bits(), expected.to_bits());
    }

    #[test]
    fn a_range_of_n_holds_a_buffer_for_each_binary_digit() {
        let mut sum = Pairwise::new(alone(1000), 1);
        let mut most = 0;
        for n in 0..1000 {
            sum.push(vec![value(n)]).expect("one element");
            most = most.max(sum.blocks.len());
        }
        assert_eq!(most, 9);
    }

    #[test]
    fn the_blocks_of_a_range_are_those_its_contributions_leave() {
        for (count, world) in [(8, 2), (12, 4), (7, 3), (3, 5), (1000, 7)] {
            for rank in 0..world {
                let share = Share { count, world, rank };
                let mut sum = Pairwise::new(share, 1);
                share.range().for_each(|n| _ = sum.push(vec![value(n)]).expect("one element"));
                let held: Vec<Block> = sum.blocks.iter().map(|(block, _)| *block).collect();
                assert_eq!(held, blocks(share.range()));
            }
        }
        assert_eq!(blocks(8..12), [Block { level: 2, index: 2 }]);
    }

    #[test]
    fn sums_made_elsewhere_go_on_as_if_they_had_been_made_here() {
        let share = Share { count: 12, world: 2, rank: 1 };
        let mut here = Pairwise::new(share, 1);
        share.range().for_each(|n| _ = here.push(vec![value(n)]).expect("one element"));
        let v = value;
        let sums = vec![vec![v(6) + v(7)], vec![(v(8) + v(9)) + (v(10) + v(11))]];
        assert_eq!((share.held(6), share.held(5), share.held(0)), (2, 3, 0));
        let there = Pairwise::of_sums(share, 1, sums.clone()).expect("two blocks");
        // The order decides which row is added to which.
        assert_eq!(there.rows(), here.rows());
        let text = Pairwise::of_sums(share, 2, sums.clone()).expect_err("one element").to_string();
        assert!(text.contains("a sum of contributions"), "{text}");
        let text = Pairwise::of_sums(share, 1, sums[..1].to_vec()).expect_err("one of two").to_string();
        assert!(text.contains("one a block"), "{text}");
    }

    #[test]
    fn buffers_come_back_when_they_are_free() {
        let mut sum = Pairwise::new(alone(4), 2);
        let freed = (0..4).map(|_| sum.push(vec![1.0; 2]).expect("two").is_some()).collect::<Vec<_>>();
        assert_eq!(freed, [false, true, false, true]);
    }

    #[test]
    fn a_sum_that_lacks_contributions_is_refused() {
        let share = Share { count: 7, world: 2, rank: 1 };
        let mut sum = Pairwise::new(share, 1);
        sum.push(vec![1.0]).expect("one element");
        let text = sum.fold().expect_err("one of four").to_string();
        assert_eq!(text, "rank 1 of 2 contributes 4 of 7 micro-batches and has added 1");
        assert!(Pairwise::new(share, 1).push(vec![1.0; 2]).is_err());
    }
}
