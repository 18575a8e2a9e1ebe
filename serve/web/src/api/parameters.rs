//! Parameters of chat and text completions.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::body::{self, Fields};
use crate::body_budget::BodyShare;
use crate::client::{Client, Connection};
use crate::engine::{Adjustment, KvMemory, Model, Sampling};
use crate::error::ApiError;
use crate::limits::Limits;
use crate::request_id::RequestId;
use crate::state::{Ready, Server};

#[derive(Debug)]
pub(crate) struct Parameters {
    /// As sent, without seed and choice.
    pub(crate) sampling: Sampling,
    /// Else each prompt gets its own.
    pub(crate) seed: Option<u64>,
    pub(crate) adjustment: Adjustment,
    /// Per prompt.
    pub(crate) choices: u64,
    pub(crate) stop: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) usage: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    include_usage: Option<bool>,
    /// Hides tokens' sizes; this server never sends it.
    #[serde(rename = "include_obfuscation")]
    _obfuscation: Option<bool>,
}

impl Parameters {
    pub(crate) fn read(fields: &mut Fields, model: &Model, limits: &Limits) -> Result<Self, ApiError> {
        let sampling = sampling(fields)?;
        let stop = match fields.optional::<OneOrMore>("stop")? {
            None => Vec::new(),
            Some(OneOrMore::One(string)) if string.is_empty() => Vec::new(),
            Some(OneOrMore::One(string)) => vec![string],
            Some(OneOrMore::More(strings)) => strings,
        };
        check_stop(&stop, limits)?;

        let stream = fields.optional("stream")?.unwrap_or(false);
        let options = fields.optional::<StreamOptions>("stream_options")?;
        if options.is_some() && !stream {
            let message = "`stream_options` is for requests with `stream`";
            return Err(ApiError::parameter("stream_options", message));
        }

        Ok(Self {
            sampling,
            seed: seed(fields)?,
            adjustment: adjustment(fields, model, limits)?,
            choices: fields.whole("n", (1, limits.choices))?.unwrap_or(1),
            stop,
            stream,
            usage: options.and_then(|options| options.include_usage).unwrap_or(false),
        })
    }

    /// Without choices, stop strings and adjustment, which `/v1/responses` lacks.
    pub(crate) fn read_for_one_answer(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(Self {
            sampling: sampling(fields)?,
            seed: seed(fields)?,
            adjustment: Adjustment::default(),
            choices: 1,
            stop: Vec::new(),
            stream: fields.optional("stream")?.unwrap_or(false),
            usage: true,
        })
    }
}

/// All arithmetic stays finite.
fn sampling(fields: &mut Fields) -> Result<Sampling, ApiError> {
    Ok(Sampling {
        temperature: fields.number("temperature", (0.0, 2.0))?.unwrap_or(1.0),
        top_p: fields.number("top_p", (0.0, 1.0))?,
        min_p: fields.number("min_p", (0.0, 1.0))?,
        repetition_penalty: repetition_penalty(fields)?,
        // 0 is no limit, as in llama.cpp.
        top_k: fields.whole_or_off("top_k", (0, 1 << 31))?.map(|k| k as usize).filter(|k| *k > 0),
        seed: 0,
        choice: 0,
    })
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    fields.whole_or_off("seed", (0, i64::MAX as u64))
}

fn adjustment(fields: &mut Fields, model: &Model, limits: &Limits) -> Result<Adjustment, ApiError> {
    let mut penalty = |name| Ok(fields.number(name, (-2.0, 2.0))?.unwrap_or(0.0));
    let (frequency_penalty, presence_penalty) = (penalty("frequency_penalty")?, penalty("presence_penalty")?);

    let wrong = |message| ApiError::parameter("logit_bias", message);
    let sent: BTreeMap<String, f64> = fields.optional("logit_bias")?.unwrap_or_default();
    if sent.len() > limits.biases {
        let message =
            format!("`logit_bias` has {} tokens, and at most {} may be given", sent.len(), limits.biases);
        return Err(wrong(message));
    }
    let mut biases = Vec::with_capacity(sent.len());
    for (token, bias) in sent {
        let number = token.parse::<u32>().ok().filter(|number| number.to_string() == token);
        let known = number.filter(|number| (*number as usize) < model.vocabulary);
        let Some(token) = known else {
            let message = format!("a token of `logit_bias` is a number from 0 to {}", model.vocabulary - 1);
            return Err(wrong(message));
        };
        if !(-100.0..=100.0).contains(&bias) {
            return Err(wrong("a bias of `logit_bias` must be between -100 and 100".to_owned()));
        }
        biases.push((token, bias));
    }
    Ok(Adjustment { frequency_penalty, presence_penalty, biases })
}

fn repetition_penalty(fields: &mut Fields) -> Result<Option<f64>, ApiError> {
    let range = (0.01, 100.0);
    let theirs = fields.number("repeat_penalty", range)?;
    Ok(fields.number("repetition_penalty", range)?.or(theirs))
}

fn check_stop(stop: &[String], limits: &Limits) -> Result<(), ApiError> {
    let wrong = |message: String| Err(ApiError::parameter("stop", message));
    if stop.len() > limits.stop_strings {
        return wrong(format!(
            "`stop` has {} strings, and at most {} may be given",
            stop.len(),
            limits.stop_strings
        ));
    }
    if stop.iter().any(|string| string.is_empty() || string.len() > limits.stop_bytes) {
        return wrong(format!("a `stop` string has between 1 and {} bytes", limits.stop_bytes));
    }
    Ok(())
}

pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) id: RequestId,
    pub(crate) client: Client,
}

pub(crate) struct Asked {
    pub(crate) ready: Arc<Ready>,
    pub(crate) origin: Origin,
    pub(crate) held: BodyShare,
    pub(crate) strict: bool,
    pub(crate) fields: Fields,
}

pub(crate) async fn read_request(server: &Server, request: Request<Body>) -> Result<Asked, ApiError> {
    let ready = server.ready()?;
    let connection = request.extensions().get::<Connection>().expect("every request has a connection");
    let id = request.extensions().get::<RequestId>().expect("every request has an id");
    let origin = Origin { id: id.clone(), client: connection.client };
    let strict = prefers_strict(request.headers());
    let mut held = server.bodies.share();
    let mut fields = body::read(request, &server.limits, &mut held).await?;
    match fields.optional::<String>("model")? {
        Some(asked) if asked != ready.model.id => Err(unknown_model(&asked, &ready.model)),
        _ => Ok(Asked { ready, origin, held, strict, fields }),
    }
}

/// `Prefer: handling=strict`, as in RFC 7240.
fn prefers_strict(headers: &HeaderMap) -> bool {
    let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split([',', ';']));
    preferences.any(|preference| preference.trim().eq_ignore_ascii_case("handling=strict"))
}

pub(crate) fn unknown_model(asked: &str, model: &Model) -> ApiError {
    let asked: String = asked.chars().take(64).collect();
    let message = format!("this server has no model `{asked}`; it has `{}`", model.id);
    ApiError::parameter("model", message).code("model_not_found").status(StatusCode::NOT_FOUND)
}

pub(crate) struct Length {
    pub(crate) asked: Option<u64>,
    pub(crate) default: usize,
    /// Refuses instead of shortening the answer.
    pub(crate) strict: bool,
}

impl Length {
    /// Most tokens of an answer: as requested, or as many as context and server leave room for.
    pub(crate) fn fit(&self, prompt: usize, model: &Model, limits: &Limits) -> Result<usize, ApiError> {
        if let Some(asked) = self.asked.filter(|asked| self.strict && *asked > limits.tokens as u64) {
            return Err(ApiError::bad(format!(
                "{asked} tokens were asked for, but an answer of this server has at most {}; ask for less, or start the \
                 server with a larger --max-tokens",
                limits.tokens
            )));
        }
        let asked = self.asked.unwrap_or(self.default as u64).min(limits.tokens as u64) as usize;
        // An answer's last token is never read.
        let held = model.kv.map_or(model.context, |kv| kv.tokens.min(model.context));
        let room = (held + 1).saturating_sub(prompt);
        let (is_strict, context) = (self.strict && self.asked.is_some(), model.context);
        let too_long = |message| Err(ApiError::bad(message).code("context_length_exceeded"));
        if let Some(KvMemory { budget, bytes_per_token, tokens }) = model.kv
            && tokens < context
            && (room == 0 || is_strict && asked > room)
        {
            let more = if is_strict { asked.saturating_sub(1) } else { 0 };
            let needed = (prompt + more) as u64 * bytes_per_token;
            return too_long(format!(
                "the request's {} tokens take {} of memory for keys and values, and this server has {}, for {tokens} \
                 tokens; send less, or start the server with a larger --kv-budget",
                prompt + more,
                mebibytes(needed),
                mebibytes(budget)
            ));
        }
        if room == 0 {
            return too_long(format!(
                "the prompt has {prompt} tokens, but the model's context holds {context}; send less"
            ));
        }
        if is_strict && asked > room {
            return too_long(format!(
                "the prompt has {prompt} tokens and {asked} more were asked for, but the model's context holds \
                 {context}; send less, or ask for at most {room}"
            ));
        }
        Ok(asked.min(room))
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

pub(crate) fn requested_tokens(
    fields: &mut Fields,
    names: &[&str],
    least: u64,
) -> Result<Option<u64>, ApiError> {
    let mut asked = None;
    for name in names {
        let value = fields.whole_or_off(name, (least, u64::MAX))?;
        if asked.is_some() && value.is_some() && asked != value {
            return Err(ApiError::parameter(*name, format!("{} contradict each other", names.join(" and "))));
        }
        asked = asked.or(value);
    }
    Ok(asked)
}

/// Accepts labels, and newer parameters without effect.
pub(crate) fn accept_newer(fields: &mut Fields) -> Result<(), ApiError> {
    fields.ignore_labels(&["user", "safety_identifier", "prompt_cache_key"])?;
    // Like "auto", the only tier.
    fields.leave_out("service_tier", &json!("default"));
    fields.accept_neutral(&[("store", json!(false)), ("service_tier", json!("auto"))])
}
