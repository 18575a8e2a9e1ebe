//! The written bytes of an allocation: disjoint, ordered ranges that do not touch.

use std::{collections::BTreeMap, ops::Range};

#[derive(Debug, Default)]
pub(super) struct Written(BTreeMap<u64, u64>);

impl Written {
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut joined = range;
        while let Some((start, end)) = self.last_up_to(joined.end).filter(|(_, end)| *end >= joined.start) {
            self.0.remove(&start);
            joined = joined.start.min(start)..joined.end.max(end);
        }
        self.0.insert(joined.start, joined.end);
    }

    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.last_up_to(range.start).is_some_and(|(_, end)| end >= range.end)
    }

    pub(super) fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let parts =
            self.0.range(..range.end).map(|(start, end)| *start.max(&range.start)..*end.min(&range.end));
        parts.filter(|part| !part.is_empty()).collect()
    }

    fn last_up_to(&self, at: u64) -> Option<(u64, u64)> {
        self.0.range(..=at).next_back().map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_with_a_byte_map() {
        let mut random = crate::random::Random::new(1);
        for _ in 0..300 {
            let mut written = Written::default();
            let mut bytes = [false; 64];
            for _ in 0..8 {
                let start = random.below(64) as u64;
                let range = start..start + random.below(65 - start as usize) as u64;
                written.insert(range.clone());
                range.for_each(|at| bytes[at as usize] = true);
                let start = random.below(64) as u64;
                let asked = start..start + random.below(65 - start as usize) as u64;
                assert_eq!(
                    written.covers(&asked),
                    asked.clone().all(|at| bytes[at as usize]),
                    "{written:?} {asked:?}"
                );
                let within: Vec<u64> = written.within(&asked).into_iter().flatten().collect();
                assert_eq!(within, asked.filter(|at| bytes[*at as usize]).collect::<Vec<_>>());
            }
        }
    }
}
