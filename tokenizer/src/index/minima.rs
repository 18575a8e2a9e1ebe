//! A tree of minima: the first position that shares a context, without reading all.

use std::ops::Range;

const FAN: u64 = 64;

/// The sequence first, a level of at most 64 entries last.
pub(super) fn levels(entries: u64) -> Vec<Range<u64>> {
    let whole = 0..entries;
    let above = |below: &Range<u64>| {
        let length = below.end - below.start;
        (length > FAN).then(|| below.end..below.end + length.div_ceil(FAN))
    };
    std::iter::successors(Some(whole), above).collect()
}

pub(super) fn fold<E>(
    below: Range<u64>,
    mut read: impl FnMut(Range<u64>) -> Result<Vec<u32>, E>,
    mut push: impl FnMut(u32) -> Result<(), E>,
) -> Result<(), E> {
    for from in below.clone().step_by((FAN * FAN) as usize) {
        let piece = read(from..(from + FAN * FAN).min(below.end))?;
        for group in piece.chunks(FAN as usize) {
            push(group.iter().copied().min().unwrap_or(u32::MAX))?;
        }
    }
    Ok(())
}

/// Reads at most 128 entries per level.
pub(super) fn least(levels: &[Range<u64>], get: impl Fn(u64) -> u32, stretch: Range<u64>) -> u32 {
    let Range { mut start, mut end } = stretch;
    let mut least = u32::MAX;
    let mut scan = |level: &Range<u64>, part: Range<u64>| {
        for at in part {
            least = least.min(get(level.start + at));
        }
    };
    for (above, level) in (1..).zip(levels) {
        let (up, down) = (start.div_ceil(FAN), end / FAN);
        if above == levels.len() || up >= down {
            scan(level, start..end);
            return least;
        }
        scan(level, start..up * FAN);
        scan(level, down * FAN..end);
        (start, end) = (up, down);
    }
    least
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tree(sequence: &[u32]) -> (Vec<Range<u64>>, Vec<u32>) {
        let levels = levels(sequence.len() as u64);
        let mut all = sequence.to_vec();
        for pair in levels.windows(2) {
            let below = all.clone();
            let read =
                |range: Range<u64>| Ok::<_, ()>(below[range.start as usize..range.end as usize].to_vec());
            let push = |least| {
                all.push(least);
                Ok(())
            };
            fold(pair[0].clone(), read, push).expect("reading a vector");
        }
        assert_eq!(all.len() as u64, levels.last().expect("a level").end);
        (levels, all)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

        #[test]
        fn the_tree_gives_the_minimum_of_any_range(
            length in 1usize..20_000, seed: u32, ends in prop::collection::vec((0.0..1.0, 0.0..1.0), 20)
        ) {
            let number = |at: usize| (at as u32).wrapping_add(seed).wrapping_mul(2_654_435_761) >> 4;
            let sequence: Vec<u32> = (0..length).map(number).collect();
            let (levels, all) = tree(&sequence);
            for (one, other) in ends {
                let place = |share: f64| (share * length as f64) as usize;
                let (from, to) = (place(one).min(place(other)), place(one).max(place(other)) + 1);
                let found = least(&levels, |at| all[at as usize], from as u64..to as u64);
                prop_assert_eq!(Some(found), sequence[from..to].iter().copied().min());
            }
        }
    }
}
