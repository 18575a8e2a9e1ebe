//! A runtime's streams for copies in parallel with work.

use crate::tiers::StagingSource;
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

    pub(super) fn has_gaps(&self) -> bool {
        self.count > 1 && self.pitch != self.row
    }

    /// Of at most `most` bytes, or one row with gaps.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn pieces(self, most: usize) -> impl Iterator<Item = Self> {
        let has_gaps = self.has_gaps();
        let (row, pitch, count) =
            if has_gaps { (self.row, self.pitch, self.count) } else { (1, 1, self.bytes()) };
        let each = (most / row).max(1);
        (0..count).step_by(each).map(move |first| {
            let (start, rows) = (self.start + first * pitch, each.min(count - first));
            if has_gaps {
                Self { start, row, pitch, count: rows }
            } else {
                Self { start, ..Self::whole(rows) }
            }
        })
    }
}

#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    Locked,
    Ordinary,
}

impl Pages {
    pub(super) fn are(locked: bool) -> Self {
        if locked { Self::Locked } else { Self::Ordinary }
    }
}

#[doc(hidden)]
pub trait CopyStreams<S>: Debug + Send {
    type End: Debug + Send + Sync + 'static;

    fn new(staging: StagingSource) -> Self;

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
        pages: Pages,
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
        pages: Pages,
        after: Option<&Self::End>,
    ) -> Result<Self::End, String>;

    fn address(server: &mut S, device: Handle) -> Result<u64, String>;

    fn mark(&mut self, index: usize) -> Option<Self::End>;

    fn order(&mut self, index: usize, copy: &Self::End) -> Result<(), String>;

    fn has_ended(copy: &Self::End) -> Result<bool, String>;

    /// Any thread may call it.
    fn wait(copy: &Self::End) -> Result<(), String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_rows_once_and_in_order_within_their_size() {
        for (rows, most, count) in [
            (Rows::whole(1000), 300, 4),
            (Rows { start: 8, row: 10, pitch: 16, count: 7 }, 30, 3),
            (Rows { start: 8, row: 10, pitch: 10, count: 7 }, 30, 3),
            (Rows { start: 0, row: 100, pitch: 128, count: 2 }, 30, 2),
        ] {
            let bytes = |rows: Rows| rows.ranges().flatten().collect::<Vec<_>>();
            let pieces: Vec<_> = rows.pieces(most).collect();
            assert_eq!(pieces.len(), count, "{rows:?}");
            assert!(pieces.iter().all(|piece| piece.bytes() <= most.max(rows.row)), "{pieces:?}");
            assert_eq!(pieces.into_iter().flat_map(bytes).collect::<Vec<_>>(), bytes(rows));
        }
    }
}
