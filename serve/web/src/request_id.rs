//! A request's id, in its answer's head and in the log: the client's, or a random one
//! (`a_clients_request_id_returns_and_one_unfit_for_a_log_is_replaced`).

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Characters of a client's id.
const LONGEST: usize = 64;

/// ASCII letters, digits, `-`, `_` and `.`.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    pub(crate) fn new(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(REQUEST_ID).iter();
        let single = given.next().filter(|_| given.next().is_none());
        match single.and_then(|id| id.to_str().ok()).filter(|id| is_fit(id)) {
            Some(id) => Self(id.into()),
            None => Self(format!("{:016x}", RandomState::new().hash_one(0_u8)).into()),
        }
    }

    pub(crate) fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).expect("visible ASCII")
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_fit(id: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=LONGEST).contains(&id.len()) && id.bytes().all(fits)
}
