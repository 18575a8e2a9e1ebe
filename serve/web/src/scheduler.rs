//! The scheduler: moves sequences in and out of the engine between tokens
//! (`a_cancelled_request_frees_its_slot_within_one_token`).
//!
//! An engine's panic resets it and fails its sequences (`a_panic_in_inference_is_a_500_and_the_server_lives`). An
//! error, such as full memory, costs the caches first, then the newest sequence
//! (`a_failed_step_ends_the_newest_answer_only`).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::engine::{Counters, Engine, EngineError, Key, PromptRead, Vocabulary};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::queue::{Beginning, Event, Job, Next, Queue};
use crate::record::Record;
use crate::sequence::Sequence;

const PUBLISH_EVERY: Duration = Duration::from_millis(250);

pub(crate) struct Scheduler<'a> {
    engine: &'a mut dyn Engine,
    vocabulary: &'a dyn Vocabulary,
    queue: &'a Queue,
    metrics: &'a Metrics,
    counters: Counters,
    active: BTreeMap<Key, Sequence<'a>>,
    next: u64,
    failures: usize,
}

impl<'a> Scheduler<'a> {
    pub(crate) fn new(
        engine: &'a mut dyn Engine,
        vocabulary: &'a dyn Vocabulary,
        queue: &'a Queue,
        metrics: &'a Metrics,
        counters: Counters,
    ) -> Self {
        Self { engine, vocabulary, queue, metrics, counters, active: BTreeMap::new(), next: 0, failures: 0 }
    }

    pub(crate) fn run(mut self) {
        self.metrics.publish((self.counters)());
        let mut published = Instant::now();
        while self.admit() {
            self.metrics.active.set(self.active.len());
            self.queue.pace.set_busy(!self.active.is_empty(), Instant::now());
            if !self.active.is_empty() {
                self.step();
            }
            self.drop_abandoned();
            self.queue.pace.set_busy(!self.active.is_empty(), Instant::now());
            // Requests for `/metrics` never wait for the device.
            if self.active.is_empty() || published.elapsed() >= PUBLISH_EVERY {
                self.metrics.publish((self.counters)());
                published = Instant::now();
            }
        }
    }

    /// Fills free slots while memory lasts; blocks if all are free. False once all is done.
    fn admit(&mut self) -> bool {
        while self.active.len() < self.engine.slots() {
            let next = if self.active.is_empty() {
                self.queue.wait()
            } else {
                self.queue.pop(|request| self.engine.has_room(request))
            };
            match next {
                Next::Job(job) => self.join(*job),
                Next::Empty => return true,
                Next::Closed => return !self.active.is_empty(),
            }
        }
        true
    }

    fn join(&mut self, job: Job) {
        let record = Record::new(&job);
        let Job { request, stop, beginning, sender, queued, .. } = job;
        let continued = (beginning != Beginning::Own).then(|| request.prompt.clone());
        let key = Key(self.next);
        self.next += 1;
        self.metrics.queued.observe(queued.elapsed());
        let (read, max_tokens) = (request.prompt.len(), request.max_tokens);
        match self.catch_panic(|scheduler| scheduler.engine.join(key, request)) {
            Ok(Ok(())) => {
                self.metrics.prompt_tokens.add(read);
                sender.send(Event::Begun);
                let vocabulary = self.vocabulary;
                let decoder = continued
                    .as_deref()
                    .map_or_else(|| vocabulary.decoder(), |prompt| vocabulary.decoder_after(prompt));
                let echo = continued.filter(|_| beginning == Beginning::Echoed);
                let sequence = Sequence::new(sender, record, decoder, (stop, echo), max_tokens, vocabulary);
                self.active.insert(key, sequence);
            }
            Ok(Err(error)) => {
                log_failure(&error);
                record.log("failed");
                sender.send(Event::Failed(ApiError::engine_failed()));
            }
            Err(panicked) => {
                record.log("failed");
                sender.send(Event::Failed(panicked.clone()));
                self.fail_all(&panicked);
            }
        }
    }

    fn step(&mut self) {
        let done = self.catch_panic(Self::advance);
        let done = done.and_then(|done| match done {
            Ok(()) => {
                self.failures = 0;
                Ok(())
            }
            Err(error) => self.make_room(&error),
        });
        if let Err(panicked) = done {
            self.fail_all(&panicked);
        }
    }

    fn make_room(&mut self, error: &EngineError) -> Result<(), ApiError> {
        log_failure(error);
        self.failures += 1;
        self.catch_panic(|scheduler| {
            if scheduler.failures > 1
                && let Some((key, newest)) = scheduler.active.pop_last()
            {
                scheduler.engine.leave(key);
                newest.fail(ApiError::engine_failed());
            }
            scheduler.engine.forget();
        })
    }

    fn advance(&mut self) -> Result<(), EngineError> {
        let tokens = self.engine.step()?;
        self.metrics.steps.add(1);
        self.metrics.generated_tokens.add(tokens.len());
        for (key, token) in tokens {
            let Some(sequence) = self.active.get_mut(&key) else { continue };
            if let Some(wait) = sequence.record.note_token() {
                self.metrics.first_token.observe(wait);
            }
            if let Some(PromptRead { cached, .. }) = token.prompt {
                self.metrics.cached_tokens.add(cached);
            }
            if !sequence.take(token) {
                self.active.remove(&key);
                self.queue.pace.note_end(Instant::now());
                self.engine.leave(key);
            }
        }
        Ok(())
    }

    fn drop_abandoned(&mut self) {
        let (engine, metrics, pace) = (&mut self.engine, self.metrics, &self.queue.pace);
        for (key, sequence) in self.active.extract_if(.., |_, sequence| sequence.sender.is_abandoned()) {
            engine.leave(key);
            metrics.cancelled.add(1);
            pace.note_end(Instant::now());
            sequence.cancel();
        }
        metrics.active.set(self.active.len());
    }

    fn catch_panic<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, ApiError> {
        // After a panic, `fail_all` discards the state.
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        done.map_err(|_payload| {
            self.metrics.panics.add(1);
            tracing::error!("inference panicked; the sequences that were in the engine end with an error");
            ApiError::engine_failed()
        })
    }

    fn fail_all(&mut self, error: &ApiError) {
        self.engine.reset();
        for sequence in std::mem::take(&mut self.active).into_values() {
            sequence.fail(error.clone());
        }
    }
}

/// Clients do not see it: it may name budgets, files and other answers.
fn log_failure(EngineError(reason): &EngineError) {
    tracing::error!("the engine failed: {}", reason.escape_debug());
}
