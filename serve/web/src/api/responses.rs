//! `POST /v1/responses`: a conversation in OpenAI's Responses API. Nothing is stored.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use axum::response::sse;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Value, json};

use super::answer::{Envelope, event_stream};
use super::messages::{SentRole, joined};
use super::parameters::{Asked, Length, Parameters, accept_newer, read_request, requested_tokens};
use super::running::{Question, Running, encode_in_background};
use crate::body::Fields;
use crate::error::{ApiError, json_body};
use crate::queue::{Beginning, Event, FinishReason};
use crate::state::Server;

pub(crate) async fn responses(
    State(server): State<Arc<Server>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let Asked { ready, origin, held, strict, mut fields } = read_request(&server, request).await?;
    let instructions = fields.optional::<String>("instructions")?;
    let messages = {
        let input: Input = fields.required("input")?;
        let system =
            instructions.clone().filter(|text| !text.is_empty()).map(|text| (SentRole::System, text));
        let turns = input.0.into_iter().map(|item| (item.role, item.content.text()));
        joined("input", system.into_iter().chain(turns).collect(), &server.limits)?
    };
    let asked = requested_tokens(&mut fields, &["max_output_tokens"], 1)?;
    let parameters = Parameters::read_for_one_answer(&mut fields)?;
    accept_defaults(&mut fields)?;
    fields.finish()?;

    let vocabulary = Arc::clone(&ready.vocabulary);
    let prompt = encode_in_background(held, move || vocabulary.encode_chat(&messages)).await?;
    let length = Length { asked, default: ready.model.context, strict };
    let max_tokens = length.fit(prompt.len(), &ready.model, &server.limits)?;

    let questions = vec![Question { prompt, max_tokens, beginning: Beginning::Own, grammar: None }];
    let running = Running::start(&server, &origin, &parameters, None, questions)?;
    let envelope = Envelope::new("resp_", ready.model.id.clone());
    let reply = Reply {
        message: envelope.id.replacen("resp", "msg", 1),
        envelope,
        instructions,
        asked,
        temperature: parameters.sampling.temperature,
        top_p: parameters.sampling.top_p.unwrap_or(1.0),
        running,
        text: String::new(),
    };
    if parameters.stream { reply.streamed().await } else { reply.whole().await }
}

fn accept_defaults(fields: &mut Fields) -> Result<(), ApiError> {
    // Without tools it means "none".
    fields.leave_out("tool_choice", &json!("auto"));
    fields.accept_neutral(&[
        ("tools", json!([])),
        ("tool_choice", json!("none")),
        ("parallel_tool_calls", json!(true)),
        ("text", json!({ "format": { "type": "text" } })),
        ("truncation", json!("disabled")),
        ("include", json!([])),
        ("metadata", json!({})),
        ("background", json!(false)),
        ("top_logprobs", json!(0)),
        ("reasoning", Value::Null),
        ("previous_response_id", Value::Null),
    ])?;
    accept_newer(fields)
}

struct Input(Vec<Item>);

/// Untagged enums' errors do not name the wrong field.
impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrList;

        impl<'de> Visitor<'de> for TextOrList {
            type Value = Input;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of messages")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Input, E> {
                Ok(Input(vec![Item::said(text)]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Input, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(items)).map(Input)
            }
        }

        deserializer.deserialize_any(TextOrList)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    role: SentRole,
    content: Content,
    #[serde(default, rename = "type")]
    _kind: Option<ItemKind>,
    #[serde(default, rename = "id")]
    _id: Option<String>,
    #[serde(default, rename = "status")]
    _status: Option<String>,
    #[serde(default, rename = "phase")]
    _phase: Option<String>,
}

impl Item {
    fn said(text: &str) -> Self {
        let content = Content::Text(text.to_owned());
        Self { role: SentRole::User, content, _kind: None, _id: None, _status: None, _phase: None }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ItemKind {
    Message,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, or a list of parts of type `input_text` or `output_text`")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Part {
    InputText {
        text: String,
    },
    OutputText {
        text: String,
        #[serde(default, rename = "annotations")]
        _annotations: IgnoredAny,
        #[serde(default, rename = "logprobs")]
        _logprobs: IgnoredAny,
    },
}

impl Content {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => {
                let text = |part| match part {
                    Part::InputText { text } | Part::OutputText { text, .. } => text,
                };
                parts.into_iter().map(text).collect()
            }
        }
    }
}

struct Reply {
    envelope: Envelope,
    /// Id of the only output item.
    message: String,
    instructions: Option<String>,
    asked: Option<u64>,
    temperature: f64,
    top_p: f64,
    running: Running,
    text: String,
}

const IN_PROGRESS: &str = "in_progress";

fn status(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "completed",
        FinishReason::Length => "incomplete",
    }
}

impl Reply {
    async fn whole(mut self) -> Result<Response<Body>, ApiError> {
        loop {
            match self.running.event().await.1 {
                Event::Begun => {}
                Event::Piece(piece) => self.text += &piece.text,
                Event::Finished { finish, .. } => {
                    return Ok(json_body(&self.ended(status(finish))).into_response());
                }
                Event::Failed(error) => return Err(error),
            }
        }
    }

    async fn streamed(mut self) -> Result<Response<Body>, ApiError> {
        let first = self.running.first_event().await?;
        let mut streaming = Streaming { reply: self, sent: 0, frames: VecDeque::new(), ended: false };
        let response = streaming.reply.response(IN_PROGRESS);
        streaming.frame("response.created", json!({ "response": response }));
        streaming.frame("response.in_progress", json!({ "response": response }));
        if let Some((_, event)) = first {
            streaming.take(event);
        }
        Ok(event_stream(futures_util::stream::unfold(streaming, Streaming::next)))
    }

    /// Without output.
    fn response(&self, status: &str) -> Value {
        json!({
            "id": self.envelope.id,
            "object": "response",
            "created_at": self.envelope.created,
            "model": self.envelope.model,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": self.instructions,
            "max_output_tokens": self.asked,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "output": [],
            "usage": null,
            "metadata": {},
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "reasoning": { "effort": null, "summary": null },
            "store": false,
            "text": { "format": { "type": "text" } },
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
        })
    }

    fn ended(&self, status: &str) -> Value {
        let mut response = self.response(status);
        if status == "incomplete" {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        response["output"] = json!([self.item(status)]);
        let usage = &self.running.usage;
        response["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": { "cached_tokens": usage.cached },
            "output_tokens": usage.made,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": usage.prompt + usage.made,
        });
        response
    }

    fn item(&self, status: &str) -> Value {
        let content = if status == IN_PROGRESS { json!([]) } else { json!([self.part()]) };
        json!({ "type": "message", "id": self.message, "status": status, "role": "assistant", "content": content })
    }

    fn part(&self) -> Value {
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
    }
}

struct Streaming {
    reply: Reply,
    sent: u64,
    frames: VecDeque<sse::Event>,
    ended: bool,
}

impl Streaming {
    async fn next(mut self) -> Option<(Result<sse::Event, Infallible>, Self)> {
        while self.frames.is_empty() && !self.ended {
            let (_, event) = self.reply.running.event().await;
            self.take(event);
        }
        let frame = self.frames.pop_front()?;
        Some((Ok(frame), self))
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Begun => {
                self.frame("response.output_item.added", json!({ "item": self.reply.item(IN_PROGRESS) }));
                self.content_frame("response.content_part.added", json!({ "part": self.reply.part() }));
            }
            Event::Piece(piece) => {
                self.reply.text += &piece.text;
                let delta = json!({ "delta": piece.text, "logprobs": [] });
                self.content_frame("response.output_text.delta", delta);
            }
            Event::Finished { finish, .. } => {
                let status = status(finish);
                let text = json!({ "text": self.reply.text, "logprobs": [] });
                self.content_frame("response.output_text.done", text);
                self.content_frame("response.content_part.done", json!({ "part": self.reply.part() }));
                self.frame("response.output_item.done", json!({ "item": self.reply.item(status) }));
                let response = self.reply.ended(status);
                self.frame(&format!("response.{status}"), json!({ "response": response }));
                self.ended = true;
            }
            Event::Failed(error) => {
                let mut response = self.reply.response("failed");
                let error = &error.body()["error"];
                response["error"] = json!({ "code": error["type"], "message": error["message"] });
                self.frame("response.failed", json!({ "response": response }));
                self.ended = true;
            }
        }
    }

    fn content_frame(&mut self, kind: &str, mut fields: Value) {
        fields["item_id"] = json!(self.reply.message);
        fields["content_index"] = json!(0);
        self.frame(kind, fields);
    }

    fn frame(&mut self, kind: &str, mut fields: Value) {
        fields["type"] = json!(kind);
        fields["sequence_number"] = json!(self.sent);
        if fields["response"].is_null() {
            fields["output_index"] = json!(0);
        }
        self.sent += 1;
        self.frames.push_back(sse::Event::default().event(kind).data(fields.to_string()));
    }
}
