//! Steps: the tasks of an adapter.
//!
//! [`Step::Sweep`] comes before the first copy of an operation. So no live block is copied out while a dead one holds
//! memory (`no_live_block_is_copied_out_before_dead_ones_were_looked_for`).

use crate::block::{BlockId, Tier, Token};

/// The adapter's next task. The start of a move is reported by [`Pager::started`](crate::Pager::started), its end by
/// [`Pager::ended`](crate::Pager::ended).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Find blocks whose owners are gone and [`Pager::remove`](crate::Pager::remove) them, then report
    /// [`Pager::swept`](crate::Pager::swept).
    Sweep,
    /// Give the allocator's spare slices back to the driver, then report [`Pager::trimmed`](crate::Pager::trimmed).
    Trim,
    /// Take `block` off the device.
    Evict {
        /// The victim.
        block: BlockId,
        /// The tier its contents are copied to first; `None` if no copy is needed.
        copy: Option<Tier>,
    },
    /// Throw away the tier's copy of `block`, whose contents are in another tier, too.
    DropCopy {
        /// The block.
        block: BlockId,
        /// The tier.
        tier: Tier,
    },
    /// Spill `block` to disk: write its contents there unless the disk has them, and give up its host memory.
    Spill {
        /// The block, which is on the host and not on the device.
        block: BlockId,
    },
    /// Load the contents of `block` from disk into host memory.
    Load {
        /// An operand, which comes to the device from there.
        block: BlockId,
    },
    /// The same, before an operation needs the block. It may continue while operations run.
    LoadAhead {
        /// The block.
        block: BlockId,
    },
    /// Write the contents of `block`, which stays on the host, to disk. Reported once it is complete.
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
    /// Wait for the end of this move: nothing else can be done before.
    Wait(Token),
    /// Every operand is on the device, or the room asked for is there.
    Ready,
}
