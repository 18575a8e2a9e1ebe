//! Operations that could not run, and the errors that wait for their reader.
//!
//! A launch returns nothing in CubeCL, so a failure has two ways to its user. Buffers it should have written
//! are marked, and everything computed from them: reading any of these returns the error. And the stream it
//! was launched on reports it at its next synchronisation, as CubeCL's own launch errors do. Our errors are kept
//! by the stream id that caused them, since another thread must never be handed them. The runtime keeps its own
//! by the stream it folded the id onto, and so do we.

use super::logical::number;
use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use crate::error::OffloadError;
use crate::journal::Event;
use cubecl_common::backtrace::BackTrace;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{Binding, LaunchError, ServerError};
use cubecl_runtime::memory_management::ManagedMemoryBinding;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Failures {
    /// Small buffers have no row of their own; the failed ones are remembered by the number of their handle.
    pub(super) small: HashMap<u64, Arc<OffloadError>>,
    ours: HashMap<StreamId, Vec<ServerError>>,
    /// Errors of the runtime's that one of our own operations was handed in the program's place, by the index
    /// of its stream.
    theirs: HashMap<usize, Vec<ServerError>>,
}

impl Failures {
    pub(super) fn mark_small(&mut self, memory: &ManagedMemoryBinding, error: &Arc<OffloadError>) {
        if let Some(number) = number(memory) {
            self.small.insert(number, error.clone());
        }
    }

    pub(super) fn small(&self, binding: &Binding) -> Option<Arc<OffloadError>> {
        if self.small.is_empty() {
            return None;
        }
        self.small.get(&number(&binding.memory)?).cloned()
    }

    /// The whole of the buffer was written anew.
    pub(super) fn heal_small(&mut self, binding: &Binding) {
        if !self.small.is_empty()
            && let Some(number) = number(&binding.memory)
        {
            self.small.remove(&number);
        }
    }

    fn take_ours(&mut self, stream: StreamId) -> Vec<ServerError> {
        self.ours.remove(&stream).unwrap_or_default()
    }

    fn take_theirs(&mut self, index: usize) -> Vec<ServerError> {
        self.theirs.remove(&index).unwrap_or_default()
    }
}

impl<R: InnerRuntime> OffloadServer<R> {
    /// Counts and reports an error that starts here, as opposed to one passed on from operand to output.
    pub(super) fn new_failure(&mut self, error: Arc<OffloadError>, stream: StreamId) -> Arc<OffloadError> {
        self.failures.ours.entry(stream).or_default().push(launch_error(&error));
        self.count_failure(&error);
        error
    }

    /// Counts and records an error that no stream is to be told of.
    pub(super) fn count_failure(&mut self, error: &OffloadError) {
        self.counts.failures += 1;
        self.journal.record(Event::Failed { error: error.to_string() });
    }

    /// Keeps an error of the runtime's that an operation of ours on `stream` was handed.
    pub(super) fn keep_error(&mut self, stream: StreamId, error: ServerError) {
        let index = self.streams.index(stream);
        self.failures.theirs.entry(index).or_default().push(error);
    }

    /// The errors due at the stream's synchronisation, with the one the runtime gives for it.
    pub(super) fn errors_at_sync(
        &mut self,
        stream: StreamId,
        theirs: Result<(), ServerError>,
    ) -> Result<(), ServerError> {
        let mut errors = self.failures.take_ours(stream);
        errors.extend(self.failures.take_theirs(self.streams.index(stream)));
        together(errors, theirs)
    }

    /// The errors due at a read: where the plain runtime returns a stream's errors from its next read, those
    /// that came to us in its place.
    pub(super) fn errors_at_read(&mut self, stream: StreamId) -> Result<(), ServerError> {
        if !R::READS_TAKE_ERRORS || self.failures.theirs.is_empty() {
            return Ok(());
        }
        together(self.failures.take_theirs(self.streams.index(stream)), Ok(()))
    }
}

/// One error for several, none of them dropped.
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
}
