//! The inference thread's side of a server.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::{Counters, Engine, Model, Vocabulary};
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::scheduler::Scheduler;
use crate::state::{Ready, Status};

/// The inference thread's side of a server. Until [`Desk::answer`] the server reports that it is loading; once this is
/// dropped it answers nothing any more.
pub struct Desk {
    pub(crate) status: watch::Sender<Status>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Desk {
    /// Tells the page what is being done before there is a model.
    pub fn doing(&self, what: &str) {
        self.status.send_replace(Status::Loading(what.to_owned()));
    }

    /// Whether the server was asked to end, so that what takes long can be given up.
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
        let ready = Arc::new(Ready { model, vocabulary, counters });
        self.status.send_replace(Status::Ready(Arc::clone(&ready)));
        Scheduler::new(engine, &*ready.vocabulary, &self.queue, &self.metrics).run();
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.status.send_replace(Status::Ended);
        // Whoever waits hears that nothing will come.
        self.queue.close();
        self.queue.clear();
    }
}
