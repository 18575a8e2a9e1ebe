//! Results of moves.

use crate::block::{BlockId, Tier};
use crate::blocks::Ended;
use crate::copies::Fate;

/// The result of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The block has left: free its device memory.
    Left {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
        /// The tier copied to, if any.
        copied: Option<Tier>,
    },
    /// An operation kept the block, and its device memory stays. Keep the new copy if `current`; else drop it.
    Rescued {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
        /// The tier copied to.
        copied: Option<Tier>,
        /// Nothing was written since.
        current: bool,
    },
    /// The block is on the device.
    Returned {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
        /// The tier that keeps its contents; `None` for a block never written.
        from: Option<Tier>,
    },
    /// The block could not leave and keeps its device memory. Drop a partial copy.
    Stayed {
        /// The block.
        block: BlockId,
    },
    /// The block could not return: free the device memory taken for it.
    NotReturned {
        /// The block.
        block: BlockId,
    },
    /// The block is on the host, and the disk keeps its copy.
    Loaded {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
    },
    /// The block is on the disk alone.
    Spilled {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
        /// The disk had no copy before.
        written: bool,
    },
    /// The disk has a copy, and the block stays on the host.
    WrittenAhead {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
    },
    /// A copy of the block was dropped.
    Dropped {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
    },
    /// A move between host and disk failed without effect.
    Unmoved {
        /// The block.
        block: BlockId,
    },
    /// The block was removed during the move: drop its device memory and copies.
    Removed {
        /// The block, no longer valid.
        block: BlockId,
    },
}

impl Outcome {
    pub(crate) fn of(ended: &Ended, succeeded: bool, is_on_device: bool) -> Self {
        let Ended { id: block, bytes, to, frees, copy, fate } = *ended;
        let Some(fate) = fate else { return Self::Removed { block } };
        match (to, frees) {
            (_, Some(Tier::Device)) if !succeeded => Self::Stayed { block },
            (copied, Some(Tier::Device)) if fate == Fate::Awaited => Self::Left { block, bytes, copied },
            (copied, Some(Tier::Device)) => {
                Self::Rescued { block, bytes, copied, current: fate == Fate::Kept }
            }
            (Some(Tier::Device), _) if !succeeded => Self::NotReturned { block },
            (Some(Tier::Device), _) => Self::Returned { block, bytes, from: copy },
            _ if !succeeded => Self::Unmoved { block },
            (Some(Tier::Host), _) => Self::Loaded { block, bytes },
            (Some(_), None) => Self::WrittenAhead { block, bytes },
            (written, Some(Tier::Host)) if !is_on_device => {
                Self::Spilled { block, bytes, written: written.is_some() }
            }
            _ => Self::Dropped { block, bytes },
        }
    }
}
