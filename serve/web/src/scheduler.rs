//! Which sequences are in the engine: they join and leave between two tokens.
//!
//! One thread runs it. Before every step it lets go of sequences that nobody waits for any more, so that a cancelled
//! request frees its place within one token, and fills free places from the queue. A panic or an error in the engine
//! ends the sequences that were in it, each with an error; the next ones find an empty engine.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::engine::{Engine, EngineError, Key, Vocabulary};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::queue::{Event, Job, Next, Queue};
use crate::sequence::Sequence;

pub(crate) struct Scheduler<'a> {
    engine: &'a mut dyn Engine,
    vocabulary: &'a dyn Vocabulary,
    queue: &'a Queue,
    metrics: &'a Metrics,
    active: BTreeMap<Key, Sequence<'a>>,
    next: u64,
}

impl<'a> Scheduler<'a> {
    pub(crate) fn new(
        engine: &'a mut dyn Engine,
        vocabulary: &'a dyn Vocabulary,
        queue: &'a Queue,
        metrics: &'a Metrics,
    ) -> Self {
        Self { engine, vocabulary, queue, metrics, active: BTreeMap::new(), next: 0 }
    }

    /// Answers until the queue is closed and empty and every sequence has ended.
    pub(crate) fn run(mut self) {
        while self.admit() {
            self.metrics.active.set(self.active.len());
            if !self.active.is_empty() {
                self.step();
            }
            self.release();
        }
    }

    /// Fills free places, waiting where nothing else is to be done. False once there is nothing left to do.
    fn admit(&mut self) -> bool {
        while self.active.len() < self.engine.slots() {
            let next = if self.active.is_empty() { self.queue.wait() } else { self.queue.pop() };
            match next {
                Next::Job(job) => self.join(job),
                Next::Empty => return true,
                Next::Closed => return !self.active.is_empty(),
            }
        }
        true
    }

    fn join(&mut self, job: Job) {
        let Job { ask, stop, outlet, queued } = job;
        let key = Key(self.next);
        self.next += 1;
        self.metrics.queued.observe(queued.elapsed());
        let (read, most) = (ask.prompt.len(), ask.most);
        match self.guarded(|scheduler| scheduler.engine.join(key, ask)) {
            Ok(Ok(cached)) => {
                self.metrics.prompt_tokens.add(read);
                self.metrics.cached_tokens.add(cached);
                outlet.send(Event::Begun { cached });
                let sequence = Sequence::new(outlet, queued, stop, most, self.vocabulary);
                self.active.insert(key, sequence);
            }
            Ok(Err(error)) => outlet.send(Event::Failed(ApiError::internal(error.to_string()))),
            Err(panicked) => {
                outlet.send(Event::Failed(panicked.clone()));
                self.fail(&panicked);
            }
        }
    }

    fn step(&mut self) {
        let failure = match self.guarded(Self::advance) {
            Ok(Ok(())) => return,
            Ok(Err(EngineError(reason))) => {
                tracing::error!("the engine failed: {}", reason.escape_debug());
                ApiError::internal(reason)
            }
            Err(panicked) => panicked,
        };
        self.fail(&failure);
    }

    /// Brings every sequence its next token, if it has one.
    fn advance(&mut self) -> Result<(), EngineError> {
        let tokens = self.engine.step()?;
        self.metrics.steps.add(1);
        self.metrics.generated_tokens.add(tokens.len());
        for (key, token) in tokens {
            let Some(sequence) = self.active.get_mut(&key) else { continue };
            if sequence.is_first() {
                self.metrics.first_token.observe(sequence.queued.elapsed());
            }
            if !sequence.take(token) {
                self.active.remove(&key);
                self.engine.leave(key);
            }
        }
        Ok(())
    }

    /// Lets go of what nobody waits for.
    fn release(&mut self) {
        let (engine, metrics) = (&mut self.engine, self.metrics);
        self.active.retain(|key, sequence| {
            let abandoned = sequence.outlet.is_abandoned();
            if abandoned {
                engine.leave(*key);
                metrics.cancelled.add(1);
            }
            !abandoned
        });
        metrics.active.set(self.active.len());
    }

    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, ApiError> {
        // Whatever a panic left behind is thrown away by `fail`.
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        done.map_err(|_payload| {
            self.metrics.panics.add(1);
            tracing::error!("inference panicked; the sequences that were in the engine end with an error");
            ApiError::internal("the model failed while it was answering; the server keeps running")
        })
    }

    fn fail(&mut self, error: &ApiError) {
        self.engine.reset();
        for sequence in std::mem::take(&mut self.active).into_values() {
            sequence.outlet.send(Event::Failed(error.clone()));
        }
    }
}
