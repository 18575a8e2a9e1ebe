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

use crate::block::{Block, BlockId, Place, TierIndex};
use crate::fault::{Fault, Shortage, Stop, illegal};
use crate::ledger::Posting;
use crate::limit::Limit;
use crate::operation::Garbage;
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
}

impl Rooms {
    /// Rooms of a host that is never full.
    pub const ENDLESS: Self = Self::without_disk(Limit::NONE);

    /// Rooms of a host with nothing below it.
    pub const fn without_disk(host: Limit) -> Self {
        Self { host, disk: Limit::bytes(0) }
    }

    /// The room on the host that a victim has to find for its contents: any, where others can sink for it.
    pub(crate) fn for_victims(self) -> Limit {
        if self.disk.allows(1) { Limit::NONE } else { self.host }
    }
}

impl Pager {
    /// The next step that brings a block from the disk to the host; [`Step::Ready`] for one that is not on the disk alone.
    pub fn step_to_host(&self, block: BlockId, rooms: &dyn Fn() -> Rooms) -> Result<Step, Stop> {
        if self.block(block)?.place == Place::Away(TierIndex::DISK) {
            return self.raise(block, rooms());
        }
        Ok(Step::Ready)
    }

    /// The next step towards room for `bytes` of the program's own on the host; [`Step::Ready`] once it is there. Nothing is
    /// given up for a room that cannot be made.
    pub fn step_to_host_room(&self, bytes: u64, rooms: &dyn Fn() -> Rooms) -> Result<Step, Stop> {
        let rooms = rooms();
        if !self.can_make_host_room(bytes, rooms) {
            return Err(Shortage::TierFull { wanted: bytes }.into());
        }
        Ok(self.make_host_room(bytes, rooms)?.unwrap_or(Step::Ready))
    }

    /// The step before an operand can come from the disk.
    pub(crate) fn raise(&self, block: BlockId, rooms: Rooms) -> Result<Step, Stop> {
        let bytes = self.block(block)?.bytes;
        if self.raising() == Some(block) {
            return Ok(Step::Raise { block });
        }
        match self.make_host_room(bytes, rooms) {
            // What lands may leave a copy on the host that can be given up.
            Err(Stop::Shortage(_)) if let Some(token) = self.moves.oldest() => Ok(Step::Wait(token)),
            step => Ok(step?.unwrap_or(Step::Raise { block })),
        }
    }

    /// The next step towards room for `wanted` bytes on the host; `None` once it is there.
    pub(crate) fn make_host_room(&self, wanted: u64, rooms: Rooms) -> Result<Option<Step>, Stop> {
        if rooms.host.allows(wanted) {
            return Ok(None);
        }
        // A copy that is on the device too costs at most a copy over the link, and nothing where it is on the disk as well.
        if let Some((block, tier)) = self.largest_duplicate() {
            return Ok(Some(Step::DropCopy { block, tier }));
        }
        match self.deepest(rooms.disk) {
            Some((_, true)) if self.operation.garbage == Garbage::Unsearched => Ok(Some(Step::Sweep)),
            Some((block, _)) => Ok(Some(Step::Sink { block })),
            None => match self.spare_on_disk(rooms.disk) {
                Some(block) => Ok(Some(Step::DropCopy { block, tier: TierIndex::DISK })),
                None => Err(Shortage::TierFull { wanted }.into()),
            },
        }
    }

    /// Whose place on the disk is given up when it is full, for a block that has to sink: contents that other tiers have as
    /// well come first, then those that only the device has beside it.
    fn spare_on_disk(&self, room: Limit) -> Option<BlockId> {
        let spare = |block: &Block| {
            let alone = block.place == Place::Device { clean: Some(TierIndex::DISK) };
            block.moving.is_none() && (block.below || alone)
        };
        let spares = self.live().filter(|(_, block)| spare(block));
        let bytes = spares.clone().map(|(_, block)| block.bytes).sum::<u64>();
        let room = room.get().map_or(Limit::NONE, |room| Limit::bytes(room + bytes));
        self.live().find(|(_, block)| rests_on_host(block) && room.allows(block.bytes))?;
        spares.max_by_key(|(id, block)| (block.below, block.bytes, id.index)).map(|(id, _)| id)
    }

    /// Whether all that could be given up together makes room for `bytes` of the program's own.
    fn can_make_host_room(&self, bytes: u64, rooms: Rooms) -> bool {
        let (Some(host), Some(disk)) = (rooms.host.get(), rooms.disk.get()) else { return true };
        let sum = |counts: &dyn Fn(&Block) -> bool| {
            self.live().filter(|(_, block)| counts(block)).map(|(_, block)| block.bytes).sum::<u64>()
        };
        let copies = sum(&|block| block.place == Place::Device { clean: Some(TierIndex::HOST) });
        let on_disk =
            |block: &Block| block.below || block.place == Place::Device { clean: Some(TierIndex::DISK) };
        let sinking = sum(&|block| block.place == Place::Away(TierIndex::HOST)).min(disk + sum(&on_disk));
        bytes <= host + copies + sinking
    }

    /// Who sinks, and whether that takes a write. An operand only where nobody else can: others leave the device through its
    /// place on the host, and it is raised last. Of those needed equally late, one that the disk has already: a write wears the
    /// drive, and both are read again.
    fn deepest(&self, room: Limit) -> Option<(BlockId, bool)> {
        let able = self
            .live()
            .filter(|(_, block)| rests_on_host(block) && (block.below || room.allows(block.bytes)));
        let rank = |id: BlockId, block: &Block| {
            let operand = block.last_use == self.operation.number;
            (!operand, self.depth(id, block), block.below, block.bytes, id.index)
        };
        let last = able.max_by_key(|(id, block)| rank(*id, block))?;
        Some((last.0, !last.1.below))
    }

    /// How much later than others the block is needed, as far as anybody knows.
    pub(crate) fn depth(&self, id: BlockId, block: &Block) -> u64 {
        let age = self.operation.number - block.last_use;
        match self.planner.as_ref().filter(|_| self.is_planning()).map(|planner| planner.future(id)) {
            Some(Future::Used(after)) => after,
            Some(Future::Freed(_)) => 0,
            Some(Future::Unknown) => u64::MAX / 2 + age,
            None => age,
        }
    }

    /// A tier's copy that saves a future transfer, and can be given up to make a present one possible; one that the disk
    /// has as well before all others.
    fn largest_duplicate(&self) -> Option<(BlockId, TierIndex)> {
        let duplicates = self.live().filter_map(|(id, block)| match block.place {
            Place::Device { clean: Some(TierIndex::HOST) } if block.moving.is_none() => {
                Some(((block.below, block.bytes), id))
            }
            _ => None,
        });
        duplicates.max_by_key(|(rank, _)| *rank).map(|(_, id)| (id, TierIndex::HOST))
    }

    /// At most `count` blocks that are on the disk alone and whose next use is known, the next one first.
    pub fn soon_from_disk(&self, count: usize) -> Vec<BlockId> {
        let Some(planner) = self.planner.as_ref().filter(|_| self.is_planning()) else { return Vec::new() };
        let used = |id: BlockId| match planner.future(id) {
            Future::Used(after) => Some((after, id)),
            Future::Freed(_) | Future::Unknown => None,
        };
        let on_disk = self.live().filter(|(_, block)| block.place == Place::Away(TierIndex::DISK));
        let mut soon: Vec<_> = on_disk.filter_map(|(id, _)| used(id)).collect();
        soon.sort_unstable_by_key(|(after, id)| (*after, id.index));
        soon.into_iter().take(count).map(|(_, id)| id).collect()
    }

    /// The block's contents are on the disk, and its host memory is free.
    pub fn sunk(&mut self, id: BlockId) -> Result<(), Fault> {
        let block = *self.block(id)?;
        if block.place != Place::Away(TierIndex::HOST) || block.moving.is_some() {
            return Err(illegal("sunk", id, &block));
        }
        let written = (!block.below).then_some(TierIndex::DISK);
        self.ledger
            .post(Posting::of(block.bytes, block.arena).loses(Some(TierIndex::HOST)).gains(written))?;
        self.counters.sunk += 1;
        self.counters.bytes_to_disk += if written.is_some() { block.bytes } else { 0 };
        let block = self.block_mut(id)?;
        (block.place, block.below) = (Place::Away(TierIndex::DISK), false);
        Ok(())
    }

    /// The block's contents are on the host again. The disk keeps them, too.
    pub fn raised(&mut self, id: BlockId) -> Result<(), Fault> {
        let block = *self.block(id)?;
        if block.place != Place::Away(TierIndex::DISK) {
            return Err(illegal("raised", id, &block));
        }
        self.ledger.post(Posting::of(block.bytes, block.arena).gains(Some(TierIndex::HOST)))?;
        self.counters.raised += 1;
        self.raise_ends(id);
        self.counters.bytes_from_disk += block.bytes;
        let block = self.block_mut(id)?;
        (block.place, block.below) = (Place::Away(TierIndex::HOST), true);
        Ok(())
    }

    /// Gives up what the disk has of the block, which is out of date, and what is coming from there.
    pub(crate) fn forget_below(&mut self, id: BlockId) -> Result<(), Fault> {
        self.raise_ends(id);
        let block = *self.block(id)?;
        if block.below {
            self.ledger.post(Posting::of(block.bytes, block.arena).loses(Some(TierIndex::DISK)))?;
            self.block_mut(id)?.below = false;
        }
        Ok(())
    }
}

/// Nothing uses the block in host memory, where it is alone.
pub(crate) fn rests_on_host(block: &Block) -> bool {
    block.place == Place::Away(TierIndex::HOST) && block.moving.is_none()
}
