//! The peers that a rank waits for: written by its engine, read by the watchdog.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Call;

/// A view of an engine's present call, for another thread.
#[derive(Debug, Clone, Default)]
pub struct Waiting(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    wait: Option<Wait>,
    /// The present or next call may take so much longer.
    grace: Duration,
}

#[derive(Debug)]
struct Wait {
    call: Call,
    rank: usize,
    since: Instant,
    /// A rank of which two messages are missing is one rank.
    missing: BTreeSet<usize>,
}

/// A call beyond its limit, and the ranks whose data is missing.
///
/// A hanging rank makes others late, too. The rank that waits longest names only those at fault, and its limit passes
/// first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    /// The call.
    pub call: Call,
    /// The rank that waits.
    pub rank: usize,
    /// Ranks that have not arrived; empty if the engine cannot tell.
    pub missing: Vec<usize>,
    /// Time since the call began.
    pub waited: Duration,
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, rank, missing, waited } = self;
        let seconds = waited.as_secs_f64();
        match missing.as_slice() {
            [] => write!(f, "rank {rank} has been in {call} for {seconds:.1} s"),
            [peer] => {
                write!(f, "rank {peer} did not arrive at {call}: rank {rank} waited for {seconds:.1} s")
            }
            peers => write!(
                f,
                "ranks {peers:?} did not arrive at {call}: rank {rank} waited for {seconds:.1} s; one of them is \
                 frozen or slow, the others may wait for it"
            ),
        }
    }
}

impl Waiting {
    /// The present call, if it has lasted for `limit`.
    pub fn overdue(&self, limit: Duration) -> Option<Overdue> {
        let state = self.lock();
        let Wait { call, rank, since, missing } = state.wait.as_ref()?;
        let waited = since.elapsed();
        let overdue =
            || Overdue { call: *call, rank: *rank, missing: missing.iter().copied().collect(), waited };
        (waited >= limit.saturating_add(state.grace)).then(overdue)
    }

    pub(crate) fn begin(&self, call: Call, rank: usize, missing: impl Iterator<Item = usize>) {
        let missing = missing.filter(|peer| *peer != rank).collect();
        self.lock().wait = Some(Wait { call, rank, since: Instant::now(), missing });
    }

    /// Sets the awaited ranks; the call's clock runs on.
    pub(crate) fn wait_for(&self, peers: impl Iterator<Item = usize>) {
        if let Some(wait) = &mut self.lock().wait {
            wait.missing = peers.collect();
        }
    }

    pub(crate) fn arrived(&self, peer: usize) {
        if let Some(wait) = &mut self.lock().wait {
            wait.missing.remove(&peer);
        }
    }

    pub(crate) fn end(&self) {
        *self.lock() = State::default();
    }

    /// The call has failed: announced work lasts, and the rank at work comes to a later call.
    pub(crate) fn fail(&self) {
        self.lock().wait = None;
    }

    pub(crate) fn end_with<T, E>(&self, outcome: &Result<T, E>) {
        if outcome.is_ok() { self.end() } else { self.fail() }
    }

    /// Other ranks have announced work of their own.
    pub(crate) fn allow_next_call(&self, grace: Duration) {
        self.lock().grace = grace;
    }

    /// Every change leaves valid contents, so a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_have_arrived_are_not_named() {
        let waiting = Waiting::default();
        assert_eq!(waiting.overdue(Duration::ZERO), None);
        waiting.begin(Call::Barrier, 1, 0..4);
        waiting.arrived(0);
        let overdue = waiting.overdue(Duration::ZERO).expect("a call has begun");
        assert_eq!((overdue.rank, overdue.missing), (1, vec![2, 3]));
        assert_eq!(waiting.overdue(Duration::from_hours(1)), None);
        waiting.end();
        assert_eq!(waiting.overdue(Duration::ZERO), None);
    }

    #[test]
    fn a_rank_with_two_missing_messages_is_named_once() {
        let waiting = Waiting::default();
        waiting.begin(Call::Message, 0, [1, 1].into_iter());
        let overdue = waiting.overdue(Duration::ZERO).expect("a call has begun");
        assert!(overdue.to_string().starts_with("rank 1 did not arrive at message"), "{overdue}");
    }

    #[test]
    fn a_call_after_an_announced_pause_is_overdue_only_beyond_it_and_later_ones_are() {
        let waiting = Waiting::default();
        for (grace, is_overdue) in
            [(Duration::ZERO, true), (Duration::from_hours(1), false), (Duration::MAX, false)]
        {
            waiting.allow_next_call(grace);
            waiting.begin(Call::Barrier, 1, 0..2);
            assert_eq!(waiting.overdue(Duration::ZERO).is_some(), is_overdue, "{grace:?}");
        }
        waiting.fail();
        waiting.begin(Call::Commit, 1, 0..2);
        assert_eq!(waiting.overdue(Duration::ZERO), None, "the call before has failed");
        waiting.end();
        waiting.begin(Call::Barrier, 1, 0..2);
        assert!(waiting.overdue(Duration::ZERO).is_some());
    }

    #[test]
    fn the_message_names_the_one_rank_that_is_missing() {
        let overdue = |missing: &[usize]| Overdue {
            call: Call::AllGather,
            rank: 0,
            missing: missing.to_vec(),
            waited: Duration::from_mins(1),
        };
        assert_eq!(
            overdue(&[2]).to_string(),
            "rank 2 did not arrive at all_gather: rank 0 waited for 60.0 s"
        );
        assert!(overdue(&[1, 2]).to_string().starts_with("ranks [1, 2] did not arrive at all_gather"));
        assert_eq!(overdue(&[]).to_string(), "rank 0 has been in all_gather for 60.0 s");
    }
}
