//! An adapter's steps. [`Step::Sweep`] comes first (`no_live_block_is_copied_out_before_dead_ones_were_looked_for`).

use crate::block::{BlockId, Tier, Token};

/// The adapter's next task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// [`Pager::remove`](crate::Pager::remove) blocks without owners, then report
    /// [`Pager::swept`](crate::Pager::swept).
    Sweep,
    /// Give spare slices back to the driver, then report [`Pager::trimmed`](crate::Pager::trimmed).
    Trim,
    /// Move `block` off the device.
    Evict {
        /// The block to evict.
        block: BlockId,
        /// The tier to copy to first; `None` if no copy is needed.
        copy: Option<Tier>,
    },
    /// Drop a tier's copy of `block`; another keeps the contents.
    DropCopy {
        /// The block.
        block: BlockId,
        /// The tier.
        tier: Tier,
    },
    /// Write `block` to disk unless it is there, and free its host memory.
    Spill {
        /// The block, which is on the host, off the device.
        block: BlockId,
    },
    /// Load `block` from disk to the host.
    Load {
        /// An operand, to be brought later.
        block: BlockId,
    },
    /// Load `block` before its use; operations may run meanwhile.
    LoadAhead {
        /// The block.
        block: BlockId,
    },
    /// Write `block` to disk and keep it on the host. Reported when complete.
    WriteAhead {
        /// The block.
        block: BlockId,
    },
    /// Take device memory for `block`, or report [`Pager::device_refused`](crate::Pager::device_refused), and copy the
    /// contents in.
    Bring {
        /// An operand.
        block: BlockId,
        /// The tier with its contents; `None` for a block never written.
        from: Option<Tier>,
    },
    /// Wait for the end of this move.
    Wait(Token),
    /// All operands, or the requested room, are on the device.
    Ready,
}
