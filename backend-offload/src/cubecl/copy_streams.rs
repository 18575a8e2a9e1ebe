//! A runtime's streams for copies in parallel with work.

use cubecl_core::server::Handle;
use std::fmt::Debug;

/// `start`, `row` and `pitch` in bytes.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub start: usize,
    pub row: usize,
    pub pitch: usize,
    pub count: usize,
}

impl Rows {
    pub(super) fn whole(bytes: usize) -> Self {
        Self { start: 0, row: bytes, pitch: bytes, count: 1 }
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let Self { start, row, pitch, count } = *self;
        (0..count).map(move |n| start + n * pitch..start + n * pitch + row)
    }

    pub(super) fn bytes(&self) -> usize {
        self.row * self.count
    }
}

#[doc(hidden)]
pub trait CopyStreams<S>: Debug + Default + Send {
    type End: Debug + Send + Sync + 'static;

    /// Runs `begin`, in which the server creates stream `index`, and records the stream.
    fn watch(&mut self, server: &mut S, index: usize, begin: &mut dyn FnMut(&mut S));

    fn serves(&self, index: usize) -> bool;

    /// Copies `rows` of `device` to `host`, without gaps, `after` a point in the work of stream `index`, or after all
    /// its queued work.
    ///
    /// # Safety
    /// Both memories stay until the end.
    unsafe fn start_out(
        &mut self,
        server: &mut S,
        device: Handle,
        after: (usize, Option<&Self::End>),
        rows: Rows,
        host: &mut [u8],
    ) -> Result<Self::End, String>;

    /// Copies `host` to as many bytes at `address`, `after` that point.
    ///
    /// # Safety
    /// As for [`start_out`](Self::start_out).
    unsafe fn start_back(
        &mut self,
        address: u64,
        index: usize,
        host: &[u8],
        after: Option<&Self::End>,
    ) -> Result<Self::End, String>;

    fn address(server: &mut S, device: Handle) -> Result<u64, String>;

    fn mark(&mut self, index: usize) -> Option<Self::End>;

    fn order(&mut self, index: usize, copy: &Self::End) -> Result<(), String>;

    fn has_ended(copy: &Self::End) -> Result<bool, String>;

    /// Any thread may call it.
    fn wait(copy: &Self::End) -> Result<(), String>;
}
