//! Failures: operations without outputs, and the way their errors reach the program.

use super::state::State;
use super::storage::SharedStorage;
use crate::error::OffloadError;
use crate::paging::panic_message;
use burn_backend::ExecutionError;
use pager::Fault;
use std::any::Any;
use std::sync::Arc;
use std::thread;

pub(super) enum Failure {
    /// Memory or an input is missing. Reading an output returns the error.
    Memory(Arc<OffloadError>),
    /// The adapter does not support the operation. Reported at once.
    Refused(OffloadError),
    /// The backend panicked, as it would without this crate. Resumed on the caller's thread.
    Panicked(Box<dyn Any + Send>),
}

impl<B: SharedStorage> State<B> {
    pub(super) fn panic_reported(
        &mut self,
        panic: Box<dyn Any + Send>,
        name: &dyn Fn() -> String,
    ) -> Failure {
        let message = panic_message(panic.as_ref());
        let error = OffloadError::RuntimePanic { operation: name(), message };
        self.report(error);
        Failure::Panicked(panic)
    }

    pub(super) fn report(&mut self, error: OffloadError) -> Arc<OffloadError> {
        self.paging.record_failure(&error);
        Arc::new(error)
    }

    /// Reports inconsistent books.
    pub(super) fn fault(&mut self, fault: Fault, operation: &str) -> Arc<OffloadError> {
        self.report(bookkeeping(fault, operation))
    }

    /// The first failure of this thread since the last call.
    pub fn take_failure(&mut self) -> Result<(), ExecutionError> {
        match self.pending.remove(&thread::current().id()) {
            Some(error) => Err(execution_error(&error)),
            None => Ok(()),
        }
    }
}

pub(super) fn bookkeeping(fault: Fault, operation: &str) -> OffloadError {
    OffloadError::Bookkeeping { operation: operation.to_owned(), fault: fault.to_string() }
}

pub(super) fn execution_error(error: &OffloadError) -> ExecutionError {
    ExecutionError::WithContext { reason: error.to_string() }
}
