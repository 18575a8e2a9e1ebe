//! Models, health, metrics, tokenization.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::parameters::{Asked, read_request, unknown_model};
use super::running::encode_in_background;
use crate::engine::Model;
use crate::error::{ApiError, json_body};
use crate::limits::Limits;
use crate::state::{Ready, Server, Status};

/// `GET /health`, without a key: 200 once a model is loaded, with the bytes of memory.
pub(crate) async fn health(State(server): State<Arc<Server>>) -> Response<Body> {
    let (status, body) = match server.status() {
        Status::Ready(_) => (StatusCode::OK, json!({ "status": "ok", "memory": server.metrics.memory() })),
        Status::Loading(doing) => {
            (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "loading", "detail": doing }))
        }
        Status::Ended => (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "ended" })),
    };
    (status, json_body(&body)).into_response()
}

pub(crate) async fn models(State(server): State<Arc<Server>>) -> Result<Response<Body>, ApiError> {
    let ready = server.ready()?;
    let list = json!({ "object": "list", "data": [model_json(&ready, &server.limits)] });
    Ok(json_body(&list).into_response())
}

pub(crate) async fn model(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<Response<Body>, ApiError> {
    let ready = server.ready()?;
    if id != ready.model.id {
        return Err(unknown_model(&id, &ready.model));
    }
    Ok(json_body(&model_json(&ready, &server.limits)).into_response())
}

/// The fields after `max_model_len` are for the page.
fn model_json(Ready { model, chats, examples, .. }: &Ready, limits: &Limits) -> Value {
    let Model { id, created, context, .. } = model;
    json!({
        "id": id, "object": "model", "created": created, "owned_by": "spillway", "max_model_len": context,
        "max_completion_tokens": limits.tokens, "chat": chats, "examples": examples,
    })
}

pub(crate) async fn metrics(State(server): State<Arc<Server>>) -> Response<Body> {
    let page = server.metrics.page(server.queue.len(), server.bodies.held());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// `POST /tokenize`: tokens of `content`, as in llama.cpp's server.
pub(crate) async fn tokenize(
    State(server): State<Arc<Server>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let Asked { ready, held, mut fields, .. } = read_request(&server, request).await?;
    let content: String = fields.required("content")?;
    fields.finish()?;
    let vocabulary = Arc::clone(&ready.vocabulary);
    let tokens = encode_in_background(held, move || vocabulary.encode(&content)).await?;
    Ok(json_body(&json!({ "tokens": tokens, "count": tokens.len() })).into_response())
}

/// `POST /detokenize`: the text of `tokens`, likewise.
pub(crate) async fn detokenize(
    State(server): State<Arc<Server>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let Asked { ready, mut fields, .. } = read_request(&server, request).await?;
    let tokens: Vec<u32> = fields.required("tokens")?;
    fields.finish()?;
    if let Some(unknown) = tokens.iter().find(|token| **token as usize >= ready.model.vocabulary) {
        let message = format!("token {unknown} is not in the vocabulary of {}", ready.model.vocabulary);
        return Err(ApiError::parameter("tokens", message));
    }
    let mut decoder = ready.vocabulary.decoder();
    let text: String = tokens.iter().map(|token| decoder.push(*token)).collect();
    let content = text + &decoder.finish();
    drop(decoder);
    Ok(json_body(&json!({ "content": content })).into_response())
}
