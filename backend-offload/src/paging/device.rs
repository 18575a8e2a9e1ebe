//! The interface to an adapter, which moves one block at a time.

use super::Paging;
use crate::error::OffloadError;
use pager::{BlockId, Outcome, Token};

#[derive(Debug, Clone, Copy)]
pub enum Transfer {
    /// `copies` is false for contents that are elsewhere or unwritten.
    Evict { block: BlockId, copies: bool },
    /// From the host.
    Bring { block: BlockId },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Landed,
    /// [`Device::poll`] or [`Device::wait`] reports the end.
    #[cfg_attr(
        not(any(test, feature = "cube", feature = "adapter")),
        expect(dead_code, reason = "only CUDA copies in parallel with its work")
    )]
    UnderWay,
}

#[derive(Debug)]
pub enum MoveFailure {
    /// The copy failed, or the runtime panicked.
    Copy(String),
    /// The contents no longer exist.
    Lost(OffloadError),
}

impl From<String> for MoveFailure {
    fn from(reason: String) -> Self {
        Self::Copy(reason)
    }
}

impl From<OffloadError> for MoveFailure {
    fn from(error: OffloadError) -> Self {
        Self::Lost(error)
    }
}

pub trait Device {
    /// False if the driver refuses; a panic counts as a refusal.
    fn allocate(&mut self, block: BlockId) -> bool;

    /// An evicted block's device memory stays valid until [`finish`](Self::finish).
    fn start(
        &mut self,
        paging: &mut Paging,
        token: Token,
        transfer: Transfer,
    ) -> Result<Progress, MoveFailure>;

    /// After a move: keeps its copy and releases unused device memory.
    fn finish(&mut self, paging: &mut Paging, token: Token, outcome: Outcome);

    /// `None` if transfers complete at once.
    fn poll(&mut self) -> Option<(Token, Result<(), MoveFailure>)> {
        None
    }

    fn wait(&mut self, _token: Token) -> Result<(), MoveFailure> {
        Err("the adapter has no move to wait for".to_owned().into())
    }

    /// Removes a block that the program has dropped, here and from `paging`. The default suits adapters that are
    /// notified.
    fn forget_if_dead(&mut self, _paging: &mut Paging, _block: BlockId) -> bool {
        false
    }

    fn sweep(&mut self, _paging: &mut Paging) {}

    fn trim(&mut self);

    /// Releases host memory of finished uploads, without waiting.
    fn release_ended(&mut self) {}

    /// Waits for the oldest upload and releases its host memory. False if none is under way.
    fn reclaim_upload(&mut self) -> bool {
        false
    }

    /// Waits for all copies and releases host memory of uploads.
    fn reclaim_host(&mut self) {}

    /// Whether transfers may start ahead.
    fn may_prefetch(&self) -> bool {
        false
    }
}
