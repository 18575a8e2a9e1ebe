//! The outcome of a move, for the adapter to follow.

use crate::block::{BlockId, Tier};
use crate::blocks::Ended;
use crate::copies::Fate;

/// How a move ended, for the adapter to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The block is off the device: its device memory is to be given up. `copied` names the tier that has
    /// taken its contents; without one, nothing was copied.
    Left {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
        /// The tier the move copied to.
        copied: Option<Tier>,
    },
    /// An operation took the block back before it had left: its device memory stays its own. The copy just
    /// made is to be kept if it is `current`, and thrown away otherwise.
    Rescued {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
        /// The tier the move copied to.
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
        /// The tier its contents came from, which keeps them; `None` for a block never written.
        from: Option<Tier>,
    },
    /// It could not leave: its device memory stays its own, a copy begun is to be thrown away.
    Stayed {
        /// The block.
        block: BlockId,
    },
    /// It could not return: the device memory taken for it is to be given up.
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
    /// The disk has a copy of the block, which stays on the host.
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
    /// A move between host and disk failed: the block is where it was.
    Unmoved {
        /// The block.
        block: BlockId,
    },
    /// The program dropped it while it moved: device memory and copies are to be thrown away.
    Removed {
        /// The block, whose id no longer names anything.
        block: BlockId,
    },
}

impl Outcome {
    /// The outcome of a move after which its block `is_on_device` or is not.
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
