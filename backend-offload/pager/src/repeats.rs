//! Stretches of events that occurred before, byte for byte, as in like layers. One event stands for a stretch, by
//! distance and count; the two may overlap.

use std::collections::HashMap;
use std::ops::Range;

pub(crate) const REPEAT: u8 = 10;

/// Without limits a few damaged bytes could fill memory. Bytes bound operands. A step of 18 billion parameters and
/// 262,144 tokens takes most of both.
const MOST_EVENTS: usize = 1 << 22;
const MOST_BYTES: usize = 1 << 24;

/// Events in a row that identify like stretches.
const ALIKE: usize = 3;

/// Earlier stretches to compare, the latest first.
const TRIED: usize = 64;

/// Most bytes of a repeat, approximately.
const COST: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Repeat {
    /// Its first event.
    pub at: usize,
    /// Distance back to the repeated event.
    pub ago: usize,
    pub count: usize,
}

/// Position of each event read so far.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    places: Vec<usize>,
    repeated: Repeated,
}

/// Repeated events, and their bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Repeated {
    events: usize,
    bytes: usize,
}

impl Repeated {
    /// `None` beyond a limit.
    fn and(self, events: usize, bytes: usize) -> Option<Self> {
        let events = self.events.checked_add(events).filter(|events| *events <= MOST_EVENTS)?;
        let bytes = self.bytes.checked_add(bytes).filter(|bytes| *bytes <= MOST_BYTES)?;
        Some(Self { events, bytes })
    }
}

impl Repeats {
    pub fn written_at(&mut self, place: usize) {
        self.places.push(place);
    }

    /// Adds `count` repeated events, within the limit.
    pub fn allow(&mut self, count: u64) -> bool {
        let more = usize::try_from(count).ok().and_then(|count| self.repeated.and(count, 0));
        self.repeated = more.unwrap_or(self.repeated);
        more.is_some()
    }

    /// Adds the bytes of one of them, within the limit.
    pub fn allow_bytes(&mut self, bytes: usize) -> bool {
        let more = self.repeated.and(0, bytes);
        self.repeated = more.unwrap_or(self.repeated);
        more.is_some()
    }

    /// The position of the event `ago` events back, if any.
    pub fn again(&mut self, ago: u64) -> Option<usize> {
        let ago = usize::try_from(ago).ok().filter(|ago| *ago > 0)?;
        let place = *self.places.get(self.places.len().checked_sub(ago)?)?;
        self.places.push(place);
        Some(place)
    }

    /// Repeats that shorten `events` most, in order. Each event is a range of `bytes`.
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
        let (mut found, mut at, mut repeated) = (Vec::new(), 0, Repeated::default());
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
            let saved = longest.and_then(|repeat| {
                let bytes = events[at + repeat.count - 1].end - events[at].start;
                Some((repeat, repeated.and(repeat.count, bytes).filter(|_| bytes > COST)?))
            });
            let ends = match saved {
                Some((repeat, more)) => {
                    found.push(repeat);
                    repeated = more;
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
