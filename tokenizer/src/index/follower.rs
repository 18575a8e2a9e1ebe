//! A position's longest earlier match in three bytes: 18 bits of id, 6 of length.

use super::text::LONGEST;

const BITS: u32 = 18;

/// Every vocabulary in wide use is smaller.
pub(super) const MOST_IDS: u32 = 1 << BITS;

/// Length 0 is no match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Follower {
    pub(super) length: usize,
    pub(super) next: u32,
}

impl Follower {
    pub(super) const NONE: Self = Self { length: 0, next: 0 };

    pub(super) fn to_bytes(self) -> [u8; 3] {
        let [a, b, c, _] = ((self.length as u32) << BITS | self.next).to_le_bytes();
        [a, b, c]
    }

    /// `None` for bytes that no build writes.
    pub(super) fn from_bytes([a, b, c]: [u8; 3], vocabulary: u32) -> Option<Self> {
        let entry = u32::from_le_bytes([a, b, c, 0]);
        let found = Self { length: (entry >> BITS) as usize, next: entry & (MOST_IDS - 1) };
        let none_is_zero = found.length > 0 || found.next == 0;
        (found.length <= LONGEST && found.next < vocabulary && none_is_zero).then_some(found)
    }
}
