//! Sequences that wait for a place in the engine: bounded, first come first served.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::engine::{Ask, Likelihood};
use crate::error::ApiError;

/// A sequence on its way to the engine.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ask: Ask,
    pub(crate) stop: Vec<String>,
    pub(crate) outlet: Outlet,
    pub(crate) queued: Instant,
}

/// Where a sequence's text goes. Unbounded, because what goes through is: a sequence has at most [`Ask::most`] tokens.
#[derive(Debug, Clone)]
pub(crate) struct Outlet {
    /// Which sequence of its request.
    pub(crate) index: usize,
    pub(crate) events: UnboundedSender<(usize, Event)>,
}

/// What a request hears of its sequences.
#[derive(Debug)]
pub(crate) enum Event {
    /// It has a place; so many tokens of its prompt were known from before.
    Begun {
        cached: usize,
    },
    Piece(Piece),
    /// The last one: why there is no more, and the tokens that were made.
    Finished {
        finish: Finish,
        made: usize,
    },
    /// The last one: there will be no answer.
    Failed(ApiError),
}

/// Text that will not be taken back, and the tokens that ended within it where their likelihood was asked for.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) tokens: Vec<(u32, Likelihood)>,
}

/// Why an answer is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// An end token, or a stop string.
    Stop,
    /// As many tokens as were asked for.
    Length,
}

impl Outlet {
    pub(crate) fn send(&self, event: Event) {
        // Whoever left hears nothing; the scheduler looks for that before every step.
        let _gone = self.events.send((self.index, event));
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// What a scheduler finds.
#[derive(Debug)]
pub(crate) enum Next {
    Job(Job),
    /// Nothing waits.
    Empty,
    /// Nothing waits, and nothing will come.
    Closed,
}

impl Queue {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), changed: Condvar::new() }
    }

    /// All of `jobs` or none; where they do not fit, how many wait.
    pub(crate) fn push(&self, jobs: Vec<Job>) -> Result<(), usize> {
        let mut state = self.lock();
        state.jobs.retain(|job| !job.outlet.is_abandoned());
        if state.closed || state.jobs.len() + jobs.len() > self.most {
            return Err(state.jobs.len());
        }
        state.jobs.extend(jobs);
        self.changed.notify_one();
        Ok(())
    }

    /// The next job whose request still waits for it.
    pub(crate) fn pop(&self) -> Next {
        Self::next(&mut self.lock())
    }

    /// The same, once there is one or there will be none.
    pub(crate) fn wait(&self) -> Next {
        let mut state = self.lock();
        loop {
            match Self::next(&mut state) {
                Next::Empty => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                found => return found,
            }
        }
    }

    fn next(state: &mut State) -> Next {
        while let Some(job) = state.jobs.pop_front() {
            if !job.outlet.is_abandoned() {
                return Next::Job(job);
            }
        }
        if state.closed { Next::Closed } else { Next::Empty }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Forgets what waits, which its requests notice.
    pub(crate) fn clear(&self) {
        self.lock().jobs.clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// No code panics while it holds the lock, and jobs are whole at any moment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
