//! The inference thread's side of a server.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::{Counters, Engine, Model, Vocabulary};
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::scheduler::Scheduler;
use crate::state::{Ready, Status};

/// The inference thread's handle to its server.
///
/// The server reports that it is loading until [`InferenceWorker::answer`]. Dropping the worker ends all waiting
/// requests with an error.
pub struct InferenceWorker {
    pub(crate) status: watch::Sender<Status>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) metrics: Arc<Metrics>,
}

impl InferenceWorker {
    /// Publishes the current step of loading, which `/health` and the page show.
    pub fn report_progress(&self, what: &str) {
        self.status.send_replace(Status::Loading(what.to_owned()));
    }

    /// Whether the server is stopping, so that long work can be abandoned.
    pub fn is_closing(&self) -> bool {
        self.queue.is_closed()
    }

    /// Answers requests on this thread until the server ends.
    pub fn answer(
        self,
        model: Model,
        vocabulary: Arc<dyn Vocabulary>,
        counters: Counters,
        engine: &mut dyn Engine,
    ) {
        let ready = Arc::new(Ready { model, vocabulary });
        self.status.send_replace(Status::Ready(Arc::clone(&ready)));
        Scheduler::new(engine, &*ready.vocabulary, &self.queue, &self.metrics, counters).run();
    }
}

impl Drop for InferenceWorker {
    fn drop(&mut self) {
        self.status.send_replace(Status::Ended);
        self.queue.close();
        self.queue.clear();
    }
}
