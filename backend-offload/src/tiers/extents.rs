//! Free parts of a file, without access to it.

use std::collections::BTreeMap;
use std::ops::Range;

/// Parts' boundaries are multiples of this, for direct I/O.
pub(crate) const ALIGNMENT: u64 = 4096;

fn padded(len: u64) -> u64 {
    len.next_multiple_of(ALIGNMENT)
}

#[derive(Debug)]
pub(super) struct Extents {
    free: BTreeMap<u64, u64>,
    left: u64,
}

impl Extents {
    pub(super) fn new(len: u64) -> Self {
        let len = len / ALIGNMENT * ALIGNMENT;
        Self { free: (len > 0).then_some((0, len)).into_iter().collect(), left: len }
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Takes the smallest part that holds `len` bytes, else the largest parts. `None` if too little is free.
    pub(super) fn take(&mut self, len: u64) -> Option<Vec<Range<u64>>> {
        let mut wanted = padded(len);
        if wanted > self.left {
            return None;
        }
        let mut taken = Vec::new();
        while wanted > 0 {
            let sizes = self.free.iter().map(|(begin, end)| (end - begin, *begin));
            let enough = sizes.clone().filter(|(size, _)| *size >= wanted).min();
            let (size, begin) = enough.or_else(|| sizes.max())?;
            let end = begin + size.min(wanted);
            let rest = self.free.remove(&begin).filter(|rest| *rest > end);
            self.free.extend(rest.map(|rest| (end, rest)));
            self.left -= end - begin;
            wanted -= end - begin;
            taken.push(begin..end);
        }
        Some(taken)
    }

    pub(super) fn give_back(&mut self, parts: &[Range<u64>]) {
        for part in parts {
            self.left += part.end - part.start;
            let (mut begin, mut end) = (part.start, part.end);
            if let Some((&before, &its_end)) = self.free.range(..begin).next_back()
                && its_end == begin
            {
                begin = before;
            }
            if let Some(its_end) = self.free.remove(&end) {
                end = its_end;
            }
            self.free.insert(begin, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = ALIGNMENT;

    /// In pages.
    fn take(extents: &mut Extents, len: u64) -> Vec<(u64, u64)> {
        let parts = extents.take(len).expect("room");
        parts.into_iter().map(|part| (part.start / PAGE, part.end / PAGE)).collect()
    }

    fn pages(begin: u64, end: u64) -> Range<u64> {
        begin * PAGE..end * PAGE
    }

    #[test]
    fn the_smallest_part_that_is_large_enough_is_taken_and_neighbours_join() {
        let mut extents = Extents::new(10 * PAGE + 1);
        let parts = [3, 2, 4].map(|pages| take(&mut extents, pages * PAGE));
        assert_eq!(parts, [[(0, 3)], [(3, 5)], [(5, 9)]]);
        extents.give_back(&[pages(0, 3)]);
        assert_eq!(take(&mut extents, 1), [(9, 10)], "the smallest hole");
        extents.give_back(&[pages(3, 5)]);
        assert_eq!(take(&mut extents, 5 * PAGE), [(0, 5)], "both as one");
        assert_eq!((extents.left(), extents.take(1)), (0, None));
    }

    #[test]
    fn a_block_that_fits_in_no_gap_is_split_over_several() {
        let mut extents = Extents::new(4 * PAGE);
        let parts: Vec<_> = (0..4).map(|_| extents.take(PAGE).expect("room")).collect();
        extents.give_back(&parts[0]);
        extents.give_back(&parts[2]);
        assert_eq!(extents.take(2 * PAGE + 1), None);
        assert_eq!(extents.take(2 * PAGE - 7).expect("room").len(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]
        #[test]
        fn parts_never_overlap_and_nothing_is_lost(
            steps in prop::collection::vec((any::<bool>(), 0..20_u64, any::<prop::sample::Index>()), 1..200)
        ) {
            let all = 64 * PAGE;
            let mut extents = Extents::new(all);
            let mut held: Vec<Vec<Range<u64>>> = Vec::new();
            for (takes, pages, index) in steps {
                if takes {
                    let room = extents.left() >= pages * PAGE;
                    let parts = extents.take(pages * PAGE);
                    prop_assert_eq!(parts.is_some(), room);
                    held.extend(parts);
                } else if !held.is_empty() {
                    let parts = held.swap_remove(index.index(held.len()));
                    extents.give_back(&parts);
                }
                let mut parts: Vec<_> = held.iter().flatten().cloned().collect();
                parts.sort_by_key(|part| part.start);
                prop_assert!(parts.windows(2).all(|pair| pair[0].end <= pair[1].start));
                let sum: u64 = parts.iter().map(|part| part.end - part.start).sum();
                prop_assert_eq!(sum + extents.left(), all);
            }
            for parts in &held {
                extents.give_back(parts);
            }
            prop_assert_eq!(extents.free, BTreeMap::from([(0, all)]));
        }
    }
}
