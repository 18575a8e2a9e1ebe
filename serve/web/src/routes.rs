//! The routes, inside a middleware that alone checks names and key (`every_route_but_health_checks_the_key_first`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post};
use axum::{Router, extract::DefaultBodyLimit};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, CorsLayer};

use crate::client::Connection;
use crate::error::ApiError;
use crate::request_id::{REQUEST_ID, RequestId};
use crate::state::Server;
use crate::{api, page};

type Route = (Method, &'static str, MethodRouter<Arc<Server>>);

/// Needs no key, for monitors that cannot use the model.
pub(crate) const KEYLESS: &str = "/health";

pub(crate) fn routes() -> Vec<Route> {
    vec![
        (Method::GET, "/", get(page::page)),
        (Method::GET, KEYLESS, get(api::health)),
        (Method::GET, "/metrics", get(api::metrics)),
        (Method::POST, "/tokenize", post(api::tokenize)),
        (Method::POST, "/detokenize", post(api::detokenize)),
        (Method::GET, "/models", get(api::models)),
        (Method::GET, "/v1/models", get(api::models)),
        (Method::GET, "/v1/models/{id}", get(api::model)),
        (Method::POST, "/v1/chat/completions", post(api::chat)),
        (Method::POST, "/v1/completions", post(api::completions)),
        (Method::POST, "/v1/responses", post(api::responses)),
    ]
}

pub(crate) fn router(server: &Arc<Server>) -> Router {
    let router =
        routes().into_iter().fold(Router::new(), |router, (_, path, route)| router.route(path, route));
    let not_found = || async {
        ApiError::refused(StatusCode::NOT_FOUND, "there is nothing at this path").code("not_found")
    };
    let not_allowed = || async {
        ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "this path answers to another method")
            .code("method")
    };
    let router = router.fallback(not_found).method_not_allowed_fallback(not_allowed);
    let router = router
        .layer(DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(|_payload| {
            ApiError::internal("the server failed on this request").into_response()
        }))
        .layer(from_fn_with_state(Arc::clone(server), guard))
        .with_state(Arc::clone(server));
    if server.access.origins.is_empty() { router } else { router.layer(cors(server)) }
}

/// Outside the guard: a browser's preflight has no key.
fn cors(server: &Server) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(server.access.origins.clone())
        .allow_methods([Method::GET, Method::POST])
        // OpenAI's JavaScript package sends `x-stainless-*`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::RETRY_AFTER, REQUEST_ID])
        .max_age(Duration::from_mins(10))
}

/// Checks host and key; adds headers, metrics and a log line without clients' text.
async fn guard(State(server): State<Arc<Server>>, mut request: Request<Body>, next: Next) -> Response<Body> {
    let started = Instant::now();
    let id = RequestId::new(request.headers());
    request.extensions_mut().insert(id.clone());
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = path.as_deref().unwrap_or("unknown");
    let method = request.method().clone();
    let mut response = match check_access(&server, &request, route) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            let mut response = error.into_response();
            if response.status() == StatusCode::UNAUTHORIZED {
                let challenge = HeaderValue::from_static(challenge(request.headers()));
                response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            }
            response
        }
    };

    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }

    let (status, time) = (response.status(), started.elapsed());
    server.metrics.request(route, status, time);
    let method = if is_known_method(&method) { method.as_str() } else { "other" };
    let line = format!("{id} {method} {route} {} {:.1} ms", status.as_u16(), time.as_secs_f64() * 1e3);
    // Frequent: monitors and open pages.
    if route == KEYLESS || route == "/metrics" {
        tracing::debug!("{line}");
    } else {
        tracing::info!("{line}");
    }

    response.headers_mut().insert(REQUEST_ID, id.header());
    response
}

fn is_known_method(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::POST | Method::HEAD | Method::OPTIONS)
}

fn check_access(server: &Server, request: &Request<Body>, route: &str) -> Result<(), ApiError> {
    let local = request.extensions().get::<Connection>().expect("every request has a connection").local;
    if !server.access.is_for_this_server(request.headers(), request.uri().authority(), local) {
        let message = "the request's `Host` is no name of this server; `--allow-host NAME` makes it one";
        return Err(ApiError::refused(StatusCode::FORBIDDEN, message).code("host_not_allowed"));
    }
    if route != KEYLESS && !server.access.is_granted(request.headers()) {
        return Err(ApiError::no_key());
    }
    Ok(())
}

/// Only browsers shall ask for a password.
fn challenge(headers: &HeaderMap) -> &'static str {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/html") {
        "Basic realm=\"Spillway; the API key is the password\""
    } else {
        "Bearer"
    }
}

const HEADERS: [(HeaderName, &str); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

#[cfg(test)]
mod tests {
    use tokio::sync::watch;
    use tower::ServiceExt;

    use super::*;
    use crate::access::{Access, ApiKey};
    use crate::body_budget::BodyBudget;
    use crate::client::Client;
    use crate::limits::Limits;
    use crate::queue::Queue;
    use crate::state::Status;

    #[tokio::test]
    async fn every_route_but_health_checks_the_key_first() {
        let (_sender, status) = watch::channel(Status::Loading(String::new()));
        let key = Some(ApiKey::new("0123456789abcdef").unwrap());
        let server = Arc::new(Server {
            limits: Limits::default(),
            access: Access { key, ..Access::default() },
            queue: Arc::new(Queue::new(1)),
            bodies: BodyBudget::new(1),
            metrics: Arc::default(),
            status,
        });
        let (router, local) = (router(&server), "127.0.0.1".parse().unwrap());

        for (method, path, _) in routes() {
            let ask = |key: &str| {
                let request = Request::builder().method(&method).uri(path).header("host", "localhost");
                let mut request = request.header("authorization", key).body(Body::empty()).unwrap();
                request.extensions_mut().insert(Connection { local, client: Client::new(local, 1) });
                router.clone().oneshot(request)
            };
            let without = ask("Bearer none").await.unwrap().status();
            assert_eq!(without == StatusCode::UNAUTHORIZED, path != KEYLESS, "{method} {path}: {without}");
            let with = ask("Bearer 0123456789abcdef").await.unwrap().status();
            assert!(
                with != StatusCode::UNAUTHORIZED && with != StatusCode::NOT_FOUND,
                "{method} {path}: {with}"
            );
        }
    }
}
