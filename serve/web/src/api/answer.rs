//! Answers: whole, or streamed as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response};
use axum::response::IntoResponse;
use axum::response::sse::{self, Sse};
use futures_util::Stream;
use serde_json::{Value, json};

use super::parameters::{Origin, Parameters};
use super::running::{Question, Running};
use crate::engine::Vocabulary;
use crate::error::{ApiError, json_body};
use crate::queue::{Event, FinishReason, Piece};
use crate::state::{Ready, Server};

pub(super) trait Dialect: Send + 'static {
    fn alternatives(&self) -> Option<usize>;
    /// `object` of a whole answer and of a piece.
    fn objects(&self) -> (&'static str, &'static str);
    fn opening(&self, index: usize) -> Option<Value>;
    /// `offset` characters into the choice's text. `None` holds the text back.
    fn piece(
        &mut self,
        index: usize,
        piece: &Piece,
        offset: usize,
        vocabulary: &dyn Vocabulary,
    ) -> Option<Value>;
    fn end(&mut self, index: usize, finish: FinishReason) -> Value;
    fn whole(
        &mut self,
        index: usize,
        whole: &Piece,
        finish: FinishReason,
        vocabulary: &dyn Vocabulary,
    ) -> Value;
}

pub(super) struct Envelope {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: u64,
}

impl Envelope {
    pub(super) fn new(prefix: &str, model: String) -> Self {
        let id = format!("{prefix}{:016x}", RandomState::new().hash_one(0_u8));
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Self { id, model, created }
    }

    fn wrap(&self, object: &str, choices: &[Value]) -> Value {
        let Self { id, model, created } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": choices })
    }
}

pub(super) async fn answer<D: Dialect>(
    server: &Server,
    ready: &Ready,
    origin: &Origin,
    envelope: Envelope,
    dialect: D,
    parameters: Parameters,
    questions: Vec<Question>,
) -> Result<Response<Body>, ApiError> {
    let running = Running::start(server, origin, &parameters, dialect.alternatives(), questions)?;
    let answer = Answer { running, envelope, dialect, vocabulary: Arc::clone(&ready.vocabulary) };
    if parameters.stream { answer.streamed(parameters.usage).await } else { answer.whole().await }
}

pub(super) fn event_stream(
    frames: impl Stream<Item = Result<sse::Event, Infallible>> + Send + 'static,
) -> Response<Body> {
    // nginx would collect the answer first.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))];
    (unbuffered, Sse::new(frames).keep_alive(sse::KeepAlive::default())).into_response()
}

struct Answer<D> {
    running: Running,
    envelope: Envelope,
    dialect: D,
    vocabulary: Arc<dyn Vocabulary>,
}

impl<D: Dialect> Answer<D> {
    async fn whole(mut self) -> Result<Response<Body>, ApiError> {
        let count = self.running.count;
        let mut texts: Vec<Piece> = (0..count).map(|_| Piece::default()).collect();
        let mut choices = vec![Value::Null; count];
        let mut open = count;
        while open > 0 {
            match self.running.event().await {
                (index, Event::Piece(piece)) => {
                    texts[index].text += &piece.text;
                    texts[index].tokens.extend(piece.tokens);
                }
                (index, Event::Finished { finish, .. }) => {
                    choices[index] = self.dialect.whole(index, &texts[index], finish, &*self.vocabulary);
                    open -= 1;
                }
                (_, Event::Failed(error)) => return Err(error),
                (_, Event::Begun) => {}
            }
        }
        let mut body = self.envelope.wrap(self.dialect.objects().0, &choices);
        body["usage"] = self.running.usage.json();
        Ok(json_body(&body).into_response())
    }

    async fn streamed(mut self, usage: bool) -> Result<Response<Body>, ApiError> {
        let first = self.running.first_event().await?;
        let count = self.running.count;
        let mut streaming = Streaming {
            open: count,
            offsets: vec![None; count],
            answer: self,
            usage,
            frames: VecDeque::new(),
        };
        if let Some((index, first)) = first {
            streaming.take(index, first);
        }
        Ok(event_stream(futures_util::stream::unfold(streaming, Streaming::next)))
    }
}

struct Streaming<D> {
    answer: Answer<D>,
    open: usize,
    /// Characters sent per choice; `None` before the first piece.
    offsets: Vec<Option<usize>>,
    usage: bool,
    frames: VecDeque<sse::Event>,
}

impl<D: Dialect> Streaming<D> {
    async fn next(mut self) -> Option<(Result<sse::Event, Infallible>, Self)> {
        while self.frames.is_empty() && self.open > 0 {
            let (index, event) = self.answer.running.event().await;
            self.take(index, event);
        }
        let frame = self.frames.pop_front()?;
        Some((Ok(frame), self))
    }

    fn take(&mut self, index: usize, event: Event) {
        match event {
            Event::Begun => {
                self.begin(index);
            }
            Event::Piece(piece) => {
                let offset = self.begin(index);
                self.offsets[index] = Some(offset + piece.text.chars().count());
                let choice = self.answer.dialect.piece(index, &piece, offset, &*self.answer.vocabulary);
                if let Some(choice) = choice {
                    self.frame(&[choice]);
                }
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

    /// Opens a choice if necessary. Returns the characters sent so far.
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
            body["usage"] = if last { self.answer.running.usage.json() } else { Value::Null };
        }
        self.frames.push_back(sse::Event::default().data(body.to_string()));
    }
}
