//! One block and the places it can be in.

use crate::copies::{Copies, TierSet};

/// Identifies a block. A later block with the same index has another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// Index among the live blocks; reused after the block is removed.
    pub index: u32,
    /// Counts the blocks that have had this index.
    pub generation: u32,
}

/// A part of the device allocator with its own spare slices (on CubeCL, one per stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arena(pub u32);

impl Arena {
    /// An allocator that keeps no freed memory.
    pub const UNPOOLED: Self = Self(u32::MAX);
}

/// A kind of memory that holds contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Device memory.
    Device,
    /// Host memory.
    Host,
    /// The disk below host memory.
    Disk,
}

/// The place of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: never used, so without memory.
    Nowhere,
    /// On the device.
    Device {
        /// The tier with the same contents; without one the block is *dirty*.
        clean: Option<Tier>,
    },
    /// On its way off the device; its device memory stays valid until the move ends.
    Leaving {
        /// The tier that had the same contents before the move. A clean block needs no copy.
        clean: Option<Tier>,
    },
    /// Its device memory is taken, but its contents are not there yet.
    Returning {
        /// The tier that holds its contents; `None` for a block never written.
        from: Option<Tier>,
    },
    /// In this tier, and not on the device.
    Away(Tier),
}

impl Place {
    /// Whether an operation can use the block.
    pub fn is_on_device(self) -> bool {
        matches!(self, Self::Device { .. })
    }
}

/// The tier that a program prefers for a block. A hint for evictions, which never prevents an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub enum Preference {
    /// Leaves the device among the first, however recently it was used.
    Host,
    /// As the policy decides.
    #[default]
    Policy,
    /// Leaves only if no other block can.
    Device,
}

/// The pager's record of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Bytes in the device allocator, alignment included.
    pub bytes: u64,
    /// The arena of its device memory.
    pub arena: Arena,
    /// The tier that the program prefers.
    pub preference: Preference,
    pub(crate) copies: Copies,
    /// The operation that used the block last.
    pub(crate) last_use: u64,
    /// Kept on the device, because code outside operations may use its memory at any time.
    pub(crate) pinned: bool,
    /// The operation in which a move of the block failed. It is tried again after all others.
    pub(crate) stuck_in: u64,
    /// Brought before its use, and not used since.
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

    /// Tiers with memory for the block. All have the same contents.
    pub fn held(&self) -> TierSet {
        self.copies.held()
    }

    /// Whether the block is on the host, not on the device, and not moving.
    pub(crate) fn rests_on_host(&self) -> bool {
        self.copies.rests_on_host()
    }

    pub(crate) fn is_on_disk(&self) -> bool {
        self.held().contains(Tier::Disk)
    }

    /// Whether the device alone has the contents, so that leaving takes a copy.
    pub fn needs_copy(&self) -> bool {
        self.copies.needs_copy()
    }

    /// The tier to which the contents are copied when the block leaves, if a copy is needed.
    pub(crate) fn copied_to(&self) -> Option<Tier> {
        self.needs_copy().then_some(Tier::Host)
    }
}

/// Identifies one move of one block, so that a late end is never taken for another move's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);
