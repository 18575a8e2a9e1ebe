//! Log lines of the code under test, with their levels.

use std::fmt;
use std::sync::{Arc, Mutex};
use tracing::span;

#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(crate) fn recorded(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = format!("{}: ", event.metadata().level());
        event.record(&mut |_: &tracing::field::Field, value: &dyn fmt::Debug| {
            _ = fmt::Write::write_fmt(&mut line, format_args!("{value:?}"));
        });
        self.0.lock().expect("no panic").push(line);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
