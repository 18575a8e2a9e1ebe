//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Dialect, Envelope};
use super::messages::{SentRole, joined};
use super::parameters::{Asked, Length, Parameters, accept_newer, read_request, requested_tokens};
use super::running::{Question, encode_in_background};
use crate::body::Fields;
use crate::engine::{Likelihood, Vocabulary};
use crate::error::ApiError;
use crate::queue::{FinishReason, Piece};
use crate::state::Server;

pub(crate) async fn chat(
    State(server): State<Arc<Server>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let Asked { ready, origin, held, strict, mut fields } = read_request(&server, request).await?;
    let sent: Vec<SentMessage> = fields.required("messages")?;
    let sent = sent.into_iter().map(|sent| (sent.role, sent.content.text()));
    let messages = joined("messages", sent.collect(), &server.limits)?;
    let asked = requested_tokens(&mut fields, &["max_completion_tokens", "max_tokens"])?;
    let alternatives = alternatives(&mut fields)?;
    let parameters = Parameters::read(&mut fields, &ready.model, &server.limits)?;
    fields.accept_neutral(&[
        ("tools", json!([])),
        ("tool_choice", json!("none")),
        ("parallel_tool_calls", json!(true)),
        ("response_format", json!({ "type": "text" })),
        ("modalities", json!(["text"])),
    ])?;
    accept_newer(&mut fields)?;
    fields.finish()?;

    let vocabulary = Arc::clone(&ready.vocabulary);
    let prompt = encode_in_background(held, move || vocabulary.encode_chat(&messages)).await?;
    let length = Length { asked, default: ready.model.context, strict };
    let max_tokens = length.fit(prompt.len(), &ready.model, &server.limits)?;
    let questions = vec![Question { prompt, max_tokens }];
    let envelope = Envelope::new("chatcmpl-", ready.model.id.clone());
    answer::answer(&server, &ready, &origin, envelope, Chat { alternatives }, parameters, questions).await
}

fn alternatives(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.optional::<bool>("logprobs")?.unwrap_or(false);
    let count = fields.whole("top_logprobs", (0, 20))?;
    if count.is_some() && !wanted {
        return Err(ApiError::parameter("top_logprobs", "`top_logprobs` needs `logprobs`: true"));
    }
    Ok(wanted.then_some(count.unwrap_or(0) as usize))
}

/// Fields with a default occur in our answers, which clients send back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentMessage {
    role: SentRole,
    content: Content,
    /// Names the speaker, which no template shows.
    #[serde(default, rename = "name")]
    _name: Option<String>,
    #[serde(default, rename = "refusal")]
    _refusal: Absent,
    #[serde(default, rename = "annotations")]
    _annotations: Absent,
    #[serde(default, rename = "audio")]
    _audio: Absent,
    #[serde(default, rename = "function_call")]
    _function_call: Absent,
    #[serde(default, rename = "tool_calls")]
    _tool_calls: Absent,
}

type Absent = Option<Nothing>;

#[derive(Deserialize)]
enum Nothing {}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, or a list of parts of type `text`")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
enum Part {
    Text { text: String },
}

impl Content {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => parts.into_iter().map(|Part::Text { text }| text).collect(),
        }
    }
}

struct Chat {
    alternatives: Option<usize>,
}

impl Dialect for Chat {
    fn alternatives(&self) -> Option<usize> {
        self.alternatives
    }

    fn objects(&self) -> (&'static str, &'static str) {
        ("chat.completion", "chat.completion.chunk")
    }

    fn opening(&self, index: usize) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "", "refusal": null });
        Some(json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null }))
    }

    fn piece(&self, index: usize, piece: &Piece, _offset: usize, vocabulary: &dyn Vocabulary) -> Value {
        let logprobs = self.logprobs(&piece.tokens, vocabulary);
        json!({ "index": index, "delta": { "content": piece.text }, "logprobs": logprobs, "finish_reason": null })
    }

    fn end(&self, index: usize, finish: FinishReason) -> Value {
        json!({ "index": index, "delta": {}, "logprobs": null, "finish_reason": finish.name() })
    }

    fn whole(&self, index: usize, whole: &Piece, finish: FinishReason, vocabulary: &dyn Vocabulary) -> Value {
        let message = json!({ "role": "assistant", "content": whole.text, "refusal": null });
        let logprobs = self.logprobs(&whole.tokens, vocabulary);
        json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish.name() })
    }
}

impl Chat {
    fn logprobs(&self, tokens: &[(u32, Likelihood)], vocabulary: &dyn Vocabulary) -> Value {
        if self.alternatives.is_none() {
            return Value::Null;
        }
        let named = |token: u32, logprob: f64| {
            let bytes = vocabulary.bytes(token);
            json!({ "token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes })
        };
        let content = tokens.iter().map(|(token, likelihood)| {
            let mut entry = named(*token, likelihood.chosen);
            let top = likelihood.alternatives.iter().map(|(token, logprob)| named(*token, *logprob));
            entry["top_logprobs"] = top.collect();
            entry
        });
        json!({ "content": content.collect::<Value>(), "refusal": null })
    }
}
