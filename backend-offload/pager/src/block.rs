//! One block and its places.

use crate::copies::{Copies, TierSet};

/// Identifies a block; a reused index has another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// Index among the live blocks.
    pub index: u32,
    /// Generation of this index.
    pub generation: u32,
}

/// A part of the device allocator with spare slices of its own (a CubeCL stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arena(pub u32);

impl Arena {
    /// An allocator that keeps no freed memory.
    pub const UNPOOLED: Self = Self(u32::MAX);
}

/// A kind of memory that holds contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Device.
    Device,
    /// Host.
    Host,
    /// Disk.
    Disk,
}

/// The place of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Without memory: never used.
    Nowhere,
    /// On the device.
    Device {
        /// The tier with the same contents; `None` for a *dirty* block.
        clean: Option<Tier>,
    },
    /// Leaving; its device memory is valid until the move ends.
    Leaving {
        /// The tier that had the contents before. A clean block needs no copy.
        clean: Option<Tier>,
    },
    /// Its device memory is taken, without contents yet.
    Returning {
        /// The tier that holds its contents; `None` for a block never written.
        from: Option<Tier>,
    },
    /// In this tier, not on the device.
    Away(Tier),
}

impl Place {
    /// Whether an operation can use the block.
    pub fn is_on_device(self) -> bool {
        matches!(self, Self::Device { .. })
    }
}

/// A hint for evictions; never prevents an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub enum Preference {
    /// Among the first to leave, however recently used.
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
    /// Arena of its device memory.
    pub arena: Arena,
    /// The program's preferred tier.
    pub preference: Preference,
    pub(crate) copies: Copies,
    pub(crate) last_use: u64,
    /// Code outside operations may use its memory: it stays.
    pub(crate) pinned: bool,
    /// Operation of a failed move. Other blocks are tried first.
    pub(crate) stuck_in: u64,
    /// Brought ahead and unused since.
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

    /// Tiers with its memory, all with the same contents.
    pub fn held(&self) -> TierSet {
        self.copies.held()
    }

    pub(crate) fn rests_on_host(&self) -> bool {
        self.copies.rests_on_host()
    }

    pub(crate) fn is_on_disk(&self) -> bool {
        self.held().contains(Tier::Disk)
    }

    /// Whether leaving takes a copy: the device alone has the contents.
    pub fn needs_copy(&self) -> bool {
        self.copies.needs_copy()
    }

    pub(crate) fn copied_to(&self) -> Option<Tier> {
        self.needs_copy().then_some(Tier::Host)
    }
}

/// Identifies a move: a late end never counts for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);
