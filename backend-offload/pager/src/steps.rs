//! Steps of an adapter. [`Step::Sweep`] comes before the first copy of an operation, so no live block is copied out
//! while a dead one holds memory (`no_live_block_is_copied_out_before_dead_ones_were_looked_for`).

use crate::block::{BlockId, Tier, Token};

/// The next task of the adapter. It reports the start of a move by [`Pager::started`](crate::Pager::started), and its
/// end by [`Pager::ended`](crate::Pager::ended).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Find blocks without owners and [`Pager::remove`](crate::Pager::remove) them, then report
    /// [`Pager::swept`](crate::Pager::swept).
    Sweep,
    /// Give the allocator's spare slices back to the driver, then report [`Pager::trimmed`](crate::Pager::trimmed).
    Trim,
    /// Move `block` off the device.
    Evict {
        /// The block to evict.
        block: BlockId,
        /// The tier to copy its contents to first; `None` if no copy is needed.
        copy: Option<Tier>,
    },
    /// Drop the tier's copy of `block`, whose contents are also in another tier.
    DropCopy {
        /// The block.
        block: BlockId,
        /// The tier.
        tier: Tier,
    },
    /// Spill `block` to disk: write its contents unless the disk has them, and free its host memory.
    Spill {
        /// The block, which is on the host and not on the device.
        block: BlockId,
    },
    /// Load `block` from disk into host memory.
    Load {
        /// An operand, which comes to the device from there.
        block: BlockId,
    },
    /// Load `block` before an operation needs it. May continue while operations run.
    LoadAhead {
        /// The block.
        block: BlockId,
    },
    /// Write `block` to disk, and keep it on the host. Reported once complete.
    WriteAhead {
        /// The block.
        block: BlockId,
    },
    /// Take device memory for `block`, or report [`Pager::device_refused`](crate::Pager::device_refused), and copy its
    /// contents in.
    Bring {
        /// An operand.
        block: BlockId,
        /// The tier that has its contents; `None` for a block never written.
        from: Option<Tier>,
    },
    /// Wait for the end of this move before anything else.
    Wait(Token),
    /// Every operand is on the device, or the room asked for is there.
    Ready,
}
