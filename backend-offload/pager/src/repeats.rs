//! Repeats: stretches of events that were in a recording before, byte for byte.
//!
//! A model is many layers alike, and their operands are named by how long ago they were born. So most of a step is
//! there again and again, and one event stands for a stretch: it says how far back the same events are, and how many.
//! They may reach into the stretch.

use std::collections::HashMap;
use std::ops::Range;

/// The kind of the event that stands for others.
pub(crate) const REPEAT: u8 = 10;

/// Events that may be repeated in one recording. More would fill memory from a few damaged bytes.
const MOST: usize = 1 << 20;

/// Events in a row by which alike stretches are found.
const ALIKE: usize = 3;

/// Earlier stretches that are compared with the one at hand, the latest first.
const TRIED: usize = 64;

/// Bytes that a repeat takes at most, about.
const COST: usize = 6;

/// A stretch that was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Repeat {
    /// Its first event.
    pub at: usize,
    /// Events from there back to the one that it repeats.
    pub ago: usize,
    pub count: usize,
}

/// Where the bytes of each event are that was read so far.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    places: Vec<usize>,
    repeated: usize,
}

impl Repeats {
    /// An event was read there.
    pub fn written_at(&mut self, place: usize) {
        self.places.push(place);
    }

    /// Whether so many events may be repeated yet, which then are.
    pub fn allow(&mut self, count: u64) -> bool {
        let more = usize::try_from(count).ok().and_then(|count| self.repeated.checked_add(count));
        let allowed = more.filter(|more| *more <= MOST);
        self.repeated = allowed.unwrap_or(self.repeated);
        allowed.is_some()
    }

    /// Where the bytes of the next event are, which is the one of so many events ago. None if there was none.
    pub fn again(&mut self, ago: u64) -> Option<usize> {
        let ago = usize::try_from(ago).ok().filter(|ago| *ago > 0)?;
        let place = *self.places.get(self.places.len().checked_sub(ago)?)?;
        self.places.push(place);
        Some(place)
    }

    /// The repeats by which `events`, each a stretch of `bytes`, are best written, in order.
    pub fn found(bytes: &[u8], events: &[Range<usize>]) -> Vec<Repeat> {
        let mut numbers = HashMap::new();
        let same: Vec<usize> = events
            .iter()
            .map(|event| {
                let next = numbers.len();
                *numbers.entry(&bytes[event.clone()]).or_insert(next)
            })
            .collect();
        let mut before: HashMap<&[usize], Vec<usize>> = HashMap::new();
        let (mut found, mut at, mut repeated) = (Vec::new(), 0, 0);
        while at + ALIKE <= same.len() {
            let earlier = before.get(&same[at..at + ALIKE]).map_or(&[][..], Vec::as_slice);
            let alike = |from: usize| {
                same[from..].iter().zip(&same[at..]).take_while(|(one, other)| one == other).count()
            };
            let longest = earlier
                .iter()
                .rev()
                .take(TRIED)
                .map(|from| Repeat { at, ago: at - from, count: alike(*from) })
                .max_by_key(|repeat| (repeat.count, std::cmp::Reverse(repeat.ago)));
            let saves = |repeat: &Repeat| {
                events[at + repeat.count - 1].end - events[at].start > COST && repeated + repeat.count <= MOST
            };
            let ends = match longest.filter(saves) {
                Some(repeat) => {
                    found.push(repeat);
                    repeated += repeat.count;
                    at + repeat.count
                }
                None => at + 1,
            };
            for passed in at..ends.min(same.len() - ALIKE + 1) {
                before.entry(&same[passed..passed + ALIKE]).or_default().push(passed);
            }
            at = ends;
        }
        found
    }
}
