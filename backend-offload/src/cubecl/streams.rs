//! The runtime's streams, and the order of work across them.
//!
//! A CubeCL stream id belongs to a thread; the runtime maps ids to a few streams, each with a memory pool. It orders a
//! buffer's users on other streams only after its allocation: they could read a tensor before its kernels ran.
//!
//! So each stream numbers its work, and waits on the device for a buffer's last use, which follows all earlier ones
//! (`tensors_handed_over_without_waiting_keep_their_values`).

mod order;

use cubecl_common::stream_id::StreamId;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use pager::Arena;

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
    id: Option<StreamId>,
    uses: u64,
    /// For each other stream, its pieces before this stream's next.
    comes_after: Vec<u64>,
    /// Bytes of uploads possibly held on the host.
    uploading: u64,
    /// Other streams' work on this stream's small buffers.
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

    pub(super) fn entered(&self) -> impl Iterator<Item = StreamId> + use<'_> {
        self.by_index.iter().filter_map(|stream| stream.id)
    }

    pub(super) fn begin(&mut self, stream: StreamId) -> Use {
        let index = self.index(stream);
        self.by_index[index].uses += 1;
        Use { stream, number: self.by_index[index].uses }
    }

    /// True if finished uploads should be released: the runtime does so at launches only.
    pub(super) fn queued_upload(&mut self, stream: StreamId, bytes: u64) -> bool {
        const GATHERED: u64 = 64 << 20;
        let index = self.index(stream);
        self.by_index[index].uploading += bytes;
        self.by_index[index].uploading > GATHERED
    }

    /// Streams whose uploads may hold host memory.
    pub(super) fn uploading(&self) -> impl Iterator<Item = StreamId> + use<'_> {
        self.by_index.iter().filter(|stream| stream.uploading > 0).filter_map(|stream| stream.id)
    }

    pub(super) fn flushed_uploads(&mut self, stream: StreamId) {
        let index = self.index(stream);
        self.by_index[index].uploading = 0;
    }

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

    fn unordered(&self, waiting: StreamId, earlier: Use) -> bool {
        let (waiting, other) = (self.index(waiting), self.index(earlier.stream));
        let known = self.by_index[waiting].comes_after.get(other).copied().unwrap_or(0);
        waiting != other && known < earlier.number
    }

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
