//! Room on the host: the copies and blocks that make way one after another, until enough bytes are free.
//!
//! One function makes each choice, among blocks as they are or as they will be after the choices before. An operation takes one step at
//! a time. For memory of the program's own all steps are chosen before the first is taken, so that nothing is given up for a room that they
//! do not make. Sums of bytes cannot tell: a block stays on the host if what is left of the disk is smaller than it, the disk takes whole
//! pages, and a copy under way cannot be given up before it lands.

use crate::block::{Block, BlockId, Place, Tier};
use crate::fault::{Shortage, Stop};
use crate::limit::Limit;
use crate::operation::Garbage;
use crate::planner::Future;
use crate::residency::Pager;
use crate::sinking::{Rooms, rests_on_host};
use crate::steps::Step;

/// The tiers below the device as they will be after steps that are not taken yet.
struct Foreseen {
    blocks: Vec<(BlockId, Block)>,
    rooms: Rooms,
}

impl Pager {
    /// All steps that make room for `bytes` of the program's own on the host, in their order; none once it is there. While moves are under way,
    /// the wait for the oldest is the only step. The caller has [swept](Self::swept) dead blocks.
    ///
    /// # Errors
    /// [`Shortage::TierFull`] if the steps do not make the room. None of them is to be taken then.
    pub fn steps_to_host_room(&self, bytes: u64, rooms: Rooms) -> Result<Vec<Step>, Stop> {
        if rooms.host.allows(bytes) {
            return Ok(Vec::new());
        }
        if let Some(token) = self.blocks.oldest() {
            return Ok(vec![Step::Wait(token)]);
        }
        let in_tiers = self.blocks.live().filter(|(_, block)| block.copies.copy().is_some());
        let blocks = in_tiers.map(|(id, block)| (id, *block)).collect();
        let (mut foreseen, mut steps) = (Foreseen { blocks, rooms }, Vec::new());
        while !foreseen.rooms.host.allows(bytes) {
            let next = self.next_to_make_way(foreseen.live(), foreseen.rooms);
            let step = next.ok_or(Shortage::TierFull { wanted: bytes })?;
            foreseen.take(step);
            steps.push(step);
        }
        Ok(steps)
    }

    /// The next step towards room for `wanted` bytes on the host; `None` once it is there.
    pub(crate) fn make_host_room(&self, wanted: u64, rooms: Rooms) -> Result<Option<Step>, Stop> {
        if rooms.host.allows(wanted) {
            return Ok(None);
        }
        match self.next_to_make_way(self.blocks.live(), rooms) {
            Some(Step::Spill { block })
                if self.operation.garbage == Garbage::Unsearched
                    && !self.blocks.block(block)?.is_on_disk() =>
            {
                Ok(Some(Step::Sweep))
            }
            Some(step) => Ok(Some(step)),
            None => Err(Shortage::TierFull { wanted }.into()),
        }
    }

    /// The next step by which one of the blocks `live` gives up its bytes on the host, or its place on the disk to one that sinks then.
    fn next_to_make_way<'a>(
        &self,
        live: impl Iterator<Item = (BlockId, &'a Block)> + Clone,
        rooms: Rooms,
    ) -> Option<Step> {
        // A copy that is on the device too costs at most a copy over the link, and nothing where it is on the disk as well.
        if let Some(block) = largest_duplicate(live.clone()) {
            return Some(Step::DropCopy { block, tier: Tier::Host });
        }
        if let Some(block) = self.deepest(live.clone(), rooms.disk) {
            return Some(Step::Spill { block });
        }
        let block = spare_on_disk(live, rooms)?;
        Some(Step::DropCopy { block, tier: Tier::Disk })
    }

    /// The block that sinks first. An operand sinks only where no other block can: others leave the device through its place on the host,
    /// and it is raised last. Of blocks needed equally late, one that the disk has already sinks: a write wears the drive, and both are
    /// read again.
    fn deepest<'a>(&self, live: impl Iterator<Item = (BlockId, &'a Block)>, room: Limit) -> Option<BlockId> {
        let able = live
            .filter(|(_, block)| rests_on_host(block) && (block.is_on_disk() || room.allows(block.bytes)));
        let rank = |id: BlockId, block: &Block| {
            let operand = block.last_use == self.operation.number;
            (!operand, self.depth(id, block), block.is_on_disk(), block.bytes, id.index)
        };
        able.max_by_key(|(id, block)| rank(*id, block)).map(|(id, _)| id)
    }

    /// How much later than others the block is needed, as far as is known.
    pub(crate) fn depth(&self, id: BlockId, block: &Block) -> u64 {
        let age = self.operation.number - block.last_use;
        match self.planner.as_ref().filter(|_| self.is_planning()).map(|planner| planner.future(id)) {
            Some(Future::Used(after)) => after,
            Some(Future::Freed(_)) => 0,
            Some(Future::Unknown) => u64::MAX / 2 + age,
            None => age,
        }
    }
}

/// A host copy that saves a future transfer, and can be given up to make a present one possible; one that the disk has as well before
/// all others.
fn largest_duplicate<'a>(live: impl Iterator<Item = (BlockId, &'a Block)>) -> Option<BlockId> {
    let is_duplicate = |block: &Block| {
        block.place() == Place::Device { clean: Some(Tier::Host) } && block.copies.moving().is_none()
    };
    let duplicates = live.filter(|(_, block)| is_duplicate(block));
    duplicates.max_by_key(|(_, block)| (block.is_on_disk(), block.bytes)).map(|(id, _)| id)
}

/// The block that gives up its place on a full disk to one that has to sink. Contents that another tier has as well come first, then
/// contents that only the device has beside the disk.
fn spare_on_disk<'a>(
    mut live: impl Iterator<Item = (BlockId, &'a Block)> + Clone,
    rooms: Rooms,
) -> Option<BlockId> {
    let spare = |block: &Block| {
        let elsewhere = block.held().contains(Tier::Host) || block.held().contains(Tier::Device);
        block.copies.moving().is_none() && block.is_on_disk() && elsewhere
    };
    let spares = live.clone().filter(|(_, block)| spare(block));
    let bytes = spares.clone().map(|(_, block)| rooms.on_disk(block.bytes)).sum();
    let room = rooms.disk.more(bytes);
    live.find(|(_, block)| rests_on_host(block) && room.allows(block.bytes))?;
    spares
        .max_by_key(|(id, block)| (block.held().contains(Tier::Host), block.bytes, id.index))
        .map(|(id, _)| id)
}

impl Foreseen {
    fn live(&self) -> impl Iterator<Item = (BlockId, &Block)> + Clone {
        self.blocks.iter().map(|(id, block)| (*id, block))
    }

    fn take(&mut self, step: Step) {
        let (Step::Spill { block: id } | Step::DropCopy { block: id, .. }) = step else { return };
        let Some((_, block)) = self.blocks.iter_mut().find(|(other, _)| *other == id) else { return };
        let (bytes, on_disk) = (block.bytes, self.rooms.on_disk(block.bytes));
        let Rooms { host, disk, .. } = &mut self.rooms;
        if let Step::DropCopy { tier, .. } = step {
            block.copies.take(None, Some(tier));
            match tier {
                Tier::Disk => *disk = disk.more(on_disk),
                _ => *host = host.more(bytes),
            }
        } else {
            let to = (!block.is_on_disk()).then_some(Tier::Disk);
            *disk = disk.less(if to.is_some() { on_disk } else { 0 });
            *host = host.more(bytes);
            block.copies.take(to, Some(Tier::Host));
        }
    }
}
