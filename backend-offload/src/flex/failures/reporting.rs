//! Records failures for the threads that caused them.

use super::{Failure, bookkeeping, execution_error};
use crate::error::OffloadError;
use crate::flex::state::State;
use crate::flex::storage::SharedStorage;
use crate::paging::panic_message;
use burn_backend::ExecutionError;
use pager::Fault;
use std::any::Any;
use std::sync::Arc;
use std::thread;

impl<B: SharedStorage> State<B> {
    pub(in crate::flex) fn panic_reported(
        &mut self,
        panic: Box<dyn Any + Send>,
        name: &dyn Fn() -> String,
    ) -> Failure {
        let message = panic_message(panic.as_ref());
        let error = OffloadError::RuntimePanic { operation: name(), message };
        self.report(error);
        Failure::Panicked(panic)
    }

    pub(in crate::flex) fn report(&mut self, error: OffloadError) -> Arc<OffloadError> {
        self.paging.record_failure(&error);
        Arc::new(error)
    }

    pub(in crate::flex) fn fault(&mut self, fault: Fault, operation: &str) -> Arc<OffloadError> {
        self.report(bookkeeping(fault, operation))
    }

    /// This thread's first failure since the last call.
    pub fn take_failure(&mut self) -> Result<(), ExecutionError> {
        match self.pending.remove(&thread::current().id()) {
            Some(error) => Err(execution_error(&error)),
            None => Ok(()),
        }
    }
}
