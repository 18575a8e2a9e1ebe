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
use cubecl_core::server::{Binding, ComputeServer, LaunchError, ServerError};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Failures {
    pub(super) small: SmallFailures,
    ours: HashMap<StreamId, Vec<ServerError>>,
    /// Errors of the runtime's that one of our own operations was handed in the program's place, by the index
    /// of its stream.
    theirs: HashMap<usize, Vec<ServerError>>,
}

/// Where a buffer lies on its device. No two that are alive have the same address.
pub(super) type Address = (u64, u64);

/// Small buffers without contents. They have no row of their own, and nobody tells when one is dropped: its memory is
/// given to another.
#[derive(Debug, Default, Clone)]
pub(super) struct SmallFailures {
    /// Errors by the number of the buffer's handle.
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

    /// Without an address the failure is remembered for good.
    fn mark(&mut self, number: u64, address: Option<Address>, error: &Arc<OffloadError>) {
        self.errors.insert(number, error.clone());
        let before = address.and_then(|address| self.numbers.insert(address, number));
        if let Some(before) = before.filter(|before| *before != number) {
            self.errors.remove(&before);
        }
    }

    /// The memory there belongs to a buffer that was just allocated.
    fn taken(&mut self, address: Address) {
        if let Some(number) = self.numbers.remove(&address) {
            self.errors.remove(&number);
        }
    }

    /// The whole of the buffer was written anew.
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

impl<R: InnerRuntime> OffloadServer<R> {
    pub(super) fn fail_small(&mut self, binding: &Binding, error: &Arc<OffloadError>) {
        if let Some(number) = number(&binding.memory) {
            let address = self.address(binding);
            self.failures.small.mark(number, address, error);
        }
    }

    /// A small buffer was allocated: whoever had its memory before is gone.
    pub(super) fn forget_failure_before(&mut self, binding: &Binding) {
        if !self.failures.small.is_empty()
            && let Some(address) = self.address(binding)
        {
            self.failures.small.taken(address);
        }
    }

    fn address(&mut self, binding: &Binding) -> Option<Address> {
        let whole = Binding { offset_start: None, offset_end: None, ..binding.clone() };
        let (stream, inner) = (binding.stream, &mut self.inner);
        let found = catch_unwind(AssertUnwindSafe(|| inner.get_resource(whole, stream)));
        found.ok()?.ok().map(|found| R::address(found.resource()))
    }

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

    #[test]
    fn a_failed_small_buffer_is_forgotten_once_another_has_its_memory() {
        let error = Arc::new(OffloadError::UnknownBuffer { operation: "testing".to_owned() });
        let mut failures = SmallFailures::default();
        failures.mark(1, Some((10, 0)), &error);
        failures.mark(2, Some((10, 256)), &error);
        failures.taken((20, 0));
        assert_eq!(failures.errors.len(), 2, "that memory was nobody's");
        failures.taken((10, 0));
        assert!(failures.errors.keys().eq([&2]), "its neighbour is still there");
        failures.mark(3, Some((10, 256)), &error);
        assert!(failures.errors.keys().eq([&3]), "the next one failed in its place");
        failures.mark(3, Some((10, 256)), &error);
        assert!(failures.errors.keys().eq([&3]), "and again");
    }
}
