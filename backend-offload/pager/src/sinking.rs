//! The disk below the host: which blocks sink to it when the host is full, and which are raised from it.
//!
//! Blocks pass the host in both directions, so that a door moves bytes between device and host alone. What sinks is needed
//! last; what the program lets go of before its next use sinks only when nothing else can, since it would be written for
//! nothing. A block that was raised keeps its place on the disk until it is written, and sinks again for free.
//!
//! Whatever fits into the three tiers together has a place, but for one passage: a block from the disk passes the host,
//! so that as many bytes must be free there or on the disk. Before anything is refused, a full disk gives up what other tiers
//! have as well, and an operand on the host sinks for those who leave the device for it. That ends: whoever leaves stays away
//! until the operation is ready, and nobody is raised before there is device memory for it.

use crate::block::{Block, BlockId, Place, Tier};
use crate::fault::Stop;
use crate::limit::Limit;
use crate::planner::Future;
use crate::residency::Pager;
use crate::steps::Step;

/// Bytes that the tiers below the device can still take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rooms {
    /// In host memory.
    pub host: Limit,
    /// On the disk.
    pub disk: Limit,
    /// The disk takes blocks in multiples of so many bytes.
    pub page: u64,
}

impl Rooms {
    /// Rooms of a host that is never full.
    pub const ENDLESS: Self = Self::without_disk(Limit::NONE);

    /// Rooms of a host with nothing below it.
    pub const fn without_disk(host: Limit) -> Self {
        Self { host, disk: Limit::bytes(0), page: 1 }
    }

    /// Bytes of the disk that a block of `bytes` takes.
    pub(crate) fn on_disk(self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.page).unwrap_or(u64::MAX)
    }

    /// The room on the host that a victim has to find for its contents: any, where others can sink for it.
    pub(crate) fn for_victims(self) -> Limit {
        if self.disk.allows(1) { Limit::NONE } else { self.host }
    }
}

impl Pager {
    /// The next steps that bring a block from the disk to the host; none for one that is not on the disk alone.
    pub fn steps_to_host(&self, block: BlockId, rooms: Rooms) -> Result<Vec<Step>, Stop> {
        if self.blocks.block(block)?.place() == Place::Away(Tier::Disk) {
            return self.raise(block, rooms).map(|step| vec![step]);
        }
        Ok(Vec::new())
    }

    /// The step before an operand can come from the disk.
    pub(crate) fn raise(&self, block: BlockId, rooms: Rooms) -> Result<Step, Stop> {
        let bytes = self.blocks.block(block)?.bytes;
        if self.loading().is_some_and(|(_, loading)| loading == block) {
            return Ok(Step::Load { block });
        }
        match self.make_host_room(bytes, rooms) {
            // What lands may leave a copy on the host that can be given up.
            Err(Stop::Shortage(_)) if let Some(token) = self.blocks.oldest() => Ok(Step::Wait(token)),
            step => Ok(step?.unwrap_or(Step::Load { block })),
        }
    }

    /// At most `count` blocks that are on the disk alone and whose next use is known, the next one first.
    pub fn soon_from_disk(&self, count: usize) -> Vec<BlockId> {
        let Some(planner) = self.planner.as_ref().filter(|_| self.is_planning()) else { return Vec::new() };
        let used = |id: BlockId| match planner.future(id) {
            Future::Used(after) => Some((after, id)),
            Future::Freed(_) | Future::Unknown => None,
        };
        let on_disk = self.blocks.live().filter(|(_, block)| block.place() == Place::Away(Tier::Disk));
        let mut soon: Vec<_> = on_disk.filter_map(|(id, _)| used(id)).collect();
        soon.sort_unstable_by_key(|(after, id)| (*after, id.index));
        soon.into_iter().take(count).map(|(_, id)| id).collect()
    }
}

/// Nothing uses the block in host memory, where it is alone.
pub(crate) fn rests_on_host(block: &Block) -> bool {
    block.copies.rests_on_host()
}
