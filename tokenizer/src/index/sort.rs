//! Sorts a chunk's positions by context.
//!
//! Three tokens fit a 64-bit word, so most comparisons read no text. Equal words are sorted again by their next three
//! tokens, at most ten times.

use rayon::prelude::*;

use super::text::LONGEST;

/// Ids are below 2^18; 0 is no token.
const BITS: u32 = 21;
const STEP: usize = 3;
/// From so many on, several threads sort.
const LARGE: usize = 1 << 14;

pub(super) const BYTES_PER_TOKEN: u64 = 20;

#[derive(Debug)]
pub(super) struct Chunk {
    /// `head` earlier tokens, at most `LONGEST - 1`, then the chunk.
    pub(super) tokens: Vec<u32>,
    pub(super) head: usize,
    pub(super) start: u32,
    pub(super) bos: Option<u32>,
}

type Entry = (u64, u32);

impl Chunk {
    pub(super) fn sorted(&self) -> impl Iterator<Item = u32> {
        let places = (self.head..self.tokens.len()).into_par_iter();
        let mut entries: Vec<Entry> = places.map(|place| (self.word(place, 0), place as u32)).collect();
        entries.par_sort_unstable();
        self.refine(&mut entries, 1);
        let shift = self.start.wrapping_sub(self.head as u32);
        entries.into_iter().map(move |(_, place)| place.wrapping_add(shift))
    }

    /// Sorts groups of equal words by the tokens from `step * STEP` on.
    fn refine(&self, entries: &mut [Entry], step: usize) {
        if step * STEP >= LONGEST {
            return;
        }

        let refine = |group: &mut [Entry]| {
            if group.len() == 1 || self.ends(group[0].0) {
                return;
            }
            let renew = |entry: &mut Entry| entry.0 = self.word(entry.1 as usize, step);
            if group.len() < LARGE {
                group.iter_mut().for_each(renew);
                group.sort_unstable();
            } else {
                group.par_iter_mut().for_each(renew);
                group.par_sort_unstable();
            }
            self.refine(group, step + 1);
        };

        if entries.len() < LARGE {
            entries.chunk_by_mut(|one, other| one.0 == other.0).for_each(refine);
        } else {
            entries.par_chunk_by_mut(|one, other| one.0 == other.0).for_each(refine);
        }
    }

    fn word(&self, place: usize, step: usize) -> u64 {
        let mut word = 0;
        let mut over = false;
        for back in step * STEP..(step + 1) * STEP {
            let id = if over || back >= LONGEST {
                None
            } else {
                place.checked_sub(back).map(|place| self.tokens[place])
            };
            over = id.is_none() || id == self.bos;
            word = word << BITS | id.map_or(0, |id| u64::from(id) + 1);
        }
        word
    }

    fn ends(&self, word: u64) -> bool {
        let token = word & ((1 << BITS) - 1);
        token == 0 || self.bos.is_some_and(|bos| token == u64::from(bos) + 1)
    }
}
