//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;
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
use super::tools::{CallReader, FunctionKind, Said, Tools, call_text, response_format};
use crate::body::Fields;
use crate::engine::{EncodeError, Likelihood, Vocabulary};
use crate::error::ApiError;
use crate::queue::{Beginning, FinishReason, Piece};
use crate::state::Server;

pub(crate) async fn chat(
    State(server): State<Arc<Server>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let Asked { ready, origin, held, strict, mut fields } = read_request(&server, request).await?;
    let sent = texts(fields.required("messages")?)?;
    let (tools, format) = (Tools::read(&mut fields)?, response_format(&mut fields)?);
    if tools.is_some() && format.is_some() {
        let message = "`response_format` and `tools` both decide what an answer is: send one of them";
        return Err(ApiError::parameter("response_format", message));
    }
    let instructions = tools.iter().map(|tools| (SentRole::System, tools.instructions()));
    let messages = joined("messages", instructions.chain(sent).collect(), &server.limits)?;
    let asked = requested_tokens(&mut fields, &["max_completion_tokens", "max_tokens"], 1)?;
    let alternatives = alternatives(&mut fields)?;
    let parameters = Parameters::read(&mut fields, &ready.model, &server.limits)?;
    fields.accept_neutral(&[("modalities", json!(["text"]))])?;
    accept_newer(&mut fields)?;
    fields.finish()?;

    let (calls, form) = (tools.is_some(), tools.map(|tools| tools.form()).or(format));
    let model = Arc::clone(&ready);
    let encode = move || {
        let prompt = model.vocabulary.encode_chat(&messages)?;
        let compile = |form| model.grammars.compile(&form, &*model.vocabulary, model.model.vocabulary);
        let grammar = form.map(compile).transpose();
        let grammar = grammar.map_err(|error| {
            EncodeError(format!("`response_format` or `tools` cannot be followed: {error}"))
        })?;
        Ok((prompt, grammar))
    };
    let (prompt, grammar) = encode_in_background(held, encode).await?;
    let length = Length { asked, default: ready.model.context, strict };
    let max_tokens = length.fit(prompt.len(), &ready.model, &server.limits)?;
    let questions = vec![Question { prompt, max_tokens, beginning: Beginning::Own, grammar }];
    let envelope = Envelope::new("chatcmpl-", ready.model.id.clone());
    let choices = if calls { parameters.choices } else { 0 };
    let chat = Chat { alternatives, calls: (0..choices).map(|_| CallReader::default()).collect() };
    answer::answer(&server, &ready, &origin, envelope, chat, parameters, questions).await
}

fn alternatives(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.optional::<bool>("logprobs")?.unwrap_or(false);
    let count = fields.whole("top_logprobs", (0, 20))?;
    if count.is_some() && !wanted {
        return Err(ApiError::parameter("top_logprobs", "`top_logprobs` needs `logprobs`: true"));
    }
    Ok(wanted.then_some(count.unwrap_or(0) as usize))
}

/// Our answers, which clients send back, have the fields with a default.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentMessage {
    role: ChatRole,
    content: Option<Content>,
    tool_calls: Option<Vec<SentCall>>,
    tool_call_id: Option<String>,
    /// The speaker's name, which no template shows.
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
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum ChatRole {
    Tool,
    #[serde(untagged)]
    Other(SentRole),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentCall {
    id: String,
    #[serde(rename = "type")]
    _kind: FunctionKind,
    function: CalledFunction,
    /// Streams number calls.
    #[serde(rename = "index")]
    _index: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CalledFunction {
    name: String,
    arguments: String,
}

/// Texts of a conversation. In templates a call is the text that the model wrote, a result the user's message.
fn texts(sent: Vec<SentMessage>) -> Result<Vec<(SentRole, String)>, ApiError> {
    let mut called = BTreeMap::new();
    let mut texts = Vec::with_capacity(sent.len());
    for (at, SentMessage { role, content, tool_calls, tool_call_id, .. }) in sent.into_iter().enumerate() {
        let wrong = |member: &str, message: &str| {
            let path = format!("messages[{at}].{member}");
            Err(ApiError::parameter(&path, format!("`{path}`: {message}")))
        };
        let calls = tool_calls.unwrap_or_default();
        if !calls.is_empty() && role != ChatRole::Other(SentRole::Assistant) {
            return wrong("tool_calls", "only the assistant calls functions");
        }
        if content.is_none() && role != ChatRole::Other(SentRole::Assistant) {
            return wrong("content", "it is missing");
        }
        let mut text = content.map(Content::text).unwrap_or_default();
        for SentCall { id, function: CalledFunction { name, arguments }, .. } in calls {
            if !text.is_empty() {
                text.push('\n');
            }
            text += &call_text(&name, &arguments);
            called.insert(id, name);
        }
        texts.push(match (role, tool_call_id) {
            (ChatRole::Other(role), None) => (role, text),
            (ChatRole::Other(_), Some(_)) => {
                return wrong("tool_call_id", "only a result of a function has it");
            }
            (ChatRole::Tool, id) => match id.and_then(|id| called.get(&id)) {
                Some(name) => (SentRole::User, format!("{name} returned: {text}")),
                None => return wrong("tool_call_id", "no earlier message has a call of this id"),
            },
        });
    }
    Ok(texts)
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
    calls: Vec<CallReader>,
}

impl Dialect for Chat {
    fn alternatives(&self) -> Option<usize> {
        self.alternatives
    }

    fn objects(&self) -> (&'static str, &'static str) {
        ("chat.completion", "chat.completion.chunk")
    }

    fn opening(&self, index: usize) -> Option<Value> {
        let content = if self.calls.is_empty() { json!("") } else { Value::Null };
        let delta = json!({ "role": "assistant", "content": content, "refusal": null });
        Some(json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null }))
    }

    fn piece(
        &mut self,
        index: usize,
        piece: &Piece,
        _offset: usize,
        vocabulary: &dyn Vocabulary,
    ) -> Option<Value> {
        let logprobs = self.logprobs(&piece.tokens, vocabulary);
        let delta = match self.calls.get_mut(index) {
            None => json!({ "content": piece.text }),
            Some(reader) => {
                let parts = reader.push(&piece.text);
                if parts.is_empty() && logprobs.is_null() {
                    return None;
                }
                let mut delta = json!({});
                for part in parts {
                    add(&mut delta, part);
                }
                delta
            }
        };
        Some(json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null }))
    }

    fn end(&mut self, index: usize, finish: FinishReason) -> Value {
        let mut delta = json!({});
        let (rest, finish) = self.finish(index, finish);
        if let Some(part) = rest {
            add(&mut delta, part);
        }
        json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish })
    }

    fn whole(
        &mut self,
        index: usize,
        whole: &Piece,
        finish: FinishReason,
        vocabulary: &dyn Vocabulary,
    ) -> Value {
        let mut message = json!({ "role": "assistant", "content": whole.text, "refusal": null });
        let mut parts = Vec::new();
        if let Some(reader) = self.calls.get_mut(index) {
            parts = reader.push(&whole.text);
            message["content"] = Value::Null;
        }
        let (rest, finish) = self.finish(index, finish);
        for part in parts.into_iter().chain(rest) {
            add(&mut message, part);
        }
        if let Some(call) = message.get_mut("tool_calls").and_then(|calls| calls[0].as_object_mut()) {
            call.remove("index");
        }
        let logprobs = self.logprobs(&whole.tokens, vocabulary);
        json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish })
    }
}

fn add(message: &mut Value, part: Said) {
    let push = |to: &mut Value, text: &str| *to = json!(to.as_str().unwrap_or_default().to_owned() + text);
    match part {
        Said::Text(text) => push(&mut message["content"], &text),
        Said::Name(name) => {
            let id = Envelope::new("call_", String::new()).id;
            let function = json!({ "name": name, "arguments": "" });
            message["tool_calls"] =
                json!([{ "index": 0, "id": id, "type": "function", "function": function }]);
        }
        Said::Arguments(text) => {
            if message.get("tool_calls").is_none() {
                message["tool_calls"] = json!([{ "index": 0, "function": {} }]);
            }
            push(&mut message["tool_calls"][0]["function"]["arguments"], &text);
        }
    }
}

impl Chat {
    fn finish(&mut self, index: usize, finish: FinishReason) -> (Option<Said>, &'static str) {
        let Some(reader) = self.calls.get_mut(index) else { return (None, finish.name()) };
        let (rest, is_complete_call) = reader.finish();
        (rest, if is_complete_call { "tool_calls" } else { finish.name() })
    }

    fn logprobs(&self, tokens: &[(u32, Option<Likelihood>)], vocabulary: &dyn Vocabulary) -> Value {
        if self.alternatives.is_none() {
            return Value::Null;
        }
        let named = |token: u32, logprob: f64| {
            let bytes = vocabulary.bytes(token);
            json!({ "token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes })
        };
        let known = tokens.iter().filter_map(|(token, likelihood)| Some((token, likelihood.as_ref()?)));
        let content = known.map(|(token, likelihood)| {
            let mut entry = named(*token, likelihood.chosen);
            let top = likelihood.alternatives.iter().map(|(token, logprob)| named(*token, *logprob));
            entry["top_logprobs"] = top.collect();
            entry
        });
        json!({ "content": content.collect::<Value>(), "refusal": null })
    }
}
