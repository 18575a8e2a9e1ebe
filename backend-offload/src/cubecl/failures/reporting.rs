//! Reports errors to the program, through spoilt buffers and their stream.

use super::{Address, launch_error, together};
use crate::cubecl::device::CubeDevice;
use crate::cubecl::inner::InnerRuntime;
use crate::cubecl::logical::number;
use crate::cubecl::server::OffloadServer;
use crate::error::OffloadError;
use crate::paging::Paging;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{Binding, ComputeServer, ServerError};
use pager::{BlockId, Fault};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl<R: InnerRuntime> OffloadServer<R> {
    pub(in crate::cubecl) fn new_failure(
        &mut self,
        error: Arc<OffloadError>,
        stream: StreamId,
    ) -> Arc<OffloadError> {
        self.device.new_failure(&mut self.paging, error, stream)
    }

    pub(in crate::cubecl) fn report_fault(&mut self, id: BlockId, fault: Fault, operation: &str) {
        self.device.report_fault(&mut self.paging, id, fault, operation);
    }
}

impl<R: InnerRuntime> CubeDevice<R> {
    fn new_failure(
        &mut self,
        paging: &mut Paging,
        error: Arc<OffloadError>,
        stream: StreamId,
    ) -> Arc<OffloadError> {
        self.failures.ours.entry(stream).or_default().push(launch_error(&error));
        paging.count_failure(&error);
        error
    }

    pub(in crate::cubecl) fn report_fault(
        &mut self,
        paging: &mut Paging,
        id: BlockId,
        fault: Fault,
        operation: &str,
    ) {
        let (operation, fault) = (operation.to_owned(), fault.to_string());
        let error = Arc::new(OffloadError::Bookkeeping { operation, fault });
        let Some(stream) = self.buffers.find_mut(id).map(|buffer| buffer.stream) else {
            return paging.count_failure(&error);
        };
        let error = self.new_failure(paging, error, stream);
        self.buffers.get_mut(id).failed = Some(error);
    }

    pub(in crate::cubecl) fn fail_small(&mut self, binding: &Binding, error: &Arc<OffloadError>) {
        if let Some(number) = number(&binding.memory) {
            let address = self.address(binding);
            self.failures.small.mark(number, address, error);
        }
    }

    pub(in crate::cubecl) fn forget_failure_before(&mut self, binding: &Binding) {
        if !self.failures.small.is_empty()
            && let Some(address) = self.address(binding)
        {
            self.failures.small.allocated(address);
        }
    }

    fn address(&mut self, binding: &Binding) -> Option<Address> {
        let whole = Binding { offset_start: None, offset_end: None, ..binding.clone() };
        let (stream, inner) = (binding.stream, &mut self.inner);
        let found = catch_unwind(AssertUnwindSafe(|| inner.get_resource(whole, stream)));
        found.ok()?.ok().map(|found| R::address(found.resource()))
    }

    pub(in crate::cubecl) fn keep_error(&mut self, stream: StreamId, error: ServerError) {
        let index = self.streams.index(stream);
        self.failures.theirs.entry(index).or_default().push(error);
    }

    pub(in crate::cubecl) fn errors_at_sync(
        &mut self,
        stream: StreamId,
        theirs: Result<(), ServerError>,
    ) -> Result<(), ServerError> {
        let mut errors = self.failures.take_ours(stream);
        errors.extend(self.failures.take_theirs(self.streams.index(stream)));
        together(errors, theirs)
    }

    /// Some runtimes return a stream's errors at reads.
    pub(in crate::cubecl) fn errors_at_read(&mut self, stream: StreamId) -> Result<(), ServerError> {
        if !R::READS_TAKE_ERRORS || self.failures.theirs.is_empty() {
            return Ok(());
        }
        together(self.failures.take_theirs(self.streams.index(stream)), Ok(()))
    }
}
