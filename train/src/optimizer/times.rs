//! Times of host updates and of waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Nanoseconds since the last [`take`](Self::take), shared by clones.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostTimes {
    stepping: Arc<AtomicU64>,
    waiting: Arc<AtomicU64>,
}

impl HostTimes {
    pub(super) fn stepped_since(&self, begun: Instant) {
        add(&self.stepping, begun.elapsed());
    }

    pub(super) fn add_wait<T>(&self, (weights, waited): (T, Duration)) -> T {
        add(&self.waiting, waited);
        weights
    }

    pub(super) fn time_wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = wait();
        self.add_wait((result, begun.elapsed()))
    }

    /// Resets waits of an evaluation, a sample or a save.
    pub(crate) fn begin_step(&self) {
        self.waiting.store(0, Relaxed);
    }

    /// Takes the times of finished updates, and of waits since [`begin_step`](Self::begin_step).
    pub(crate) fn take(&self) -> [Duration; 2] {
        [&self.stepping, &self.waiting].map(|time| Duration::from_nanos(time.swap(0, Relaxed)))
    }
}

fn add(sum: &AtomicU64, time: Duration) {
    sum.fetch_add(time.as_nanos() as u64, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_before_a_step_are_dropped_and_each_time_is_reported_once() {
        let times = HostTimes::default();
        let clone = times.clone();
        assert_eq!(clone.add_wait((7, Duration::from_millis(5))), 7);
        times.begin_step();
        clone.add_wait(((), Duration::from_millis(2)));
        times.add_wait(((), Duration::from_millis(1)));
        clone.stepped_since(Instant::now());
        let [stepping, waiting] = times.take();
        assert!(stepping > Duration::ZERO && waiting == Duration::from_millis(3), "{waiting:?}");
        assert_eq!(clone.take(), [Duration::ZERO; 2]);
    }
}
