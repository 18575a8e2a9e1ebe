//! Each position's longest earlier match, from the sorted positions.
//!
//! Contexts with `n` common last tokens are adjacent in the order. So for each `n`, a forward pass needs only the
//! smallest passed position that shares `n` tokens: 32 numbers. A backward pass does the same; the longer match counts.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{files::EntryReader, merge::read_u32, text::LONGEST};
use crate::error::Error;

const WIDTH: usize = 5;

pub(super) const BYTES_PER_POSITION: u64 = 8;

/// Longer matches are greater, then earlier ones; 0 is no match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EarlierMatch(u64);

impl EarlierMatch {
    pub(super) fn new(length: usize, position: u32) -> Self {
        if length == 0 { Self(0) } else { Self((length as u64) << 32 | u64::from(!position)) }
    }

    pub(super) fn length(self) -> usize {
        (self.0 >> 32) as usize
    }

    pub(super) fn position(self) -> u32 {
        !(self.0 as u32)
    }
}

/// At index `n`: the smallest passed position that shares `n` tokens with the last.
#[derive(Debug)]
struct FirstSharing([u32; LONGEST + 1]);

impl FirstSharing {
    /// `common`: tokens in common with the previous context. Skips matches at later positions.
    fn step(&mut self, common: usize, position: u32) -> EarlierMatch {
        let mut length = common.min(LONGEST);
        while length > 0 && self.0[length] >= position {
            length -= 1;
        }
        let found = EarlierMatch::new(length, self.0[length]);
        self.0[length + 1..].fill(position);
        found
    }
}

/// Reads all `stretches`, `buffered` entries at a time.
pub(super) fn matches(
    stretches: &[EntryReader],
    range: Range<u64>,
    buffered: usize,
    stop: &AtomicBool,
) -> Result<Vec<EarlierMatch>, Error> {
    let mut found = vec![EarlierMatch::default(); (range.end - range.start) as usize];
    let mut keep = |position: u32, one: EarlierMatch| {
        let place = u64::from(position).checked_sub(range.start).and_then(|at| found.get_mut(at as usize));
        if let Some(place) = place {
            *place = one.max(*place);
        }
    };

    let mut bytes = Vec::new();
    let read = |stretch: &EntryReader, from, bytes: &mut Vec<u8>| {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        stretch.read(from, (stretch.entries() - from).min(buffered as u64) as usize, bytes)
    };

    let mut passed = FirstSharing([u32::MAX; LONGEST + 1]);
    for stretch in stretches {
        for from in (0..stretch.entries()).step_by(buffered) {
            read(stretch, from, &mut bytes)?;
            for entry in bytes.as_chunks::<WIDTH>().0 {
                let position = read_u32(entry);
                keep(position, passed.step(entry[4].into(), position));
            }
        }
    }

    let mut passed = FirstSharing([u32::MAX; LONGEST + 1]);
    // Backwards, the next entry states the tokens in common.
    let mut common = 0;
    for stretch in stretches.iter().rev() {
        for piece in (0..stretch.entries().div_ceil(buffered as u64)).rev() {
            let from = piece * buffered as u64;
            read(stretch, from, &mut bytes)?;
            for entry in bytes.as_chunks::<WIDTH>().0.iter().rev() {
                let position = read_u32(entry);
                keep(position, passed.step(common, position));
                common = entry[4].into();
            }
        }
    }
    Ok(found)
}
