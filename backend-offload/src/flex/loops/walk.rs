//! Walks over operands of one shape, each with its strides, in few long rows.

#![expect(
    clippy::inline_always,
    reason = "a call that is not inlined into the vectorised loop is compiled for the oldest processor"
)]

use std::array;
use std::ops::Range;

pub(super) struct Walk<const N: usize> {
    /// Sizes and strides, row last. Dimensions that all operands step through alike are merged.
    dims: Vec<(usize, [isize; N])>,
    start: [isize; N],
}

impl<const N: usize> Walk<N> {
    pub(super) fn new(shape: &[usize], strides: [&[isize]; N], start: [usize; N]) -> Self {
        let mut dims: Vec<(usize, [isize; N])> = Vec::with_capacity(shape.len().max(1));
        for (n, &size) in shape.iter().enumerate().filter(|(_, size)| **size != 1) {
            let steps = strides.map(|strides| strides[n]);
            match dims.last_mut() {
                Some((outer, over)) if (0..N).all(|k| over[k] == steps[k] * size as isize) => {
                    (*outer, *over) = (*outer * size, steps);
                }
                _ => dims.push((size, steps)),
            }
        }
        if dims.is_empty() {
            dims.push((1, [1; N]));
        }
        Self { dims, start: start.map(|start| start as isize) }
    }

    pub(super) fn steps(&self) -> [isize; N] {
        self.dims[self.dims.len() - 1].1
    }

    /// Calls `piece` for each part of a row, with its range in `elements` and the operands' starts.
    #[inline(always)]
    pub(super) fn pieces(&self, elements: Range<usize>, mut piece: impl FnMut(Range<usize>, [usize; N])) {
        let (&(row, steps), outer) = self.dims.split_last().expect("never empty");
        let mut begin = self.start;
        let mut place = vec![0; outer.len()];
        let mut rows = elements.start / row;
        for (place, (size, over)) in place.iter_mut().zip(outer).rev() {
            (*place, rows) = (rows % size, rows / size);
            begin = array::from_fn(|k| begin[k] + *place as isize * over[k]);
        }

        let mut column = elements.start % row;
        let mut at = elements.start;
        while at < elements.end {
            let end = (at + row - column).min(elements.end);
            let first = array::from_fn(|k| (begin[k] + column as isize * steps[k]) as usize);
            piece(at - elements.start..end - elements.start, first);
            (at, column) = (end, 0);
            for (place, (size, over)) in place.iter_mut().zip(outer).rev() {
                *place += 1;
                begin = array::from_fn(|k| begin[k] + over[k]);
                if *place < *size {
                    break;
                }
                *place = 0;
                begin = array::from_fn(|k| begin[k] - *size as isize * over[k]);
            }
        }
    }
}

pub(super) fn repeated(own: &[usize], strides: &[isize], shape: &[usize]) -> Vec<isize> {
    let missing = shape.len() - own.len();
    let step = |n: usize| match n.checked_sub(missing) {
        Some(n) if own[n] == shape[n + missing] => strides[n],
        _ => 0,
    };
    (0..shape.len()).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(walk: &Walk<1>, range: Range<usize>) -> Vec<usize> {
        let mut found = Vec::new();
        let [step] = walk.steps();
        walk.pieces(range, |piece, [first]| {
            found.extend((0..piece.len()).map(|n| (first as isize + n as isize * step) as usize));
        });
        found
    }

    #[test]
    fn dimensions_that_follow_each_other_are_one_row() {
        let walk = Walk::new(&[2, 1, 3, 4], [&[12, 12, 4, 1], &[0, 9, 4, 1]], [0, 0]);
        assert_eq!(walk.dims, [(2, [12, 0]), (12, [1, 1])]);
        assert_eq!(Walk::new(&[1, 1], [&[7, 7]], [3]).dims, [(1, [1])]);
    }

    #[test]
    fn a_walk_in_parts_visits_the_elements_of_a_whole_walk() {
        let walk = Walk::new(&[3, 2, 4], [&[1, 0, -3]], [11]);
        let all = offsets(&walk, 0..24);
        let expected = (0..24).map(|n: usize| 11 + n / 8 - 3 * (n % 4));
        assert_eq!(all, expected.collect::<Vec<_>>());
        for cut in 0..=24 {
            let parts = [offsets(&walk, 0..cut), offsets(&walk, cut..24)].concat();
            assert_eq!(parts, all, "cut at {cut}");
        }
    }

    #[test]
    fn a_repeated_dimension_has_stride_zero() {
        assert_eq!(repeated(&[4, 1], &[1, 1], &[2, 4, 3]), [0, 1, 0]);
        assert_eq!(repeated(&[2, 3], &[3, 1], &[2, 3]), [3, 1]);
    }
}
