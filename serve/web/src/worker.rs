//! The inference thread's handle to its server.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::{Counters, Engine, Message, Model, Role, Vocabulary};
use crate::grammar::Grammars;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::scheduler::Scheduler;
use crate::state::{Ready, Status};

/// The inference thread's handle. The server is loading until [`InferenceWorker::answer`]; a drop fails all waiting
/// requests.
pub struct InferenceWorker {
    pub(crate) status: watch::Sender<Status>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) examples: Vec<String>,
}

impl InferenceWorker {
    /// Shows the step of loading in `/health` and on the page.
    pub fn report_progress(&self, what: &str) {
        self.status.send_replace(Status::Loading(what.to_owned()));
    }

    /// Questions that this model can answer, for the page to offer.
    pub fn offer_examples(&mut self, questions: Vec<String>) {
        self.examples = questions;
    }

    /// Whether the server is stopping.
    pub fn is_closing(&self) -> bool {
        self.queue.is_closed()
    }

    /// Answers requests on this thread until the server ends.
    pub fn answer(
        mut self,
        model: Model,
        vocabulary: Arc<dyn Vocabulary>,
        counters: Counters,
        engine: &mut dyn Engine,
    ) {
        let question = Message { role: Role::User, content: "?".to_owned() };
        let chats = vocabulary.encode_chat(&[question]).is_ok();
        let examples = std::mem::take(&mut self.examples);
        let ready = Arc::new(Ready { model, vocabulary, chats, examples, grammars: Grammars::default() });
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
