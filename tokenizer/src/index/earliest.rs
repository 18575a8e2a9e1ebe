//! From the order to each position's longest earlier match.
//!
//! Contexts with their last `n` tokens in common lie side by side in the order, for every `n`. Going through it once
//! forwards, it is enough to know for each `n` the first position of the text among those passed that still share `n`
//! tokens: 32 numbers, whatever the text. Going through it backwards gives the same for those that come later in the
//! order, and the longer of both matches is the longest there is.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{files::Reading, merge::number, text::LONGEST};
use crate::error::Error;

/// Bytes of an entry of a stretch.
const WIDTH: usize = 5;

/// Bytes that a position takes while its match is looked for.
pub(super) const BYTES_PER_POSITION: u64 = 8;

/// A match as one number: the longer the greater, then the earlier the greater; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found(u64);

impl Found {
    pub(super) fn new(length: usize, position: u32) -> Self {
        if length == 0 { Self(0) } else { Self((length as u64) << 32 | u64::from(!position)) }
    }

    /// Tokens in common; 0 for no match.
    pub(super) fn length(self) -> usize {
        (self.0 >> 32) as usize
    }

    pub(super) fn position(self) -> u32 {
        !(self.0 as u32)
    }
}

/// For each number of tokens, the first position among those passed that have as many in common with the last one.
#[derive(Debug)]
struct Passed([u32; LONGEST + 1]);

impl Passed {
    /// Goes on to `position`, whose context has `common` tokens in common with the one before. A position later in the
    /// text never gives a match to an earlier one.
    fn step(&mut self, common: usize, position: u32) -> Found {
        let mut length = common.min(LONGEST);
        while length > 0 && self.0[length] >= position {
            length -= 1;
        }
        let found = Found::new(length, self.0[length]);
        self.0[length + 1..].fill(position);
        found
    }
}

/// The longest earlier match of every position in `range`, read from all `stretches`, of which `buffered` entries are in
/// memory at once, or an error soon after `stop` is set.
pub(super) fn matches(
    stretches: &[Reading],
    range: Range<u64>,
    buffered: usize,
    stop: &AtomicBool,
) -> Result<Vec<Found>, Error> {
    let mut found = vec![Found::default(); (range.end - range.start) as usize];
    let mut keep = |position: u32, one: Found| {
        let place = u64::from(position).checked_sub(range.start).and_then(|at| found.get_mut(at as usize));
        if let Some(place) = place {
            *place = one.max(*place);
        }
    };
    let mut bytes = Vec::new();
    let read = |stretch: &Reading, from, bytes: &mut Vec<u8>| {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        stretch.read(from, (stretch.entries() - from).min(buffered as u64) as usize, bytes)
    };
    let mut passed = Passed([u32::MAX; LONGEST + 1]);
    for stretch in stretches {
        for from in (0..stretch.entries()).step_by(buffered) {
            read(stretch, from, &mut bytes)?;
            for entry in bytes.as_chunks::<WIDTH>().0 {
                let position = number(entry);
                keep(position, passed.step(entry[4].into(), position));
            }
        }
    }
    let mut passed = Passed([u32::MAX; LONGEST + 1]);
    // What an entry says of the one before it is, going backwards, about the one behind.
    let mut common = 0;
    for stretch in stretches.iter().rev() {
        for piece in (0..stretch.entries().div_ceil(buffered as u64)).rev() {
            let from = piece * buffered as u64;
            read(stretch, from, &mut bytes)?;
            for entry in bytes.as_chunks::<WIDTH>().0.iter().rev() {
                let position = number(entry);
                keep(position, passed.step(common, position));
                common = entry[4].into();
            }
        }
    }
    Ok(found)
}
