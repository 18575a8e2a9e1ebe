//! One block and the places it can be in.

use crate::copies::{Copies, TierSet};

/// Names a block. A later block with the same index has another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// Number among the blocks alive; given out again after the block is removed.
    pub index: u32,
    /// Counts the blocks that have had this index.
    pub generation: u32,
}

/// A part of the device allocator that keeps its own spare slices (on CubeCL: one per stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arena(pub u32);

impl Arena {
    /// An allocator that keeps nothing: freed memory is gone at once.
    pub const UNPOOLED: Self = Self(u32::MAX);
}

/// A kind of memory that holds contents of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Device memory.
    Device,
    /// Host memory.
    Host,
    /// The disk below host memory.
    Disk,
}

/// Where a block is, as its copies and their transfer say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Allocated by the program and not touched since: no bytes anywhere.
    Nowhere,
    /// On the device.
    Device {
        /// The tier that holds the same contents; without one the block is *dirty*.
        clean: Option<Tier>,
    },
    /// On the device, about to leave; its device memory is valid until the move lands.
    Leaving {
        /// The tier that held the same contents before the move started. A clean block needs no copy.
        clean: Option<Tier>,
    },
    /// Its device memory is taken, its contents are not there yet.
    Returning {
        /// The tier that holds its contents; `None` for a block never written.
        from: Option<Tier>,
    },
    /// In a tier only.
    Away(Tier),
}

impl Place {
    /// Whether an operation can use the block.
    pub fn is_on_device(self) -> bool {
        matches!(self, Self::Device { .. })
    }
}

/// Where the program prefers a block. A hint: it decides which block leaves first, never whether an operation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub enum Preference {
    /// Among the first to leave the device when room is needed, however lately it was used.
    Host,
    /// As the policy decides.
    #[default]
    Policy,
    /// Leaves only when no other block can.
    Device,
}

/// A block as the pager knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Bytes the device allocator takes for it, alignment included.
    pub bytes: u64,
    /// The part of the allocator its device memory comes from.
    pub arena: Arena,
    /// Where the program prefers the block.
    pub preference: Preference,
    /// The tiers that hold the block.
    pub(crate) copies: Copies,
    /// Number of the operation that used the block last.
    pub(crate) last_use: u64,
    /// Code outside any operation may use the block's memory at any time, so the block stays on the device.
    pub(crate) pinned: bool,
    /// Number of the operation in which a move of the block failed. The block is tried again after all others.
    pub(crate) stuck_in: u64,
    /// The block came back ahead of its use, and has not been used since.
    pub(crate) ahead: bool,
}

impl Block {
    pub(crate) fn new(bytes: u64, arena: Arena, now: u64) -> Self {
        Self {
            bytes,
            arena,
            preference: Preference::default(),
            copies: Copies::default(),
            last_use: now,
            pinned: false,
            stuck_in: 0,
            ahead: false,
        }
    }

    /// Where the block is.
    pub fn place(&self) -> Place {
        self.copies.place()
    }

    /// Whether an operation can use the block.
    pub fn is_on_device(&self) -> bool {
        self.copies.is_on_device()
    }

    /// Tiers whose memory holds the block. All have the same contents.
    pub fn held(&self) -> TierSet {
        self.copies.held()
    }

    /// Whether the block is on the host, not on the device, and in no move.
    pub(crate) fn rests_on_host(&self) -> bool {
        self.copies.rests_on_host()
    }

    /// Whether the disk holds the contents.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.held().contains(Tier::Disk)
    }

    /// Whether the contents exist nowhere but on the device, so that leaving takes a copy.
    pub fn needs_copy(&self) -> bool {
        self.copies.needs_copy()
    }

    /// The tier that the contents are copied to when the block leaves the device, if a copy is needed.
    pub(crate) fn copied_to(&self) -> Option<Tier> {
        self.needs_copy().then_some(Tier::Host)
    }
}

/// Names one move of one block, so that a move that lands late is never taken for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);
