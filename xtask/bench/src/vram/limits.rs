//! Time limits of one cell and of all.

use std::time::{Duration, Instant};

pub(super) struct Limits {
    pub(super) cell: Duration,
    pub(super) total: Duration,
    pub(super) started: Instant,
}

impl Limits {
    pub(super) fn begin(cell: Duration, total: Duration) -> Self {
        Self { cell, total, started: Instant::now() }
    }

    pub(super) fn next(&self) -> Result<Duration, String> {
        self.after(self.started.elapsed())
    }

    fn after(&self, spent: Duration) -> Result<Duration, String> {
        // Too short to report the stop.
        let left = self.total.saturating_sub(spent);
        if left < Duration::from_secs(1) {
            return Err(format!("the {} s for all cells were used up", self.total.as_secs()));
        }
        Ok(left.min(self.cell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_gets_its_limit_or_the_rest_of_the_total() {
        let seconds = Duration::from_secs;
        let limits = Limits::begin(seconds(60), seconds(100));
        assert_eq!(limits.after(seconds(0)), Ok(seconds(60)));
        assert_eq!(limits.after(seconds(70)), Ok(seconds(30)));
        assert_eq!(limits.after(seconds(100)), Err("the 100 s for all cells were used up".to_owned()));
        assert!(limits.after(seconds(500)).is_err());
    }
}
