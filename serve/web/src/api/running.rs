//! Answers under way: their sequences in the queue, and their events.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::parameters::{Origin, Parameters, random_seed};
use crate::body_budget::BodyShare;
use crate::engine::{EncodeError, Sampling, SequenceRequest};
use crate::error::ApiError;
use crate::grammar::Grammar;
use crate::queue::{Beginning, Event, EventSender, Job};
use crate::state::Server;

const HEAD_WAIT: Duration = Duration::from_secs(5);

pub(super) struct Question {
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: usize,
    pub(super) beginning: Beginning,
    pub(super) grammar: Option<Grammar>,
}

/// Runs on a blocking thread: a long text takes time. The body counts as held until then, also if its client leaves.
pub(super) async fn encode_in_background<T: Send + 'static>(
    body: BodyShare,
    encode: impl FnOnce() -> Result<T, EncodeError> + Send + 'static,
) -> Result<T, ApiError> {
    let encode = move || {
        let encoded = encode();
        drop(body);
        encoded
    };
    match tokio::task::spawn_blocking(encode).await {
        Ok(encoded) => encoded.map_err(|error| ApiError::bad(error.to_string())),
        Err(_panicked) => Err(ApiError::internal("the prompt could not be turned into tokens")),
    }
}

#[derive(Default)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) cached: usize,
    pub(super) made: usize,
}

impl Usage {
    pub(super) fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.made,
            "total_tokens": self.prompt + self.made,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

/// Dropping it cancels its sequences.
pub(super) struct Running {
    receiver: UnboundedReceiver<(usize, Event)>,
    pub(super) count: usize,
    choices: usize,
    pub(super) usage: Usage,
}

impl Running {
    pub(super) fn start(
        server: &Server,
        origin: &Origin,
        parameters: &Parameters,
        alternatives: Option<usize>,
        questions: Vec<Question>,
    ) -> Result<Self, ApiError> {
        let (events, receiver) = unbounded_channel();
        let mut usage = Usage::default();
        let mut jobs = Vec::new();
        for Question { prompt, max_tokens, beginning, grammar } in questions {
            usage.prompt += prompt.len();
            let seed = parameters.seed.unwrap_or_else(random_seed);
            // 0 is the least share: the likeliest token alone.
            let top_p = parameters.sampling.top_p.map(|share| share.max(f64::MIN_POSITIVE));
            for choice in 0..parameters.choices {
                let sampling = Sampling { top_p, seed, choice, ..parameters.sampling };
                let request = SequenceRequest {
                    prompt: prompt.clone(),
                    max_tokens,
                    sampling,
                    adjustment: parameters.adjustment.clone(),
                    alternatives,
                    score_prompt: beginning == Beginning::Echoed && alternatives.is_some(),
                    grammar: grammar.clone(),
                };
                jobs.push(Job {
                    id: origin.id.clone(),
                    client: origin.client,
                    request,
                    stop: parameters.stop.clone(),
                    beginning,
                    sender: EventSender { index: jobs.len(), events: events.clone() },
                    queued: Instant::now(),
                });
            }
        }

        let (count, choices) = (jobs.len(), parameters.choices as usize);
        if count > server.limits.queue {
            let message = format!("{count} answers are more than the {} that may wait", server.limits.queue);
            return Err(ApiError::bad(message));
        }
        server.queue.push(jobs).map_err(ApiError::queue_full)?;
        Ok(Self { receiver, count, choices, usage })
    }

    pub(super) async fn event(&mut self) -> (usize, Event) {
        let Some((index, event)) = self.receiver.recv().await else {
            return (0, Event::Failed(ApiError::unavailable("the server is shutting down")));
        };
        if let Event::Finished { made, cached, .. } = event {
            self.usage.made += made;
            // A prompt counts once for all choices.
            if index.is_multiple_of(self.choices) {
                self.usage.cached += cached;
            }
        }
        (index, event)
    }

    /// The first event, for which a stream's head waits up to [`HEAD_WAIT`]: early failures become HTTP statuses.
    pub(super) async fn first_event(&mut self) -> Result<Option<(usize, Event)>, ApiError> {
        match tokio::time::timeout(HEAD_WAIT, self.event()).await.ok() {
            Some((_, Event::Failed(error))) => Err(error),
            first => Ok(first),
        }
    }
}
