//! What the device tells: errors with the numbers behind them, and its counters.

use super::state::{Failure, State};
use super::storage::SharedStorage;
use crate::error::{Holder, OffloadError};
use crate::journal::Event;
use crate::pager::Shortage;
use crate::report;
use crate::stats::Stats;
use std::any::Any;
use std::sync::Arc;

impl<B: SharedStorage> State<B> {
    pub(super) fn told_of_panic(&mut self, panic: Box<dyn Any + Send>, name: &dyn Fn() -> String) -> Failure {
        let message = report::panic_message(panic.as_ref());
        let error = OffloadError::RuntimePanic { operation: name(), message };
        self.report(error);
        Failure::Panicked(panic)
    }

    pub(super) fn report(&mut self, error: OffloadError) -> Arc<OffloadError> {
        self.journal.record(Event::Failed { error: error.to_string() });
        Arc::new(error)
    }

    pub(super) fn shortage(&mut self, shortage: Shortage, name: &dyn Fn() -> String) -> Failure {
        let failure = Some(self.copy_failure.as_str());
        let error = report::shortage(shortage, name(), &self.pager, &self.host, failure);
        Failure::Memory(self.report(error))
    }

    pub fn largest_holders(&self, count: usize) -> Vec<Holder> {
        report::largest_holders(&self.pager, count)
    }

    pub fn stats(&self) -> Stats {
        Stats {
            launches: self.launches,
            steps: self.steps,
            allocations: self.allocations,
            stall: self.stall,
            failures: self.failures,
            ..report::stats(&self.pager, &self.host)
        }
    }
}
