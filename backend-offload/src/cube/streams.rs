//! The runtime's streams: the ones in use, and the order of work across them.
//!
//! A CubeCL stream id belongs to a thread. The runtime maps ids to a fixed number of streams, each with a memory pool.
//! Work on one stream runs in order. Across streams the runtime orders a buffer's users only by the buffer's
//! allocation. So a tensor that a thread hands over without waiting for its kernels would be read too early.
//!
//! Therefore each stream numbers the uses of a buffer. Before a stream uses the buffer, it waits on the device for the
//! previous use (`tensors_handed_over_without_waiting_keep_their_values`). That orders a use after all earlier ones, so
//! only the last use is stored.

use super::copy_streams::CopyId;
use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use super::table::Named;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{Binding, ComputeServer};
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl_runtime::memory_management::MemoryAllocationMode;
use pager::Arena;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One piece of work on a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub stream: StreamId,
    number: u64,
}

#[derive(Debug)]
pub(super) struct Streams {
    count: u64,
    by_index: Vec<Stream>,
}

#[derive(Debug, Clone, Default)]
struct Stream {
    /// Some id that maps to this stream, once one has been seen.
    id: Option<StreamId>,
    /// Number of pieces of work so far.
    uses: u64,
    /// For each other stream, the number of its pieces of work that come before this stream's next.
    comes_after: Vec<u64>,
    /// Bytes of uploads that the runtime may still hold on the host.
    uploading: u64,
    /// Work of other streams on this stream's small buffers, which have no row in the table.
    small_buffer_users: Vec<Use>,
}

impl Streams {
    pub(super) fn new() -> Self {
        let count = u64::from(CubeClRuntimeConfig::get().streaming.max_streams.max(1));
        Self { count, by_index: vec![Stream::default(); count as usize] }
    }

    pub(super) fn index(&self, stream: StreamId) -> usize {
        (stream.value % self.count) as usize
    }

    pub(super) fn arena(&self, stream: StreamId) -> Arena {
        Arena(self.index(stream) as u32)
    }

    fn has_begun(&self, stream: StreamId) -> bool {
        self.by_index[self.index(stream)].id.is_some()
    }

    /// One id for each stream in use.
    pub(super) fn entered(&self) -> impl Iterator<Item = StreamId> + use<'_> {
        self.by_index.iter().filter_map(|stream| stream.id)
    }

    /// Numbers the next piece of work.
    pub(super) fn begin(&mut self, stream: StreamId) -> Use {
        let index = self.index(stream);
        self.by_index[index].uses += 1;
        Use { stream, number: self.by_index[index].uses }
    }

    /// Records an upload. True if the runtime should release finished uploads: by itself it does so only on a stream
    /// that launches.
    pub(super) fn queued_upload(&mut self, stream: StreamId, bytes: u64) -> bool {
        const GATHERED: u64 = 64 << 20;
        let index = self.index(stream);
        self.by_index[index].uploading += bytes;
        self.by_index[index].uploading > GATHERED
    }

    pub(super) fn flushed_uploads(&mut self, stream: StreamId) {
        let index = self.index(stream);
        self.by_index[index].uploading = 0;
    }

    /// The number of a use on its owner's stream; `None` for a use by another stream.
    pub(super) fn number_of_own(&self, owner: StreamId, last: Use) -> Option<u64> {
        (self.index(last.stream) == self.index(owner)).then_some(last.number)
    }

    fn next_visit(&mut self, owner: StreamId, coming: StreamId) -> Option<Use> {
        let (owner, coming) = (self.index(owner), self.index(coming));
        let next = self.by_index[owner]
            .small_buffer_users
            .iter()
            .position(|visit| self.index(visit.stream) != coming)?;
        Some(self.by_index[owner].small_buffer_users.swap_remove(next))
    }

    /// Whether the work of `waiting` could run before `earlier`.
    fn unordered(&self, waiting: StreamId, earlier: Use) -> bool {
        let (waiting, other) = (self.index(waiting), self.index(earlier.stream));
        let known = self.by_index[waiting].comes_after.get(other).copied().unwrap_or(0);
        waiting != other && known < earlier.number
    }

    /// Records that all work queued on `other` comes before the next work of `waiting`.
    fn ordered(&mut self, waiting: StreamId, other: StreamId) {
        let (waiting, other) = (self.index(waiting), self.index(other));
        let uses = self.by_index[other].uses;
        let known = &mut self.by_index[waiting].comes_after;
        if known.len() <= other {
            known.resize(other + 1, 0);
        }
        known[other] = uses;
    }
}

impl<R: InnerRuntime> OffloadServer<R> {
    /// On a stream's first use, makes its pool allocate exact sizes. The default pool shares pages among many buffers,
    /// and a page with one live buffer never returns to the driver.
    pub(super) fn enter(&mut self, stream: StreamId) {
        if self.streams.has_begun(stream) {
            return;
        }
        let index = self.streams.index(stream);
        self.copies.watch(&mut self.inner, index, &mut |inner| {
            inner.allocation_mode(MemoryAllocationMode::Persistent, stream);
        });
        self.streams.by_index[index].id = Some(stream);
        if self.settings.overlap && self.copies.serves(index) {
            self.pager.look_ahead(true);
        }
    }

    /// Orders the next work of `waiting` after `earlier`, without blocking the host.
    pub(super) fn order_after(&mut self, waiting: StreamId, earlier: Use) {
        if !self.streams.unordered(waiting, earlier) {
            return;
        }
        let other = earlier.stream;
        let inner = &mut self.inner;
        let waits = catch_unwind(AssertUnwindSafe(|| R::order(inner, waiting, other)));
        match waits {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.keep_error(other, error),
            // Without an event, the host waits instead of the stream.
            Err(_) => self.wait_for_stream(other),
        }
        self.streams.ordered(waiting, other);
    }

    /// Orders work on `stream` after the last use of each managed operand, and records it as the last use.
    pub(super) fn order_operands(&mut self, operands: &[pager::BlockId], stream: StreamId) {
        let index = self.streams.index(stream);
        self.copies.mark(index, self.streams.by_index[index].uses);
        let current = self.streams.begin(stream);
        for &id in operands {
            let buffer = self.table.get_mut(id);
            let copy = buffer.copy.take();
            if let Some(last) = buffer.last_use.replace(current) {
                self.order_after(stream, last);
            }
            self.order_after_copy(stream, copy);
        }
    }

    /// Orders the next work of `stream` after a parallel copy.
    pub(super) fn order_after_copy(&mut self, stream: StreamId, copy: Option<CopyId>) {
        let index = self.streams.index(stream);
        let Some(copy) = copy.filter(|_| !self.injector.forgets_copies()) else { return };
        if let Err(reason) = self.copies.order(index, copy) {
            tracing::warn!(target: crate::journal::TARGET, "{reason}; waiting for it");
            self.copies.wait_for_all();
        }
    }

    /// Orders work on a small buffer, for which only the owner is known. The work comes after the owner's work and
    /// after all users of the owner's small buffers; the owner's next work comes after it.
    pub(super) fn order_small(&mut self, named: Named, binding: &Binding, stream: StreamId) {
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

    /// Makes `owner` wait for all users of its small buffers except `coming`. The wait counts as a piece of work, so
    /// waiting for the owner later includes these users.
    pub(super) fn wait_for_small_buffer_users(&mut self, owner: StreamId, coming: StreamId) {
        while let Some(visit) = self.streams.next_visit(owner, coming) {
            self.order_after(owner, visit);
            self.streams.begin(owner);
        }
    }
}
