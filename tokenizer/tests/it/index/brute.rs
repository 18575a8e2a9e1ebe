//! The definition of a longest match.

use super::sets::BOS;

fn common(one: &[u32], other: &[u32]) -> usize {
    let mut length = 0;
    for (id, other) in one.iter().rev().zip(other.iter().rev()).take(32) {
        if id != other {
            break;
        }
        length += 1;
        if *id == BOS {
            break;
        }
    }
    length
}

/// Length and position. Positions of `text` count below `end` and with a follower.
pub(super) fn longest(text: &[u32], end: usize, query: &[u32]) -> Option<(usize, usize)> {
    let mut best = None;
    for at in 0..end.min(text.len() - 1) {
        let length = common(&text[..=at], query);
        if length > best.map_or(0, |(length, _)| length) {
            best = Some((length, at));
        }
    }
    best
}

pub(super) fn features(text: &[u32], shortest: usize) -> Vec<Option<u32>> {
    let feature = |at: usize| {
        let found = longest(text, at, &text[..=at]).filter(|(length, _)| *length >= shortest);
        found.map(|(_, found)| text[found + 1])
    };
    (0..text.len()).map(feature).collect()
}
