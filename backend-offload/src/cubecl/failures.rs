//! Failed operations, and errors not yet reported.
//!
//! A CubeCL launch returns nothing. So a failed launch's outputs, and all computed from them, are marked: a read
//! returns the error (`a_launch_that_the_runtime_refuses_leaves_no_readable_output`). The launching stream also reports
//! it at its next synchronisation.
//!
//! Our errors are kept by stream id, for their thread alone
//! (`an_error_reaches_the_thread_that_caused_it_and_no_other`); the runtime's by stream index.

mod reporting;

use super::logical::number;
use crate::error::OffloadError;
use cubecl_common::backtrace::BackTrace;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{Binding, LaunchError, ServerError};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Failures {
    pub(super) small: SmallFailures,
    ours: HashMap<StreamId, Vec<ServerError>>,
    theirs: HashMap<usize, Vec<ServerError>>,
}

/// A buffer's position, unique among the device's live buffers.
pub(super) type Address = (u64, u64);

/// CubeCL hides drops of small buffers: an error ends when another buffer takes the memory.
#[derive(Debug, Default, Clone)]
pub(super) struct SmallFailures {
    errors: HashMap<u64, Arc<OffloadError>>,
    numbers: HashMap<Address, u64>,
}

impl SmallFailures {
    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    pub(super) fn of(&self, binding: &Binding) -> Option<Arc<OffloadError>> {
        if self.is_empty() {
            return None;
        }
        self.errors.get(&number(&binding.memory)?).cloned()
    }

    /// Without an address, only [`heal`](Self::heal) removes the error.
    fn mark(&mut self, number: u64, address: Option<Address>, error: &Arc<OffloadError>) {
        self.errors.insert(number, error.clone());
        let before = address.and_then(|address| self.numbers.insert(address, number));
        if let Some(before) = before.filter(|before| *before != number) {
            self.errors.remove(&before);
        }
    }

    fn allocated(&mut self, address: Address) {
        if let Some(number) = self.numbers.remove(&address) {
            self.errors.remove(&number);
        }
    }

    pub(super) fn heal(&mut self, binding: &Binding) {
        if !self.is_empty()
            && let Some(number) = number(&binding.memory)
        {
            self.errors.remove(&number);
        }
    }
}

impl Failures {
    fn take_ours(&mut self, stream: StreamId) -> Vec<ServerError> {
        self.ours.remove(&stream).unwrap_or_default()
    }

    fn take_theirs(&mut self, index: usize) -> Vec<ServerError> {
        self.theirs.remove(&index).unwrap_or_default()
    }
}

pub(super) fn together(
    mut errors: Vec<ServerError>,
    last: Result<(), ServerError>,
) -> Result<(), ServerError> {
    match (errors.is_empty(), last) {
        (true, last) => last,
        (false, last) => {
            errors.extend(last.err());
            Err(ServerError::ServerUnhealthy { errors, backtrace: BackTrace::default() })
        }
    }
}

pub(super) fn read_error(error: &OffloadError) -> ServerError {
    ServerError::Generic { reason: error.to_string(), backtrace: BackTrace::default() }
}

fn launch_error(error: &OffloadError) -> ServerError {
    ServerError::Launch(LaunchError::OutOfMemory {
        reason: error.to_string(),
        backtrace: BackTrace::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(reason: &str) -> ServerError {
        ServerError::Generic { reason: reason.to_owned(), backtrace: BackTrace::default() }
    }

    #[test]
    fn two_errors_at_once_are_both_reported() {
        let both = together(vec![error("ours")], Err(error("theirs"))).expect_err("two errors");
        let text = format!("{both:?}");
        assert!(text.contains("ours") && text.contains("theirs"), "{text}");
        assert!(together(Vec::new(), Ok(())).is_ok());
    }

    #[test]
    fn a_failed_small_buffer_is_forgotten_once_another_has_its_memory() {
        let error = Arc::new(OffloadError::UnknownBuffer { operation: "testing".to_owned() });
        let mut failures = SmallFailures::default();
        failures.mark(1, Some((10, 0)), &error);
        failures.mark(2, Some((10, 256)), &error);
        failures.allocated((20, 0));
        assert_eq!(failures.errors.len(), 2, "no failed buffer had that memory");
        failures.allocated((10, 0));
        assert!(failures.errors.keys().eq([&2]), "its neighbour is still there");
        failures.mark(3, Some((10, 256)), &error);
        assert!(failures.errors.keys().eq([&3]), "the next one failed in its place");
        failures.mark(3, Some((10, 256)), &error);
        assert!(failures.errors.keys().eq([&3]), "and again");
    }
}
