//! Parameters of chat and text completions.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::body::{self, Fields};
use crate::body_budget::BodyShare;
use crate::client::{Client, Connection};
use crate::engine::{Model, Sampling};
use crate::error::ApiError;
use crate::limits::Limits;
use crate::request_id::RequestId;
use crate::state::{Ready, Server};

#[derive(Debug)]
pub(crate) struct Parameters {
    /// `choice` is not set yet.
    pub(crate) sampling: Sampling,
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
    /// Hides the sizes of tokens; this server never sends it.
    #[serde(rename = "include_obfuscation")]
    _obfuscation: Option<bool>,
}

impl Parameters {
    pub(crate) fn read(fields: &mut Fields, limits: &Limits) -> Result<Self, ApiError> {
        // All arithmetic stays finite.
        let sampling = Sampling {
            temperature: fields.number("temperature", (0.0, 2.0))?.unwrap_or(1.0),
            top_p: fields.number("top_p", (f64::MIN_POSITIVE, 1.0))?,
            min_p: fields.number("min_p", (0.0, 1.0))?,
            repetition_penalty: repetition_penalty(fields)?,
            // 0 is no limit, as in llama.cpp.
            top_k: fields.whole_or_off("top_k", (0, 1 << 31))?.map(|k| k as usize).filter(|k| *k > 0),
            seed: fields.whole_or_off("seed", (0, i64::MAX as u64))?.unwrap_or_else(random_seed),
            choice: 0,
        };

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

        fields.accept_neutral(&[
            ("frequency_penalty", json!(0)),
            ("presence_penalty", json!(0)),
            ("logit_bias", json!({})),
        ])?;
        fields.ignore_labels(&["user", "safety_identifier", "prompt_cache_key"])?;
        Ok(Self {
            sampling,
            choices: fields.whole("n", (1, limits.choices))?.unwrap_or(1),
            stop,
            stream,
            usage: options.and_then(|options| options.include_usage).unwrap_or(false),
        })
    }
}

/// The name here, or llama.cpp's.
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

fn random_seed() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Where a request comes from.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) id: RequestId,
    pub(crate) client: Client,
}

/// A request that was read, for the model that is here.
pub(crate) struct Asked {
    pub(crate) ready: Arc<Ready>,
    pub(crate) origin: Origin,
    pub(crate) held: BodyShare,
    pub(crate) fields: Fields,
}

pub(crate) async fn read_request(server: &Server, request: Request<Body>) -> Result<Asked, ApiError> {
    let ready = server.ready()?;
    let connection = request.extensions().get::<Connection>().expect("every request has a connection");
    let id = request.extensions().get::<RequestId>().expect("every request has an id");
    let origin = Origin { id: id.clone(), client: connection.client };
    let mut held = server.bodies.share();
    let mut fields = body::read(request, &server.limits, &mut held).await?;
    match fields.optional::<String>("model")? {
        Some(asked) if asked != ready.model.id => Err(unknown_model(&asked, &ready.model)),
        _ => Ok(Asked { ready, origin, held, fields }),
    }
}

pub(crate) fn unknown_model(asked: &str, model: &Model) -> ApiError {
    let asked: String = asked.chars().take(64).collect();
    let message = format!("this server has no model `{asked}`; it has `{}`", model.id);
    ApiError::parameter("model", message).code("model_not_found").status(StatusCode::NOT_FOUND)
}

pub(crate) fn check_length(
    asked: Option<u64>,
    prompt: usize,
    default: usize,
    model: &Model,
    limits: &Limits,
) -> Result<usize, ApiError> {
    // The model never reads an answer's last token.
    let left = (model.context + 1).saturating_sub(prompt);
    let most = asked.map_or(default.min(left).min(limits.tokens), |asked| asked as usize);
    if most == 0 || most > left {
        let wanted = if asked.is_some() { format!(" and {most} more were asked for") } else { String::new() };
        let message = format!(
            "the prompt has {prompt} tokens{wanted}, but the model's context holds {}; send less{}",
            model.context,
            if left > 0 && asked.is_some() { format!(", or ask for at most {left}") } else { String::new() }
        );
        return Err(ApiError::bad(message).code("context_length_exceeded"));
    }
    Ok(most)
}

/// Accepts any of `names`.
pub(crate) fn requested_tokens(
    fields: &mut Fields,
    names: &[&str],
    limits: &Limits,
) -> Result<Option<u64>, ApiError> {
    let mut asked = None;
    for name in names {
        let value = fields.whole_or_off(name, (1, limits.tokens as u64))?;
        if asked.is_some() && value.is_some() && asked != value {
            return Err(ApiError::parameter(*name, format!("{} contradict each other", names.join(" and "))));
        }
        asked = asked.or(value);
    }
    Ok(asked)
}

/// Parameters of newer clients whose values change nothing.
pub(crate) fn accept_newer(fields: &mut Fields) -> Result<(), ApiError> {
    // Like "auto", it means the only tier there is.
    fields.leave_out("service_tier", &json!("default"));
    fields.accept_neutral(&[("store", json!(false)), ("service_tier", json!("auto"))])
}
