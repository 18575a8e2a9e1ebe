//! Notices a collective call that takes too long and names the missing ranks
//! (`a_frozen_rank_ends_the_job_and_is_named`).
//!
//! A frozen rank (stopped process, swapping machine, dead link) sends neither data nor an error, and MPI may write into
//! the call's buffers until it ends. So [`Engine::watchdog`](crate::Engine::watchdog) ends the run from another thread.
//! The launcher ends the frozen process, so a restart finds the run free
//! (`a_frozen_rank_is_ended_and_the_run_restarts_to_the_bits_of_an_undisturbed_one`).

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::waiting::{Overdue, Waiting};

/// A thread that watches the present call until this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    waiting: Waiting,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Calls `expired` once, on the watchdog's thread, when a call has lasted for `limit`. Choose a limit above the
    /// difference of ranks' times for their own work.
    ///
    /// # Panics
    ///
    /// If the system starts no thread.
    pub fn start(waiting: Waiting, limit: Duration, expired: impl FnOnce(Overdue) + Send + 'static) -> Self {
        let (stop, stopped) = mpsc::channel();
        let pause = (limit / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let watched = waiting.clone();
        let watch = move || {
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                if let Some(overdue) = watched.overdue(limit) {
                    return expired(overdue);
                }
            }
        };
        let thread = thread::Builder::new().name("watchdog".into()).spawn(watch).expect("a thread");
        Self { waiting, stop: Some(stop), thread: Some(thread) }
    }

    /// Lets the next call last longer than the limit, by `grace`: such as until rank 0 has saved.
    pub fn allow_next_call(&self, grace: Duration) {
        self.waiting.allow_next_call(grace);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // `expired`'s panic is printed already.
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::error::Call;

    #[test]
    fn a_call_beyond_its_limit_is_reported_once_with_who_is_missing() {
        let (tell, told) = channel();
        let waiting = Waiting::default();
        let limit = Duration::from_millis(20);
        let _watchdog = Watchdog::start(waiting.clone(), limit, move |overdue| {
            tell.send(overdue).expect("the test listens");
        });
        waiting.begin(Call::AllToAll, 0, 0..3);
        waiting.arrived(1);
        let overdue = told.recv_timeout(Duration::from_secs(10)).expect("reported");
        assert_eq!((overdue.call, overdue.missing), (Call::AllToAll, vec![2]));
        assert!(overdue.waited >= limit);
        assert!(told.recv_timeout(Duration::from_secs(10)).is_err(), "the thread has ended");
    }

    #[test]
    fn calls_within_their_limit_and_the_time_between_calls_are_left_alone() {
        let (tell, told) = channel();
        let waiting = Waiting::default();
        let watchdog = Watchdog::start(waiting.clone(), Duration::from_secs(5), move |overdue| {
            tell.send(overdue).expect("the test listens");
        });
        for _ in 0..20 {
            waiting.begin(Call::Barrier, 0, 0..2);
            waiting.end();
            thread::sleep(Duration::from_millis(5));
        }
        drop(watchdog);
        assert!(told.try_recv().is_err());
    }
}
