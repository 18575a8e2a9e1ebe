//! One block and the places it can be in.

/// Names a block. Never reused for another block while either lives: the generation tells them apart.
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

/// Where a block's bytes are. Only [`Pager`](crate::Pager) changes it.
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

    /// Whether the block is on its way to the device.
    pub fn is_returning(self) -> bool {
        matches!(self, Self::Returning { .. })
    }

    /// Whether the contents exist on the device and in a tier.
    pub fn is_clean(self) -> bool {
        matches!(self, Self::Device { clean: Some(_) })
    }
}

/// Where the program would like a block to be. A hint: it decides who leaves first, never whether an operation runs.
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
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Block {
    /// Bytes the device allocator takes for it, alignment included.
    pub bytes: u64,
    /// The part of the allocator its device memory comes from.
    pub arena: Arena,
    /// Where it is.
    pub place: Place,
    /// Something was written: its contents must survive an eviction.
    pub defined: bool,
    /// Number of the operation in which it was last an operand.
    pub last_use: u64,
    /// The disk holds the same contents, too, beside the tier that its place names.
    pub below: bool,
    /// Code outside any operation may use its memory at any time, so it stays on the device.
    pub pinned: bool,
    /// Where the program would like it to be.
    pub preference: Preference,
    /// Number of the operation in which an attempt to move it away failed; it is not tried again before all
    /// others.
    pub(crate) stuck_in: u64,
    /// It came back ahead of its use and has not been used since.
    pub(crate) ahead: bool,
    /// A move that has not landed; at most one, which may outlive the block's being `Leaving`.
    pub(crate) moving: Option<Token>,
}

impl Block {
    /// Its contents exist nowhere but on the device, so that leaving takes a copy.
    pub fn needs_copy(&self) -> bool {
        self.defined && self.place == Place::Device { clean: None }
    }

    /// The disk has its contents, and its host memory is given up.
    pub(crate) fn sinks(&mut self) {
        (self.place, self.below) = (Place::Away(Tier::Disk), false);
    }

    /// A tier's copy of its contents, which are elsewhere, too, is thrown away.
    pub(crate) fn loses_copy(&mut self, tier: Tier) {
        if tier != Tier::Disk || !self.below {
            self.place = Place::Device { clean: self.below.then_some(Tier::Disk) };
        }
        self.below = false;
    }

    /// The tier that its contents are copied to when it leaves, if they have to be.
    pub(crate) fn copied_to(&self) -> Option<Tier> {
        self.needs_copy().then_some(Tier::Host)
    }
}

/// Names one move of one block, so that a move that lands late is never taken for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);
