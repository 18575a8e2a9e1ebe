//! How long the host's steps take, and how long the program waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Times since they were asked for last. Clones add to the same ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostTimes {
    stepping: Arc<AtomicU64>,
    waiting: Arc<AtomicU64>,
}

impl HostTimes {
    /// A step on the host has ended that began then.
    pub(super) fn stepped_since(&self, begun: Instant) {
        add(&self.stepping, begun.elapsed());
    }

    /// New weights, after the program has waited for them so long.
    pub(super) fn awaited<T>(&self, (weights, waited): (T, Duration)) -> T {
        add(&self.waiting, waited);
        weights
    }

    /// Runs `wait`, for whose result the program waits.
    pub(super) fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let waited_for = wait();
        self.awaited((waited_for, begun.elapsed()))
    }

    /// A step of the run begins. Waits before it were those of an evaluation, a sample or a save.
    pub(crate) fn begin_step(&self) {
        self.waiting.store(0, Relaxed);
    }

    /// The time of steps on the host that have ended, and of waits for them since the run's step began.
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
    fn waits_before_a_step_are_not_told_with_it_and_every_time_is_told_once() {
        let times = HostTimes::default();
        let beside = times.clone();
        assert_eq!(beside.awaited((7, Duration::from_millis(5))), 7);
        times.begin_step();
        beside.awaited(((), Duration::from_millis(2)));
        times.awaited(((), Duration::from_millis(1)));
        beside.stepped_since(Instant::now());
        let [stepping, waiting] = times.take();
        assert!(stepping > Duration::ZERO && waiting == Duration::from_millis(3), "{waiting:?}");
        assert_eq!(beside.take(), [Duration::ZERO; 2]);
    }
}
