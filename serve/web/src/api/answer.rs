//! Answers: whole, or streamed as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response};
use axum::response::IntoResponse;
use axum::response::sse::{self, Sse};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::parameters::{Origin, Parameters};
use crate::body_budget::BodyShare;
use crate::engine::{EncodeError, Sampling, SequenceRequest, Vocabulary};
use crate::error::{ApiError, json_body};
use crate::queue::{Event, EventSender, FinishReason, Job, Piece};
use crate::state::{Ready, Server};

/// A stream's head waits no longer for its first event.
const HEAD_WAIT: Duration = Duration::from_secs(5);

pub(super) struct Question {
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: usize,
}

pub(super) trait Dialect: Send + 'static {
    fn alternatives(&self) -> Option<usize>;
    /// `object` of a whole answer and of a piece.
    fn objects(&self) -> (&'static str, &'static str);
    fn opening(&self, index: usize) -> Option<Value>;
    /// `offset` characters into the choice's text.
    fn piece(&self, index: usize, piece: &Piece, offset: usize, vocabulary: &dyn Vocabulary) -> Value;
    fn end(&self, index: usize, finish: FinishReason) -> Value;
    fn whole(&self, index: usize, whole: &Piece, finish: FinishReason, vocabulary: &dyn Vocabulary) -> Value;
}

pub(super) struct Envelope {
    id: String,
    model: String,
    created: u64,
}

impl Envelope {
    pub(super) fn new(prefix: &str, model: String) -> Self {
        let id = format!("{prefix}-{:016x}", RandomState::new().hash_one(0_u8));
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Self { id, model, created }
    }

    fn wrap(&self, object: &str, choices: &[Value]) -> Value {
        let Self { id, model, created } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": choices })
    }
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

pub(super) async fn answer<D: Dialect>(
    server: &Server,
    ready: &Ready,
    Origin { id, client }: Origin,
    envelope: Envelope,
    dialect: D,
    parameters: Parameters,
    questions: Vec<Question>,
) -> Result<Response<Body>, ApiError> {
    let (events, receiver) = unbounded_channel();
    let mut usage = Usage::default();
    let mut jobs = Vec::new();
    for Question { prompt, max_tokens } in questions {
        usage.prompt += prompt.len();
        for choice in 0..parameters.choices {
            let sampling = Sampling { choice, ..parameters.sampling };
            let alternatives = dialect.alternatives();
            let (prompt, adjustment) = (prompt.clone(), parameters.adjustment.clone());
            let request = SequenceRequest { prompt, max_tokens, sampling, adjustment, alternatives };
            let sender = EventSender { index: jobs.len(), events: events.clone() };
            let stop = parameters.stop.clone();
            jobs.push(Job { id: id.clone(), client, request, stop, sender, queued: Instant::now() });
        }
    }

    let (count, choices) = (jobs.len(), parameters.choices as usize);
    if count > server.limits.queue {
        let message = format!("{count} answers are more than the {} that may wait", server.limits.queue);
        return Err(ApiError::bad(message));
    }
    server.queue.push(jobs).map_err(ApiError::queue_full)?;

    // The channel closes with the last sequence.
    drop(events);
    let vocabulary = Arc::clone(&ready.vocabulary);
    let answer = Answer { receiver, count, choices, usage, envelope, dialect, vocabulary };
    if parameters.stream { answer.streamed(parameters.usage).await } else { answer.whole().await }
}

#[derive(Default)]
struct Usage {
    prompt: usize,
    cached: usize,
    made: usize,
}

impl Usage {
    fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.made,
            "total_tokens": self.prompt + self.made,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

/// Dropping it, as when a client leaves, cancels its sequences.
struct Answer<D> {
    receiver: UnboundedReceiver<(usize, Event)>,
    count: usize,
    choices: usize,
    usage: Usage,
    envelope: Envelope,
    dialect: D,
    vocabulary: Arc<dyn Vocabulary>,
}

impl<D: Dialect> Answer<D> {
    async fn event(&mut self) -> (usize, Event) {
        let Some((index, event)) = self.receiver.recv().await else {
            return (0, Event::Failed(ApiError::unavailable("the server is shutting down")));
        };
        match event {
            // A prompt counts once for all its choices.
            Event::Begun { cached } if index.is_multiple_of(self.choices) => self.usage.cached += cached,
            Event::Finished { made, .. } => self.usage.made += made,
            _ => {}
        }
        (index, event)
    }

    async fn whole(mut self) -> Result<Response<Body>, ApiError> {
        let mut texts: Vec<Piece> = (0..self.count).map(|_| Piece::default()).collect();
        let mut choices = vec![Value::Null; self.count];
        let mut open = self.count;
        while open > 0 {
            match self.event().await {
                (index, Event::Piece(piece)) => {
                    texts[index].text += &piece.text;
                    texts[index].tokens.extend(piece.tokens);
                }
                (index, Event::Finished { finish, .. }) => {
                    choices[index] = self.dialect.whole(index, &texts[index], finish, &*self.vocabulary);
                    open -= 1;
                }
                (_, Event::Failed(error)) => return Err(error),
                (_, Event::Begun { .. }) => {}
            }
        }
        let mut body = self.envelope.wrap(self.dialect.objects().0, &choices);
        body["usage"] = self.usage.json();
        Ok(json_body(&body).into_response())
    }

    /// Waits up to [`HEAD_WAIT`], so that an early failure becomes an HTTP status; proxies give up on a later head.
    async fn streamed(mut self, usage: bool) -> Result<Response<Body>, ApiError> {
        let first = tokio::time::timeout(HEAD_WAIT, self.event()).await.ok();
        if let Some((_, Event::Failed(error))) = first {
            return Err(error);
        }
        let mut streaming = Streaming {
            open: self.count,
            offsets: vec![None; self.count],
            answer: self,
            usage,
            frames: VecDeque::new(),
        };
        if let Some((index, first)) = first {
            streaming.take(index, first);
        }
        let frames = futures_util::stream::unfold(streaming, Streaming::next);
        let keep_alive = sse::KeepAlive::default();
        // nginx would collect the answer before passing it on.
        let unbuffered = [(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))];
        Ok((unbuffered, Sse::new(frames).keep_alive(keep_alive)).into_response())
    }
}

struct Streaming<D> {
    answer: Answer<D>,
    open: usize,
    /// Characters sent per choice; `None` before its first piece.
    offsets: Vec<Option<usize>>,
    usage: bool,
    frames: VecDeque<sse::Event>,
}

impl<D: Dialect> Streaming<D> {
    async fn next(mut self) -> Option<(Result<sse::Event, Infallible>, Self)> {
        while self.frames.is_empty() && self.open > 0 {
            let (index, event) = self.answer.event().await;
            self.take(index, event);
        }
        let frame = self.frames.pop_front()?;
        Some((Ok(frame), self))
    }

    fn take(&mut self, index: usize, event: Event) {
        match event {
            Event::Begun { .. } => {
                self.begin(index);
            }
            Event::Piece(piece) => {
                let offset = self.begin(index);
                self.offsets[index] = Some(offset + piece.text.chars().count());
                let choice = self.answer.dialect.piece(index, &piece, offset, &*self.answer.vocabulary);
                self.frame(&[choice]);
            }
            Event::Finished { finish, .. } => {
                self.begin(index);
                let choice = self.answer.dialect.end(index, finish);
                self.frame(&[choice]);
                self.open -= 1;
                if self.open == 0 {
                    if self.usage {
                        self.frame(&[]);
                    }
                    self.frames.push_back(sse::Event::default().data("[DONE]"));
                }
            }
            Event::Failed(error) => {
                self.frames.push_back(sse::Event::default().data(error.body().to_string()));
                self.open = 0;
            }
        }
    }

    /// Opens a choice if necessary. Returns the characters sent.
    fn begin(&mut self, index: usize) -> usize {
        if self.offsets[index].is_none()
            && let Some(opening) = self.answer.dialect.opening(index)
        {
            self.frame(&[opening]);
        }
        *self.offsets[index].get_or_insert(0)
    }

    /// Without choices: the last frame, with the usage.
    fn frame(&mut self, choices: &[Value]) {
        let last = choices.is_empty();
        let mut body = self.answer.envelope.wrap(self.answer.dialect.objects().1, choices);
        if self.usage {
            body["usage"] = if last { self.answer.usage.json() } else { Value::Null };
        }
        self.frames.push_back(sse::Event::default().data(body.to_string()));
    }
}
