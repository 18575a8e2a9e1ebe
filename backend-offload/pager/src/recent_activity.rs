//! Whether an event occurred in the current or the previous period.

#[derive(Debug, Default)]
pub(crate) struct RecentActivity {
    /// The operation that began this period, and the event's count then.
    began: (u64, u64),
    before: bool,
}

impl RecentActivity {
    /// `count`: the event's count at the operation `now`.
    pub fn is_active(&mut self, now: u64, period: u64, count: u64) -> bool {
        let (began, occurred) = self.began;
        if now >= began + period {
            (self.began, self.before) = ((now, count), count > occurred);
        }
        self.before || count > self.began.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_without_it_is_forgiven_and_two_are_not() {
        let mut activity = RecentActivity::default();
        let counts = [(0, 0), (4, 0), (5, 1), (10, 1), (19, 1), (20, 1), (25, 1), (26, 2)];
        let found = counts.map(|(now, count)| activity.is_active(now, 10, count));
        assert_eq!(found, [false, false, true, true, true, false, false, true]);
    }
}
