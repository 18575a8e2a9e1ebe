//! Whether something happens at all these days: in the period of the program that is under way, or in the one before.

#[derive(Debug, Default)]
pub(crate) struct Lately {
    /// The operation at which this period began, and how often it had happened until then.
    began: (u64, u64),
    /// It happened in the last period.
    happened: bool,
}

impl Lately {
    /// Whether it does, where it has happened `count` times by the operation `now` of a program that repeats every `period` of them.
    pub fn happens(&mut self, now: u64, period: u64, count: u64) -> bool {
        let (began, before) = self.began;
        if now >= began + period {
            (self.began, self.happened) = ((now, count), count > before);
        }
        self.happened || count > self.began.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_without_it_is_forgiven_and_two_are_not() {
        let mut lately = Lately::default();
        let counts = [(0, 0), (4, 0), (5, 1), (10, 1), (19, 1), (20, 1), (25, 1), (26, 2)];
        let found = counts.map(|(now, count)| lately.happens(now, 10, count));
        assert_eq!(found, [false, false, true, true, true, false, false, true]);
    }
}
