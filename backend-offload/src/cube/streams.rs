//! The runtime's own streams: which have been used, and whose work comes before whose.
//!
//! A CubeCL stream id is a thread's; the runtime folds ids onto a fixed number of streams, each with a memory
//! pool. Work on one stream happens in order; work on two does not, and the runtime orders a buffer's users
//! only by when the buffer was allocated. A thread that hands a tensor over without waiting for its kernels
//! would be read too early. So every use of a buffer is numbered by its stream, and a stream that is about to
//! use it is made to wait, on the device, for the use before
//! (`tensors_handed_over_without_waiting_keep_their_values`). A use is thereby ordered after all uses before
//! it, and the last one is all that has to be remembered.

use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use super::side::CopyId;
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
    /// One id that leads to this stream, once any has been seen.
    id: Option<StreamId>,
    /// Pieces of work so far.
    uses: u64,
    /// For each other stream, how many of its pieces of work come before this stream's next.
    comes_after: Vec<u64>,
    /// Bytes of uploads the runtime may still hold on the host.
    uploading: u64,
    /// Work of other streams on small buffers of this one, which have no row of their own to remember it.
    visitors: Vec<Use>,
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

    /// An id for every stream that has been used.
    pub(super) fn entered(&self) -> impl Iterator<Item = StreamId> + use<'_> {
        self.by_index.iter().filter_map(|stream| stream.id)
    }

    /// Numbers a piece of work that is about to be queued.
    pub(super) fn begin(&mut self, stream: StreamId) -> Use {
        let index = self.index(stream);
        self.by_index[index].uses += 1;
        Use { stream, number: self.by_index[index].uses }
    }

    /// Notes an upload. True if so many bytes have gathered that the runtime should let go of those that are done: it
    /// does so by itself only on a stream that launches.
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

    /// The number of a use among its owner's pieces of work; none for a use by another stream.
    pub(super) fn number_of_own(&self, owner: StreamId, last: Use) -> Option<u64> {
        (self.index(last.stream) == self.index(owner)).then_some(last.number)
    }

    fn next_visit(&mut self, owner: StreamId, coming: StreamId) -> Option<Use> {
        let (owner, coming) = (self.index(owner), self.index(coming));
        let next =
            self.by_index[owner].visitors.iter().position(|visit| self.index(visit.stream) != coming)?;
        Some(self.by_index[owner].visitors.swap_remove(next))
    }

    /// Whether `waiting` may overtake `earlier` as things stand.
    fn unordered(&self, waiting: StreamId, earlier: Use) -> bool {
        let (waiting, other) = (self.index(waiting), self.index(earlier.stream));
        let known = self.by_index[waiting].comes_after.get(other).copied().unwrap_or(0);
        waiting != other && known < earlier.number
    }

    /// Notes that all work given to `other` so far comes before the next work of `waiting`.
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
    /// On the first call for a stream, makes its pool allocate exact sizes. Its default is pages shared by
    /// many buffers, and a page with one live buffer never goes back to the driver.
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

    /// Makes what `waiting` does next come after `earlier`, without keeping the host waiting.
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
            // Without an event the host has to wait in the stream's place.
            Err(_) => self.wait_for_stream(other),
        }
        self.streams.ordered(waiting, other);
    }

    /// Orders work on `stream` after the last use of each managed operand, and makes it the last use.
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

    /// Makes what `stream` does next come after a copy beside it.
    pub(super) fn order_after_copy(&mut self, stream: StreamId, copy: Option<CopyId>) {
        let index = self.streams.index(stream);
        let Some(copy) = copy.filter(|_| !self.injector.forgets_copies()) else { return };
        if let Err(reason) = self.copies.order(index, copy) {
            tracing::warn!(target: crate::journal::TARGET, "{reason}; waiting for it");
            self.copies.wait_for_all();
        }
    }

    /// The same for a small buffer, of which only the owner is known: work on `stream` comes after the owner's and
    /// that of all who used the owner's small buffers, and the owner's next after this.
    pub(super) fn order_small(&mut self, named: Named, binding: &Binding, stream: StreamId) {
        if named != Named::Small || self.streams.index(binding.stream) == self.streams.index(stream) {
            return;
        }
        let owner = self.streams.index(binding.stream);
        self.receive_visitors(binding.stream, stream);
        let latest = Use { stream: binding.stream, number: self.streams.by_index[owner].uses };
        self.order_after(stream, latest);
        let own = self.streams.index(stream);
        let visit = Use { stream, number: self.streams.by_index[own].uses };
        let visitors = &mut self.streams.by_index[owner].visitors;
        visitors.retain(|other| other.stream != stream);
        visitors.push(visit);
    }

    /// Makes `owner` wait for those that used its small buffers, except for `coming`, which is about to. Waiting is a
    /// piece of work of its own: whoever waits for the owner from now on thereby waits for them, too.
    pub(super) fn receive_visitors(&mut self, owner: StreamId, coming: StreamId) {
        while let Some(visit) = self.streams.next_visit(owner, coming) {
            self.order_after(owner, visit);
            self.streams.begin(owner);
        }
    }
}
