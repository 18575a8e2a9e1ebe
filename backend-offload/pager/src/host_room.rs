//! Room on the host, by dropped copies and spilled blocks. An operation takes steps one by one. For the program's own
//! memory all steps are chosen first (`no_block_spills_if_that_cannot_make_room`). Sums of bytes do not suffice: blocks
//! are whole, the disk uses pages, copies in progress stay.

use crate::block::{Block, BlockId, Place, Tier};
use crate::fault::{Shortage, Stop};
use crate::limit::Limit;
use crate::rooms::Rooms;
use crate::steps::Step;
use crate::view::View;

struct Foreseen {
    blocks: Vec<(BlockId, Block)>,
    rooms: Rooms,
}

impl View<'_> {
    pub fn steps_to_host_room(self, bytes: u64, rooms: Rooms) -> Result<Vec<Step>, Stop> {
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

    /// `None` once `wanted` bytes are free.
    pub fn make_host_room(self, wanted: u64, rooms: Rooms) -> Result<Option<Step>, Stop> {
        if rooms.host.allows(wanted) {
            return Ok(None);
        }
        match self.next_to_make_way(self.blocks.live(), rooms) {
            Some(Step::Spill { block })
                if !self.request.is_swept() && !self.blocks.block(block)?.is_on_disk() =>
            {
                Ok(Some(Step::Sweep))
            }
            Some(step) => Ok(Some(step)),
            None => Err(Shortage::TierFull { wanted }.into()),
        }
    }

    /// A step that drops a host copy, spills, or frees disk space.
    fn next_to_make_way<'a>(
        self,
        live: impl Iterator<Item = (BlockId, &'a Block)> + Clone,
        rooms: Rooms,
    ) -> Option<Step> {
        // At most one copy over the link; none if the disk has the contents.
        if let Some(block) = largest_duplicate(live.clone()) {
            return Some(Step::DropCopy { block, tier: Tier::Host });
        }
        if let Some(block) = self.deepest(live.clone(), rooms.disk) {
            return Some(Step::Spill { block });
        }
        let block = spare_on_disk(live, rooms)?;
        Some(Step::DropCopy { block, tier: Tier::Disk })
    }

    /// The block to spill first. Operands come last, since they return. Of blocks needed equally late, one on disk
    /// comes first: writes wear the drive.
    fn deepest<'a>(self, live: impl Iterator<Item = (BlockId, &'a Block)>, room: Limit) -> Option<BlockId> {
        let able = live
            .filter(|(_, block)| block.rests_on_host() && (block.is_on_disk() || room.allows(block.bytes)));
        let rank = |id: BlockId, block: &Block| {
            let operand = block.last_use == self.request.number();
            (!operand, self.depth(id, block), block.is_on_disk(), block.bytes, id.index)
        };
        able.max_by_key(|(id, block)| rank(*id, block)).map(|(id, _)| id)
    }
}

/// Largest host copy of a block on the device; those also on disk first.
fn largest_duplicate<'a>(live: impl Iterator<Item = (BlockId, &'a Block)>) -> Option<BlockId> {
    let is_duplicate = |block: &Block| {
        block.place() == Place::Device { clean: Some(Tier::Host) } && block.copies.moving().is_none()
    };
    let duplicates = live.filter(|(_, block)| is_duplicate(block));
    duplicates.max_by_key(|(_, block)| (block.is_on_disk(), block.bytes)).map(|(id, _)| id)
}

/// The block that gives up its place on a full disk: host ones first, then device ones.
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
    live.find(|(_, block)| block.rests_on_host() && room.allows(block.bytes))?;
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
