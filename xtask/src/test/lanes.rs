//! Runs test processes beside each other: many tests use one core, or wait.

use std::{
    num::NonZero,
    panic::resume_unwind,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::Result;

/// More would run into time limits of tests.
const MOST: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lanes {
    count: usize,
    /// Tests that a binary runs at once.
    pub(super) threads: usize,
}

impl Lanes {
    pub(super) fn of_machine() -> Self {
        Self::on(thread::available_parallelism().map_or(1, NonZero::get))
    }

    fn on(cores: usize) -> Self {
        let count = cores.clamp(1, MOST);
        Self { count, threads: (cores / count).max(1) }
    }

    /// Starts `jobs` in their order. An error ends its lane.
    pub(super) fn run<J: Send>(self, jobs: Vec<J>, run: impl Fn(J) -> Result<()> + Sync) -> Result<()> {
        let waiting = Mutex::new(jobs.into_iter());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        let lane = || {
            while let Some(job) = next() {
                run(job)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..self.count).map(|_| scope.spawn(lane)).collect();
            lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use anyhow::ensure;

    use super::*;

    #[test]
    fn two_lanes_share_the_cores() {
        let lanes = |count, threads| Lanes { count, threads };
        assert_eq!([1, 2, 3, 16].map(Lanes::on), [lanes(1, 1), lanes(2, 1), lanes(2, 1), lanes(2, 8)]);
    }

    #[test]
    fn two_jobs_run_at_once_and_each_runs_once() {
        let (both, ran) = (Barrier::new(2), Mutex::new(Vec::new()));
        let job = |n: usize| {
            both.wait();
            ran.lock().unwrap().push(n);
            Ok(())
        };
        Lanes::on(2).run((0..6).collect(), job).unwrap();
        let mut ran = ran.into_inner().unwrap();
        ran.sort_unstable();
        assert_eq!(ran, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn an_error_ends_its_lane() {
        let ran = Mutex::new(Vec::new());
        let job = |n: usize| {
            ran.lock().unwrap().push(n);
            ensure!(n != 1, "it does not start");
            Ok(())
        };
        let error = Lanes::on(1).run((0..6).collect(), job).unwrap_err();
        assert_eq!(
            (error.to_string(), ran.into_inner().unwrap()),
            ("it does not start".to_owned(), vec![0, 1])
        );
    }
}
