//! The two speeds that decide how far ahead of its use a block has to move: the link's, and the program's own.

use pager::PACE_BYTES;
use std::time::{Duration, Instant};

/// How fast operations get through their operands, measured every so many of them.
#[derive(Debug, Default)]
pub(super) struct Pace {
    since: Option<(Instant, u64)>,
    countdown: u32,
}

impl Pace {
    const OFTEN: u32 = 256;

    /// Bytes that a copy moves while operations get through [`PACE_BYTES`], now and then. `handled` is how many bytes
    /// they have got through in all.
    pub fn measure(&mut self, handled: u64, rate: Option<f64>) -> Option<u64> {
        if self.countdown > 0 {
            self.countdown -= 1;
            return None;
        }
        self.countdown = Self::OFTEN;
        let now = Instant::now();
        let (then, before) = self.since.replace((now, handled))?;
        let time = now.duration_since(then).as_secs_f64();
        let through = handled.saturating_sub(before).max(1) as f64;
        Some((rate? * time * PACE_BYTES as f64 / through) as u64)
    }
}

/// Bytes a second, of late.
#[derive(Debug, Default)]
pub(super) struct Rate(f64);

impl Rate {
    pub fn known(&self) -> Option<f64> {
        (self.0 > 0.0).then_some(self.0)
    }

    pub fn learn(&mut self, bytes: u64, time: Duration) {
        if time > Duration::ZERO {
            let rate = bytes as f64 / time.as_secs_f64();
            self.0 = if self.0 == 0.0 { rate } else { 0.9f64.mul_add(self.0, 0.1 * rate) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_what_is_measured_and_no_time_tells_nothing() {
        let mut rate = Rate::default();
        rate.learn(1000, Duration::ZERO);
        assert_eq!(rate.known(), None);
        rate.learn(1000, Duration::from_secs(1));
        assert_eq!(rate.known(), Some(1000.0));
        (0..200).for_each(|_| rate.learn(3000, Duration::from_secs(1)));
        assert!(rate.known().is_some_and(|rate| (rate - 3000.0).abs() < 1.0));
    }

    #[test]
    fn a_pace_is_measured_now_and_then_and_never_without_a_rate() {
        let mut pace = Pace::default();
        let told = (1..2000u64).filter_map(|n| pace.measure(n << 20, Some(1e9))).count();
        assert!((1..10).contains(&told), "{told}");
        let mut pace = Pace::default();
        assert_eq!((1..2000u64).filter_map(|n| pace.measure(n << 20, None)).count(), 0);
    }
}
