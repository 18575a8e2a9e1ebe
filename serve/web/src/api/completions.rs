//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{self, Dialect, Envelope, Question};
use super::parameters::{Parameters, asked_tokens, check_length, opened, text_only};
use crate::body::Fields;
use crate::engine::{Likelihood, Vocabulary};
use crate::error::ApiError;
use crate::limits::Limits;
use crate::queue::{Finish, Piece};
use crate::state::Server;

/// Tokens of an answer whose request does not say, as at OpenAI.
const DEFAULT_TOKENS: usize = 16;

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of texts, a list of tokens, or a list of such lists")]
enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    Lists(Vec<Vec<u32>>),
}

enum Words {
    Text(String),
    Tokens(Vec<u32>),
}

pub(crate) async fn completions(
    State(server): State<Arc<Server>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (ready, mut fields) = opened(&server, request).await?;
    let prompts = prompts(&mut fields, &server.limits, ready.model.vocabulary)?;
    let asked = asked_tokens(&mut fields, &["max_tokens"], &server.limits)?;
    let alternatives = fields.whole("logprobs", (0, 5))?.map(|count| count as usize);
    let parameters = Parameters::read(&mut fields, &server.limits)?;
    fields.without_effect(&[("best_of", json!(1)), ("echo", json!(false)), ("suffix", json!(""))])?;
    fields.without_effect(&text_only())?;
    fields.finish()?;

    let vocabulary = Arc::clone(&ready.vocabulary);
    let encode = move |words| match words {
        Words::Text(text) => vocabulary.encode(&text),
        Words::Tokens(tokens) => Ok(tokens),
    };
    let prompts: Vec<Vec<u32>> =
        answer::encoded(move || prompts.into_iter().map(encode).collect::<Result<_, _>>()).await?;
    let mut questions = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let most = check_length(asked, prompt.len(), DEFAULT_TOKENS, &ready.model, &server.limits)?;
        questions.push(Question { prompt, most });
    }
    let envelope = Envelope::new("cmpl", ready.model.id.clone());
    answer::answer(&server, &ready, envelope, Text { alternatives }, parameters, questions).await
}

fn prompts(fields: &mut Fields, limits: &Limits, known: usize) -> Result<Vec<Words>, ApiError> {
    let prompts: Vec<Words> = match fields.required("prompt")? {
        Prompt::Text(text) => vec![Words::Text(text)],
        Prompt::Texts(texts) => texts.into_iter().map(Words::Text).collect(),
        Prompt::Tokens(tokens) => vec![Words::Tokens(tokens)],
        Prompt::Lists(lists) => lists.into_iter().map(Words::Tokens).collect(),
    };
    let wrong = |message| Err(ApiError::parameter("prompt", message));
    if prompts.is_empty() || prompts.len() > limits.prompts {
        return wrong(format!("`prompt` holds {}; 1 to {} are read", prompts.len(), limits.prompts));
    }
    for words in &prompts {
        let Words::Tokens(tokens) = words else { continue };
        if tokens.is_empty() || tokens.iter().any(|token| *token as usize >= known) {
            return wrong(format!("a list of tokens has one at least, and none above {}", known - 1));
        }
    }
    Ok(prompts)
}

/// How continued texts are written.
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

    fn piece(&self, index: usize, piece: &Piece, offset: usize, vocabulary: &dyn Vocabulary) -> Value {
        let logprobs = self.logprobs(&piece.tokens, offset, vocabulary);
        json!({ "index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": null })
    }

    fn end(&self, index: usize, finish: Finish) -> Value {
        json!({ "index": index, "text": "", "logprobs": null, "finish_reason": answer::reason(finish) })
    }

    fn whole(&self, index: usize, whole: &Piece, finish: Finish, vocabulary: &dyn Vocabulary) -> Value {
        let logprobs = self.logprobs(&whole.tokens, 0, vocabulary);
        let finish = answer::reason(finish);
        json!({ "index": index, "text": whole.text, "logprobs": logprobs, "finish_reason": finish })
    }
}

impl Text {
    fn logprobs(
        &self,
        tokens: &[(u32, Likelihood)],
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
            offset += vocabulary.bytes(*token).len();
        }
        let top = tokens.iter().map(|(_, likelihood)| {
            let named = likelihood.alternatives.iter().map(|(token, logprob)| (name(*token), json!(logprob)));
            Value::Object(named.collect::<Map<_, _>>())
        });
        json!({
            "tokens": tokens.iter().map(|(token, _)| name(*token)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|(_, likelihood)| likelihood.chosen).collect::<Vec<_>>(),
            "top_logprobs": top.collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}
