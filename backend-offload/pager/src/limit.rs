//! An upper limit on bytes.

/// At most this many bytes, or [`Limit::NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(Option<u64>);

impl Limit {
    /// No limit.
    pub const NONE: Self = Self(None);

    /// At most `bytes`.
    pub const fn bytes(bytes: u64) -> Self {
        Self(Some(bytes))
    }

    /// Bytes, or `None` without a limit.
    pub const fn get(self) -> Option<u64> {
        self.0
    }

    /// Whether `bytes` are within the limit.
    pub fn allows(self, bytes: u64) -> bool {
        self.0.is_none_or(|limit| bytes <= limit)
    }

    /// Whether `used` and `more` bytes together are within the limit; never beyond `u64`.
    pub fn allows_more(self, used: u64, more: u64) -> bool {
        used.checked_add(more).is_some_and(|sum| self.allows(sum))
    }

    /// The room that `used` bytes leave; zero beyond the limit.
    #[must_use]
    pub fn less(self, used: u64) -> Self {
        Self(self.0.map(|limit| limit.saturating_sub(used)))
    }

    /// Adds `bytes` to the limit.
    #[must_use]
    pub fn more(self, bytes: u64) -> Self {
        Self(self.0.map(|limit| limit.saturating_add(bytes)))
    }

    /// `bytes`, reduced to the limit.
    pub fn cut(self, bytes: u64) -> u64 {
        self.0.map_or(bytes, |limit| limit.min(bytes))
    }
}

impl From<Option<u64>> for Limit {
    fn from(bytes: Option<u64>) -> Self {
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_allows_every_sum_that_is_a_number() {
        assert!(Limit::NONE.allows(u64::MAX) && Limit::NONE.allows_more(u64::MAX, 0));
        assert!(!Limit::NONE.allows_more(u64::MAX, 1));
        assert_eq!(Limit::NONE.less(7), Limit::NONE);
    }

    #[test]
    fn a_limit_is_inclusive_and_its_room_ends_at_zero() {
        let limit = Limit::bytes(10);
        assert!(limit.allows_more(4, 6) && !limit.allows_more(4, 7));
        assert_eq!((limit.less(4), limit.less(11)), (Limit::bytes(6), Limit::bytes(0)));
        assert_eq!((limit.more(1), Limit::NONE.more(1)), (Limit::bytes(11), Limit::NONE));
        assert_eq!((limit.cut(11), Limit::NONE.cut(11)), (10, 11));
    }
}
