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

/// An event of a sequence, sent to its request.
#[derive(Debug)]
pub(crate) enum Event {
    /// The sequence has a place; `cached` tokens of its prompt were known from before.
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
    /// The requested number of tokens.
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

/// Result of asking the queue for work.
#[derive(Debug)]
pub(crate) enum Next {
    Job(Job),
    /// No sequence waits.
    Empty,
    /// No sequence waits, and none will come.
    Closed,
}

impl Queue {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Queues all of `jobs` or none; where they do not fit, the error is how many wait.
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

    /// Waits for the next job, or until there will be none.
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::engine::Sampling;

    /// A sequence that is told apart by its prompt, and the request that waits for it.
    fn job(prompt: u32) -> (Job, UnboundedReceiver<(usize, Event)>) {
        let (events, request) = unbounded_channel();
        let sampling = Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            seed: 0,
            choice: 0,
        };
        let ask = Ask { prompt: vec![prompt], most: 1, sampling, alternatives: None };
        let outlet = Outlet { index: 0, events };
        (Job { ask, stop: Vec::new(), outlet, queued: Instant::now() }, request)
    }

    fn popped(queue: &Queue) -> Option<u32> {
        match queue.pop() {
            Next::Job(job) => Some(job.ask.prompt[0]),
            Next::Empty | Next::Closed => None,
        }
    }

    #[test]
    fn sequences_are_served_in_order_of_arrival_and_abandoned_ones_are_passed_over() {
        let queue = Queue::new(4);
        let (jobs, mut requests): (Vec<_>, Vec<_>) = (0..4).map(job).unzip();
        queue.push(jobs).unwrap();
        requests.remove(1);
        assert_eq!((popped(&queue), popped(&queue), popped(&queue)), (Some(0), Some(2), Some(3)));
        assert!(matches!(queue.pop(), Next::Empty));
    }

    #[test]
    fn a_request_that_does_not_fit_is_refused_whole_and_a_closed_queue_takes_nothing() {
        let queue = Queue::new(2);
        let (jobs, _requests): (Vec<_>, Vec<_>) = (0..4).map(job).unzip();
        let mut jobs = jobs.into_iter();
        queue.push(jobs.by_ref().take(1).collect()).unwrap();
        let (late, _late_requests): (Vec<_>, Vec<_>) = (10..12).map(job).unzip();
        assert_eq!(queue.push(late), Err(1));
        queue.push(jobs.by_ref().take(1).collect()).unwrap();
        queue.close();
        assert_eq!((popped(&queue), popped(&queue)), (Some(0), Some(1)));
        assert!(queue.push(jobs.collect()).is_err() && matches!(queue.wait(), Next::Closed));
    }
}
