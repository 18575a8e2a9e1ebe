//! The log's line on an answer (`an_answer_that_ends_is_logged_once`).

use std::time::{Duration, Instant};

use crate::queue::Job;
use crate::request_id::RequestId;

#[derive(Debug)]
pub(crate) struct Record {
    id: RequestId,
    choice: usize,
    prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) answer_tokens: usize,
    queued: Instant,
    /// From arrival.
    first_token: Option<Duration>,
}

impl Record {
    pub(crate) fn new(job: &Job) -> Self {
        Self {
            id: job.id.clone(),
            choice: job.sender.index,
            prompt_tokens: job.request.prompt.len(),
            cached_tokens: 0,
            answer_tokens: 0,
            queued: job.queued,
            first_token: None,
        }
    }

    /// The time from arrival, at the first token only.
    pub(crate) fn note_token(&mut self) -> Option<Duration> {
        let is_first = self.first_token.is_none();
        is_first.then(|| *self.first_token.insert(self.queued.elapsed()))
    }

    pub(crate) fn log(&self, finish: &str) {
        let Self { id, choice, prompt_tokens, cached_tokens, answer_tokens, .. } = self;
        let first_token_ms = self.first_token.map(milliseconds);
        let total_ms = milliseconds(self.queued.elapsed());
        tracing::info!(
            %id, choice, prompt_tokens, cached_tokens, answer_tokens, first_token_ms, total_ms, %finish, "answer"
        );
    }
}

/// One digit after the point.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}
