//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{self, Dialect, Envelope};
use super::parameters::{Asked, Length, Parameters, accept_newer, read_request, requested_tokens};
use super::running::{Question, encode_in_background};
use crate::body::Fields;
use crate::engine::{Likelihood, Vocabulary};
use crate::error::ApiError;
use crate::limits::Limits;
use crate::queue::{Beginning, FinishReason, Piece};
use crate::state::Server;

/// As in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of texts, a list of tokens, or a list of such lists")]
enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    Lists(Vec<Vec<u32>>),
}

enum PromptInput {
    Text(String),
    Tokens(Vec<u32>),
}

pub(crate) async fn completions(
    State(server): State<Arc<Server>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let Asked { ready, origin, held, strict, mut fields } = read_request(&server, request).await?;
    let prompts = prompts(&mut fields, &server.limits, ready.model.vocabulary)?;
    let echo = fields.optional("echo")?.unwrap_or(false);
    let asked = requested_tokens(&mut fields, &["max_tokens"], u64::from(!echo))?;
    let alternatives = fields.whole("logprobs", (0, 5))?.map(|count| count as usize);
    let parameters = Parameters::read(&mut fields, &ready.model, &server.limits)?;
    fields.accept_neutral(&[("best_of", json!(1)), ("suffix", json!(""))])?;
    accept_newer(&mut fields)?;
    fields.finish()?;

    let vocabulary = Arc::clone(&ready.vocabulary);
    let encode = move |input| match input {
        PromptInput::Text(text) => vocabulary.encode(&text),
        PromptInput::Tokens(tokens) => Ok(tokens),
    };
    let prompts: Vec<Vec<u32>> =
        encode_in_background(held, move || prompts.into_iter().map(encode).collect::<Result<_, _>>()).await?;
    let length = Length { asked, default: DEFAULT_TOKENS, strict };
    let beginning = if echo { Beginning::Echoed } else { Beginning::Continued };
    let mut questions = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let max_tokens = length.fit(prompt.len(), &ready.model, &server.limits)?;
        questions.push(Question { prompt, max_tokens, beginning, grammar: None });
    }
    let envelope = Envelope::new("cmpl-", ready.model.id.clone());
    answer::answer(&server, &ready, &origin, envelope, Text { alternatives }, parameters, questions).await
}

fn prompts(fields: &mut Fields, limits: &Limits, known: usize) -> Result<Vec<PromptInput>, ApiError> {
    let prompts: Vec<PromptInput> = match fields.required("prompt")? {
        Prompt::Text(text) => vec![PromptInput::Text(text)],
        Prompt::Texts(texts) => texts.into_iter().map(PromptInput::Text).collect(),
        Prompt::Tokens(tokens) => vec![PromptInput::Tokens(tokens)],
        Prompt::Lists(lists) => lists.into_iter().map(PromptInput::Tokens).collect(),
    };
    let wrong = |message| Err(ApiError::parameter("prompt", message));
    if prompts.is_empty() || prompts.len() > limits.prompts {
        return wrong(format!("`prompt` holds {}; 1 to {} are read", prompts.len(), limits.prompts));
    }
    for input in &prompts {
        let PromptInput::Tokens(tokens) = input else { continue };
        if tokens.is_empty() || tokens.iter().any(|token| *token as usize >= known) {
            return wrong(format!("a list of tokens has one at least, and none above {}", known - 1));
        }
    }
    Ok(prompts)
}

struct Text {
    alternatives: Option<usize>,
}

impl Dialect for Text {
    fn alternatives(&self) -> Option<usize> {
        self.alternatives
    }

    fn objects(&self) -> (&'static str, &'static str) {
        ("text_completion", "text_completion")
    }

    fn opening(&self, _index: usize) -> Option<Value> {
        None
    }

    fn piece(
        &mut self,
        index: usize,
        piece: &Piece,
        offset: usize,
        vocabulary: &dyn Vocabulary,
    ) -> Option<Value> {
        let logprobs = self.logprobs(&piece.tokens, offset, vocabulary);
        Some(json!({ "index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": null }))
    }

    fn end(&mut self, index: usize, finish: FinishReason) -> Value {
        json!({ "index": index, "text": "", "logprobs": null, "finish_reason": finish.name() })
    }

    fn whole(
        &mut self,
        index: usize,
        whole: &Piece,
        finish: FinishReason,
        vocabulary: &dyn Vocabulary,
    ) -> Value {
        let logprobs = self.logprobs(&whole.tokens, 0, vocabulary);
        let finish = finish.name();
        json!({ "index": index, "text": whole.text, "logprobs": logprobs, "finish_reason": finish })
    }
}

impl Text {
    fn logprobs(
        &self,
        tokens: &[(u32, Option<Likelihood>)],
        mut offset: usize,
        vocabulary: &dyn Vocabulary,
    ) -> Value {
        if self.alternatives.is_none() {
            return Value::Null;
        }
        let name = |token: u32| String::from_utf8_lossy(&vocabulary.bytes(token)).into_owned();
        let mut offsets = Vec::with_capacity(tokens.len());
        for (token, _) in tokens {
            offsets.push(offset);
            // A character counts where it begins; it may span tokens.
            offset += vocabulary.bytes(*token).iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        }
        let top = tokens.iter().map(|(_, likelihood)| {
            let Some(likelihood) = likelihood else { return Value::Null };
            let named = likelihood.alternatives.iter().map(|(token, logprob)| (name(*token), json!(logprob)));
            Value::Object(named.collect::<Map<_, _>>())
        });
        json!({
            "tokens": tokens.iter().map(|(token, _)| name(*token)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|(_, likelihood)| likelihood.as_ref().map(|likelihood| likelihood.chosen)).collect::<Vec<_>>(),
            "top_logprobs": top.collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}
