//! Failures: operations without outputs.

mod reporting;

use crate::error::OffloadError;
use burn_backend::ExecutionError;
use pager::Fault;
use std::any::Any;
use std::sync::Arc;

pub(super) enum Failure {
    /// Memory or an input is missing. Reads of outputs return the error.
    Memory(Arc<OffloadError>),
    /// Unsupported operation. Reported at once.
    Refused(OffloadError),
    /// The backend's own panic, resumed on the caller's thread.
    Panicked(Box<dyn Any + Send>),
}

pub(super) fn bookkeeping(fault: Fault, operation: &str) -> OffloadError {
    OffloadError::Bookkeeping { operation: operation.to_owned(), fault: fault.to_string() }
}

pub(super) fn execution_error(error: &OffloadError) -> ExecutionError {
    ExecutionError::WithContext { reason: error.to_string() }
}
