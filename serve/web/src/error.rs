//! Error responses in OpenAI's format.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::queue::Full;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    /// Seconds until another try may succeed.
    retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into(), retry_after: None }
    }

    /// Repeating the request fails again.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::refused(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn refused(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    pub(crate) fn parameter(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(name.into()), ..Self::bad(message) }
    }

    pub(crate) fn unknown_parameter(name: &str) -> Self {
        let name: String = name.chars().take(64).collect();
        let message = format!("`{name}` is no parameter of this request, or none that this server knows");
        Self::parameter(name, message).code("unknown_parameter")
    }

    pub(crate) fn no_key() -> Self {
        let message = "this server asks for its API key: `Authorization: Bearer KEY`";
        Self::refused(StatusCode::UNAUTHORIZED, message).code("invalid_api_key")
    }

    pub(crate) fn queue_full(Full { waiting, wait }: Full) -> Self {
        let message = format!("{waiting} answers are waiting already; try again in {wait} s");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { retry_after: Some(wait), ..error.code("rate_limit_exceeded") }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { retry_after: Some(1), ..error.code("unavailable") }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message).code("internal_error")
    }

    pub(crate) fn engine_failed() -> Self {
        Self::internal(
            "the model failed while it was answering; the server keeps running, and its log has the reason",
        )
    }

    pub(crate) fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    pub(crate) fn status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn body(&self) -> Value {
        let Self { kind, code, param, message, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = (self.status, json_body(&self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

pub(crate) fn json_body(value: &Value) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string())
}
