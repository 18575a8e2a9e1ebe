//! One block and the places it can be in.

/// Names a block. Never reused for another block while either lives: the generation tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId {
    pub index: u32,
    pub generation: u32,
}

/// A part of the device allocator that keeps its own spare slices (on CubeCL: one per stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Arena(pub u32);

impl Arena {
    /// An allocator that keeps nothing: what is freed is gone at once.
    #[cfg_attr(
        all(feature = "cube", not(feature = "router")),
        expect(dead_code, reason = "CubeCL's allocators pool")
    )]
    pub const UNPOOLED: Self = Self(u32::MAX);
}

/// Where a block's bytes are. Only [`Pager`](super::Pager) changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Allocated by the user and not touched since: no bytes anywhere.
    Nowhere,
    /// On the device; *clean* when the host holds the same contents.
    Device { clean: bool },
    /// On the device, being copied out.
    Leaving,
    /// On the host only.
    Host,
}

#[derive(Debug)]
pub(super) struct Block {
    /// What the device allocator takes for it, alignment included.
    pub bytes: u64,
    pub arena: Arena,
    pub place: Place,
    /// Something was written: its contents must survive an eviction.
    pub defined: bool,
    /// Operation in which it was last an operand.
    pub last_use: u64,
    /// Somebody outside any operation may use its memory at any time.
    pub pinned: bool,
    /// The last attempt to move it away failed in this operation; not asked again before the next.
    pub stuck_in: u64,
}

impl Block {
    pub fn on_device(&self) -> bool {
        matches!(self.place, Place::Device { .. } | Place::Leaving)
    }

    pub fn on_host(&self) -> bool {
        matches!(self.place, Place::Host | Place::Device { clean: true })
    }

    /// Its contents exist nowhere but on the device.
    pub fn needs_copy(&self) -> bool {
        self.defined && self.place == Place::Device { clean: false }
    }
}
