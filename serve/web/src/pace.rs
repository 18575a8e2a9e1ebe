//! The pace of finished answers (`a_refusal_estimates_the_wait_from_the_rate_of_finished_answers`).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Ends that count; earlier ones are forgotten.
const WINDOW: usize = 32;

/// Seconds. A longer wait would miss free slots.
const WAIT: (u64, u64) = (1, 60);

/// Measured in time with some answer under way.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Busy time before `since`.
    busy: Duration,
    since: Option<Instant>,
    /// Busy time at the latest ends.
    ends: VecDeque<Duration>,
    /// Busy time at the last forgotten end.
    start: Duration,
}

impl State {
    fn clock(&self, now: Instant) -> Duration {
        self.busy + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl Pace {
    pub(crate) fn set_busy(&self, busy: bool, now: Instant) {
        let mut state = self.lock();
        state.busy = state.clock(now);
        state.since = busy.then_some(now);
    }

    pub(crate) fn note_end(&self, now: Instant) {
        let mut state = self.lock();
        let clock = state.clock(now);
        state.ends.push_back(clock);
        if state.ends.len() > WINDOW {
            state.start = state.ends.pop_front().unwrap_or_default();
        }
    }

    /// Seconds until `count` more answers end; as if one ended now before the first.
    pub(crate) fn seconds_for(&self, count: usize, now: Instant) -> u64 {
        let state = self.lock();
        let measured = state.clock(now).saturating_sub(state.start);
        let each = measured.as_secs_f64() / state.ends.len().max(1) as f64;
        ((each * count as f64).ceil() as u64).clamp(WAIT.0, WAIT.1)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer every `seconds`, `count` times; then an idle hour.
    fn pace(seconds: u64, count: usize) -> (Pace, Instant) {
        let (pace, mut now) = (Pace::default(), Instant::now());
        for _ in 0..count {
            now += Duration::from_hours(1);
            pace.set_busy(true, now);
            now += Duration::from_secs(seconds);
            pace.note_end(now);
            pace.set_busy(false, now);
        }
        (pace, now)
    }

    #[test]
    fn a_wait_is_the_number_of_answers_at_the_rate_measured_while_busy() {
        let (steady, now) = pace(4, 3);
        assert_eq!([1, 5, 1000].map(|count| steady.seconds_for(count, now)), [4, 20, 60]);
        let (quick, now) = pace(0, 3);
        assert_eq!(quick.seconds_for(5, now), 1);
    }

    #[test]
    fn old_ends_do_not_slow_the_estimate() {
        let (pace, mut now) = pace(30, 3);
        pace.set_busy(true, now);
        for _ in 0..2 * WINDOW {
            now += Duration::from_secs(1);
            pace.note_end(now);
        }
        assert_eq!(pace.seconds_for(7, now), 7);
    }

    #[test]
    fn before_the_first_end_the_estimate_grows_with_the_time_that_answers_take() {
        let (pace, now) = (Pace::default(), Instant::now());
        pace.set_busy(true, now);
        assert_eq!(pace.seconds_for(2, now), 1);
        assert_eq!(pace.seconds_for(2, now + Duration::from_secs(9)), 18);
    }
}
