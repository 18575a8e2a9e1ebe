//! The order of work and copies across streams.

use super::Use;
use crate::cubecl::copies::CopyId;
use crate::cubecl::device::CubeDevice;
use crate::cubecl::inner::InnerRuntime;
use crate::cubecl::server::OffloadServer;
use crate::cubecl::table::Named;
use crate::error::OffloadError;
use crate::journal::TARGET;
use crate::paging::panic_message;
use cubecl_common::future::block_on;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{Binding, ComputeServer};
use cubecl_runtime::memory_management::MemoryAllocationMode;
use pager::BlockId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const RETURN: &str = "bringing a block back";

impl<R: InnerRuntime> OffloadServer<R> {
    /// Precedes every call that may create a stream in the runtime.
    pub(in crate::cubecl) fn enter(&mut self, stream: StreamId) {
        if self.device.enter(stream) {
            self.paging.look_ahead();
        }
    }
}

impl<R: InnerRuntime> CubeDevice<R> {
    /// At a stream's first use, makes its pool allocate exact sizes: a shared page returns only with its last buffer.
    /// True if its copies can run in parallel.
    fn enter(&mut self, stream: StreamId) -> bool {
        if self.streams.has_begun(stream) {
            return false;
        }
        let index = self.streams.index(stream);
        self.copies.watch(&mut self.inner, index, &mut |inner| {
            inner.allocation_mode(MemoryAllocationMode::Persistent, stream);
        });
        self.streams.by_index[index].id = Some(stream);
        self.settings.overlap && self.copies.serves(index)
    }

    /// `None` if its buffers are copied in line, as in autotune's samples.
    pub(in crate::cubecl) fn copies_in_parallel(&self, stream: StreamId) -> Option<usize> {
        let index = self.streams.index(stream);
        (self.settings.overlap && self.copies.serves(index) && !self.profile.is_sampling()).then_some(index)
    }

    pub(in crate::cubecl) fn wait_for_stream(&mut self, stream: StreamId) {
        let inner = &mut self.inner;
        match catch_unwind(AssertUnwindSafe(|| block_on(inner.sync(stream)))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.keep_error(stream, error),
            Err(panic) => {
                let message = panic_message(panic.as_ref());
                tracing::warn!(target: TARGET, "waiting for a stream panicked: {message}");
            }
        }
    }

    pub(in crate::cubecl) fn order_after(&mut self, waiting: StreamId, earlier: Use) {
        if !self.streams.unordered(waiting, earlier) {
            return;
        }
        let other = earlier.stream;
        let inner = &mut self.inner;
        let waits = catch_unwind(AssertUnwindSafe(|| R::order(inner, waiting, other)));
        match waits {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.keep_error(other, error),
            Err(_) => self.wait_for_stream(other),
        }
        self.streams.ordered(waiting, other);
    }

    /// Orders work on `stream` after each operand's last use, which it becomes.
    pub(in crate::cubecl) fn order_operands(
        &mut self,
        operands: &[BlockId],
        stream: StreamId,
    ) -> Result<(), OffloadError> {
        let mut ordered = Ok(());
        let index = self.streams.index(stream);
        self.copies.mark(index, self.streams.by_index[index].uses);
        let current = self.streams.begin(stream);
        for &id in operands {
            let buffer = self.buffers.get_mut(id);
            let copy = buffer.copy.take();
            if let Some(last) = buffer.last_use.replace(current) {
                self.order_after(stream, last);
            }
            if let Err(message) = self.order_after_copy(stream, copy) {
                let error = OffloadError::LaunchFailed { operation: RETURN.to_owned(), message };
                self.buffers.get_mut(id).failed = Some(Arc::new(error.clone()));
                ordered = Err(error);
            }
        }
        ordered
    }

    /// An error if the bytes did not reach the device.
    pub(in crate::cubecl) fn order_after_copy(
        &mut self,
        stream: StreamId,
        copy: Option<CopyId>,
    ) -> Result<(), String> {
        let index = self.streams.index(stream);
        let Some(copy) = copy.filter(|_| !self.injector.forgets_copies()) else { return Ok(()) };
        let Err(reason) = self.copies.order(index, copy) else { return Ok(()) };
        tracing::warn!(target: TARGET, "{reason}; waiting for it");
        self.copies.wait_for_all();
        self.copies.wait_for_upload(copy)
    }

    /// The work follows the owner's, and all users of its small buffers; the owner's next work follows it.
    pub(in crate::cubecl) fn order_small(&mut self, named: Named, binding: &Binding, stream: StreamId) {
        if named != Named::Small || self.streams.index(binding.stream) == self.streams.index(stream) {
            return;
        }
        let owner = self.streams.index(binding.stream);
        self.wait_for_small_buffer_users(binding.stream, stream);
        let latest = Use { stream: binding.stream, number: self.streams.by_index[owner].uses };
        self.order_after(stream, latest);
        let own = self.streams.index(stream);
        let visit = Use { stream, number: self.streams.by_index[own].uses };
        let small_buffer_users = &mut self.streams.by_index[owner].small_buffer_users;
        small_buffer_users.retain(|other| other.stream != stream);
        small_buffer_users.push(visit);
    }

    /// Counts as the owner's work: later waits include these users.
    pub(in crate::cubecl) fn wait_for_small_buffer_users(&mut self, owner: StreamId, coming: StreamId) {
        while let Some(visit) = self.streams.next_visit(owner, coming) {
            self.order_after(owner, visit);
            self.streams.begin(owner);
        }
    }
}
