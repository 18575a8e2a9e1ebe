//! Request bodies, bounded in bytes (each and all), time and nesting.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::body_budget::BodyShare;
use crate::error::ApiError;
use crate::limits::Limits;

/// Reading removes a member of the object; the rest are unknown.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

pub(crate) async fn read(
    request: Request<Body>,
    limits: &Limits,
    held: &mut BodyShare,
) -> Result<Fields, ApiError> {
    require_json(&request)?;
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if declared
        .and_then(|length| length.parse::<usize>().ok())
        .is_some_and(|length| length > limits.body_bytes)
    {
        return Err(too_large(limits.body_bytes));
    }
    let body = receive(request.into_body(), limits.body_bytes, held);
    let Ok(body) = tokio::time::timeout(limits.body_time, body).await else {
        return Err(too_slow(limits.body_time));
    };
    parse(&body?, limits)
}

async fn receive(body: Body, most: usize, held: &mut BodyShare) -> Result<Vec<u8>, ApiError> {
    let mut body = Limited::new(body, most);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let is_large = error.is::<http_body_util::LengthLimitError>();
            if is_large { too_large(most) } else { ApiError::bad("the request's body ended too early") }
        })?;
        let Ok(part) = frame.into_data() else { continue };
        if !held.grow(part.len()) {
            return Err(ApiError::unavailable(
                "too many large requests arrive at once; try again in a moment",
            ));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

fn too_large(most: usize) -> ApiError {
    let message = format!("the request's body is larger than {most} bytes");
    ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
}

fn too_slow(limit: Duration) -> ApiError {
    let message = format!("the request's body took longer than {} s", limit.as_secs_f64());
    ApiError::refused(StatusCode::REQUEST_TIMEOUT, message)
}

/// Browsers send other types across origins without CORS preflight.
fn require_json(request: &Request<Body>) -> Result<(), ApiError> {
    let mut types = request.headers().get_all(header::CONTENT_TYPE).iter();
    let kind = types.next().and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let (essence, rest) = kind.split_once(';').unwrap_or((kind, ""));
    let charset = rest.trim().to_ascii_lowercase();
    let utf8 = matches!(charset.as_str(), "" | "charset=utf-8" | "charset=\"utf-8\"");
    if types.next().is_none() && essence.trim().eq_ignore_ascii_case("application/json") && utf8 {
        return Ok(());
    }
    let message = "the request's body must be `Content-Type: application/json`, in UTF-8";
    Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

fn parse(bytes: &[u8], limits: &Limits) -> Result<Fields, ApiError> {
    let text = std::str::from_utf8(bytes);
    let text = text.map_err(|error| ApiError::bad(format!("the request's body is no UTF-8: {error}")))?;
    if depth(text) > limits.json_depth {
        let message = format!("the request's JSON is nested deeper than {}", limits.json_depth);
        return Err(ApiError::bad(message));
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(Fields(fields)),
        Ok(_) => Err(ApiError::bad("the request's body must be a JSON object")),
        Err(error) => Err(ApiError::bad(format!("the request's body is no JSON: {error}"))),
    }
}

/// Brackets outside of strings, counted without recursion.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_text, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl Fields {
    /// `null` is absent.
    pub(crate) fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.0.remove(name).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        serde_path_to_error::deserialize(value).map(Some).map_err(|error| {
            let inner = error.path().to_string();
            let joint = if inner.starts_with('[') { "" } else { "." };
            let path = if inner == "." { name.to_owned() } else { format!("{name}{joint}{inner}") };
            let message = format!("`{path}`: {}", error.inner());
            ApiError::parameter(path, message)
        })
    }

    pub(crate) fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        let value = self.optional(name)?;
        value.ok_or_else(|| ApiError::parameter(name, format!("`{name}` is missing")))
    }

    /// Both ends included.
    pub(crate) fn number(&mut self, name: &str, range: (f64, f64)) -> Result<Option<f64>, ApiError> {
        let (low, high) = range;
        match self.optional::<f64>(name)? {
            Some(value) if !(low..=high).contains(&value) => {
                Err(ApiError::parameter(name, format!("`{name}` must be a number from {low} to {high}")))
            }
            value => Ok(value),
        }
    }

    /// Both ends included.
    pub(crate) fn whole(&mut self, name: &str, range: (u64, u64)) -> Result<Option<u64>, ApiError> {
        let (low, high) = range;
        let wrong =
            || ApiError::parameter(name, format!("`{name}` must be a whole number from {low} to {high}"));
        match self.optional::<Value>(name)? {
            None => Ok(None),
            Some(value) => {
                let value = value.as_u64().filter(|value| (low..=high).contains(value));
                value.map(Some).ok_or_else(wrong)
            }
        }
    }

    /// [`whole`](Self::whole), with `None` for -1, llama.cpp's sign for no choice.
    pub(crate) fn whole_or_off(&mut self, name: &str, range: (u64, u64)) -> Result<Option<u64>, ApiError> {
        self.leave_out(name, &json!(-1));
        self.whole(name, range)
    }

    pub(crate) fn leave_out(&mut self, name: &str, value: &Value) {
        if self.0.get(name) == Some(value) {
            self.0.remove(name);
        }
    }

    pub(crate) fn accept_neutral(&mut self, neutral: &[(&str, Value)]) -> Result<(), ApiError> {
        for (name, accepted) in neutral {
            let Some(value) = self.optional::<Value>(name)? else { continue };
            let equal = match (value.as_f64(), accepted.as_f64()) {
                (Some(value), Some(accepted)) => value.to_bits() == accepted.to_bits(),
                _ => value == *accepted,
            };
            if !equal {
                let message =
                    format!("`{name}` is not offered by this server: leave it out, or send {accepted}");
                return Err(ApiError::parameter(*name, message).code("unsupported_parameter"));
            }
        }
        Ok(())
    }

    pub(crate) fn ignore_labels(&mut self, names: &[&str]) -> Result<(), ApiError> {
        names.iter().try_for_each(|name| self.optional::<String>(name).map(drop))
    }

    pub(crate) fn finish(self) -> Result<(), ApiError> {
        self.0.keys().next().map_or(Ok(()), |name| Err(ApiError::unknown_parameter(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_outside_of_texts() {
        for (text, expected) in
            [("1", 0), ("{}", 1), (r#"{"a": [[1], [2]]}"#, 3), (r#"["[[[\"[["]"#, 1), ("]]]][", 1)]
        {
            assert_eq!(depth(text), expected, "{text}");
        }
    }

    #[test]
    fn whole_numbers_are_neither_negative_nor_huge_nor_fractions() {
        let read = |text: &str| {
            let limits = Limits::default();
            parse(format!("{{\"n\": {text}}}").as_bytes(), &limits)
                .and_then(|mut fields| fields.whole("n", (1, 4)))
        };
        assert_eq!(read("4"), Ok(Some(4)));
        assert_eq!(read("null"), Ok(None));
        for text in ["0", "5", "-1", "1.5", "1e3", "99999999999999999999", "\"1\"", "true", "[1]"] {
            let refused = read(text).unwrap_err();
            assert_eq!(refused.body()["error"]["param"], "n", "{text}");
        }
    }
}
