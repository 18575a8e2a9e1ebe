//! The bounded queue of waiting sequences (`a_full_queue_answers_429_until_it_has_room`).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::client::Client;
use crate::engine::{Likelihood, SequenceRequest};
use crate::error::ApiError;
use crate::pace::Pace;
use crate::request_id::RequestId;
use crate::turns::Turns;

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: RequestId,
    pub(crate) client: Client,
    pub(crate) request: SequenceRequest,
    pub(crate) stop: Vec<String>,
    pub(crate) beginning: Beginning,
    pub(crate) sender: EventSender,
    pub(crate) queued: Instant,
}

/// How an answer's text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// As a text of its own.
    Own,
    /// As the continuation of the prompt's text.
    Continued,
    /// With the prompt's text, which then continues.
    Echoed,
}

/// [`SequenceRequest::max_tokens`] bounds the channel's events.
#[derive(Debug, Clone)]
pub(crate) struct EventSender {
    pub(crate) index: usize,
    pub(crate) events: UnboundedSender<(usize, Event)>,
}

#[derive(Debug)]
pub(crate) enum Event {
    Begun,
    Piece(Piece),
    Finished { finish: FinishReason, made: usize, cached: usize },
    Failed(ApiError),
}

#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// A prompt's first token has no likelihood.
    pub(crate) tokens: Vec<(u32, Option<Likelihood>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishReason {
    Stop,
    Length,
}

impl FinishReason {
    /// As in OpenAI's API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

impl EventSender {
    pub(crate) fn send(&self, event: Event) {
        // The scheduler notices clients that left.
        let _gone = self.events.send((self.index, event));
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    capacity: usize,
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) pace: Pace,
}

#[derive(Debug, Default)]
struct State {
    jobs: Turns,
    closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) waiting: usize,
    /// Seconds until the waiting ones have ended.
    pub(crate) wait: u64,
}

#[derive(Debug)]
pub(crate) enum Next {
    Job(Box<Job>),
    Empty,
    Closed,
}

impl Queue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, state: Mutex::default(), changed: Condvar::new(), pace: Pace::default() }
    }

    pub(crate) fn push(&self, jobs: Vec<Job>) -> Result<(), Full> {
        let mut state = self.lock();
        state.jobs.retain(|job| !job.sender.is_abandoned());
        if state.closed || state.jobs.len() + jobs.len() > self.capacity {
            let waiting = state.jobs.len();
            return Err(Full { waiting, wait: self.pace.seconds_for(waiting, Instant::now()) });
        }
        for job in jobs {
            state.jobs.push(job);
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Skips clients that left. Without room for the next sequence, all wait.
    pub(crate) fn pop(&self, has_room: impl Fn(&SequenceRequest) -> bool) -> Next {
        Self::next(&mut self.lock(), has_room)
    }

    pub(crate) fn wait(&self) -> Next {
        let mut state = self.lock();
        loop {
            match Self::next(&mut state, |_| true) {
                Next::Empty => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                found => return found,
            }
        }
    }

    fn next(state: &mut State, has_room: impl Fn(&SequenceRequest) -> bool) -> Next {
        while let Some(next) = state.jobs.peek() {
            let is_abandoned = next.sender.is_abandoned();
            if !is_abandoned && !has_room(&next.request) {
                return Next::Empty;
            }
            match state.jobs.pop() {
                Some(job) if !is_abandoned => return Next::Job(Box::new(job)),
                _ => {}
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

    pub(crate) fn clear(&self) {
        self.lock().jobs.clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Ignores poisoning: no code panics under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use axum::http::HeaderMap;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::engine::{Adjustment, Sampling};

    fn job(prompt: u32) -> (Job, UnboundedReceiver<(usize, Event)>) {
        job_of(Client::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0), prompt)
    }

    fn job_of(client: Client, prompt: u32) -> (Job, UnboundedReceiver<(usize, Event)>) {
        let (events, receiver) = unbounded_channel();
        let sampling = Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            seed: 0,
            choice: 0,
        };
        let request = SequenceRequest {
            prompt: vec![prompt],
            max_tokens: 1,
            sampling,
            adjustment: Adjustment::default(),
            alternatives: None,
            score_prompt: false,
            grammar: None,
        };
        let sender = EventSender { index: 0, events };
        let id = RequestId::new(&HeaderMap::new());
        let (stop, beginning) = (Vec::new(), Beginning::Own);
        (Job { id, client, request, stop, beginning, sender, queued: Instant::now() }, receiver)
    }

    fn popped(queue: &Queue) -> Option<u32> {
        match queue.pop(|_| true) {
            Next::Job(job) => Some(job.request.prompt[0]),
            Next::Empty | Next::Closed => None,
        }
    }

    #[test]
    fn one_clients_sequences_are_served_in_order_of_arrival_and_abandoned_ones_skipped() {
        let queue = Queue::new(4);
        let (jobs, mut requests): (Vec<_>, Vec<_>) = (0..4).map(job).unzip();
        queue.push(jobs).unwrap();
        requests.remove(1);
        assert_eq!((popped(&queue), popped(&queue), popped(&queue)), (Some(0), Some(2), Some(3)));
        assert!(matches!(queue.pop(|_| true), Next::Empty));
    }

    #[test]
    fn networks_take_turns_and_so_do_the_connections_of_each() {
        let queue = Queue::new(10);
        let client =
            |host: u8, connection| Client::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)), connection);
        // More connections give a network no more turns.
        let arrivals = [(1, 1, 10), (1, 1, 11), (1, 1, 12), (1, 2, 20), (1, 3, 30), (2, 4, 40), (2, 4, 41)];
        let (jobs, requests): (Vec<_>, Vec<_>) = arrivals
            .map(|(host, connection, prompt)| job_of(client(host, connection), prompt))
            .into_iter()
            .unzip();
        queue.push(jobs).unwrap();
        let served: Vec<u32> = std::iter::from_fn(|| popped(&queue)).collect();
        assert_eq!(served, [10, 40, 20, 41, 30, 11, 12]);
        assert_eq!(queue.len(), 0);
        drop(requests);
    }

    #[test]
    fn a_request_that_does_not_fit_and_any_after_closing_are_refused_whole() {
        let queue = Queue::new(2);
        let (jobs, _requests): (Vec<_>, Vec<_>) = (0..4).map(job).unzip();
        let mut jobs = jobs.into_iter();
        queue.push(jobs.by_ref().take(1).collect()).unwrap();
        let (late, _late_requests): (Vec<_>, Vec<_>) = (10..12).map(job).unzip();
        assert_eq!(queue.push(late), Err(Full { waiting: 1, wait: 1 }));
        queue.push(jobs.by_ref().take(1).collect()).unwrap();
        queue.close();
        assert_eq!((popped(&queue), popped(&queue)), (Some(0), Some(1)));
        assert!(queue.push(jobs.collect()).is_err() && matches!(queue.wait(), Next::Closed));
    }
}
