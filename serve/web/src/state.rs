//! State shared by all requests.

use std::sync::Arc;

use tokio::sync::watch;

use crate::access::Access;
use crate::body_budget::BodyBudget;
use crate::engine::{Model, Vocabulary};
use crate::error::ApiError;
use crate::grammar::Grammars;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::queue::Queue;

pub(crate) struct Server {
    pub(crate) limits: Limits,
    pub(crate) access: Access,
    pub(crate) queue: Arc<Queue>,
    pub(crate) bodies: BodyBudget,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) status: watch::Receiver<Status>,
}

#[derive(Clone)]
pub(crate) enum Status {
    Loading(String),
    Ready(Arc<Ready>),
    Ended,
}

pub(crate) struct Ready {
    pub(crate) model: Model,
    pub(crate) vocabulary: Arc<dyn Vocabulary>,
    /// Whether its template renders a question; other models continue texts.
    pub(crate) chats: bool,
    pub(crate) examples: Vec<String>,
    pub(crate) grammars: Grammars,
}

impl Server {
    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    pub(crate) fn ready(&self) -> Result<Arc<Ready>, ApiError> {
        match self.status() {
            Status::Ready(ready) => Ok(ready),
            Status::Loading(doing) => Err(ApiError::unavailable(format!("the model is not ready: {doing}"))),
            Status::Ended => Err(ApiError::unavailable("the server is shutting down")),
        }
    }
}
