//! Victims: the blocks that leave the device when room is needed.
//!
//! While the planner knows where the program is, by the [order](crate::furthest) of next uses; otherwise, and where
//! that order has nobody to offer, by recency over all blocks. The program's wishes come before either.

use crate::block::{Block, BlockId, Place};
use crate::furthest::{Resident, Standing, first_of};
use crate::limit::Limit;
use crate::operation::Target;
use crate::planner::Planner;
use crate::policy::Candidate;
use crate::residency::Pager;

impl Pager {
    /// Nothing keeps the block on the device: it lies still there, and neither a pin nor the current
    /// operation holds it.
    pub(crate) fn may_leave(&self, block: &Block) -> bool {
        may_leave(block, self.operation.number)
    }

    /// The choice among blocks whose contents find `room` in the tier they would be copied to, and which the program would
    /// rather see leave than the others.
    pub(crate) fn victim(&mut self, room: Limit) -> Option<BlockId> {
        if self.is_planning()
            && let Some(planned) = self.leaves_by_plan(room).or_else(|| self.planned_victim(room))
        {
            return Some(planned);
        }
        let now = self.operation.number;
        let candidates = self.able(room);
        let foremost = candidates.clone().map(|(_, block)| block.preference).min()?;
        let candidates = candidates
            .filter(|(_, block)| block.preference == foremost)
            .map(|(id, block)| Candidate { index: id.index, last_use: block.last_use });
        let index = self.recency.choose(now, &candidates)?;
        self.blocks.id(index)
    }

    /// As [`may_leave`](Self::may_leave), with `room` for its contents, and nothing has failed.
    pub(crate) fn is_able(&self, block: &Block, room: Limit) -> bool {
        is_able(block, self.operation.number, room)
    }

    fn able(&self, room: Limit) -> impl Iterator<Item = (BlockId, &Block)> + Clone {
        let now = self.operation.number;
        self.blocks.live().filter(move |(_, block)| is_able(block, now, room))
    }

    fn planned_victim(&mut self, room: Limit) -> Option<BlockId> {
        let missing = self.missing();
        if self.blocks.has_preferences() {
            let foremost = self.able(room).map(|(_, block)| block.preference).min()?;
            let able = self.able(room).filter(|(_, block)| block.preference == foremost);
            let planner = self.planner.as_ref()?;
            return first_of(able.map(|(id, block)| resident(planner, id, block)), planner.now(), missing);
        }
        if !self.order.is_awake() {
            self.order.wake();
            self.enter_all();
        }
        #[cfg(test)]
        let by_look = {
            let planner = self.planner.as_ref()?;
            first_of(self.able(room).map(|(id, block)| resident(planner, id, block)), planner.now(), missing)
        };
        let Self { order, planner: Some(planner), blocks, operation, .. } = self else { return None };
        let look = |id: BlockId| {
            let block = blocks.get(id).filter(|block| block.is_on_device())?;
            Some(resident(planner, id, block))
        };
        let able = |id: BlockId| blocks.get(id).is_some_and(|block| is_able(block, operation.number, room));
        let first = order.first(planner.now(), missing, &look, &able);
        #[cfg(test)]
        assert_eq!(first, by_look, "the order offers whom a look at all blocks would choose");
        first
    }

    /// Bytes for which others have to leave before the operation begun last has all it wants.
    fn missing(&self) -> u64 {
        let wanted = match self.operation.target {
            Target::Room { bytes, .. } => bytes,
            Target::Operands { .. } => {
                let operands = self.operation.operands().iter().filter_map(|id| self.get(*id));
                operands
                    .filter(|block| matches!(block.place(), Place::Nowhere | Place::Away(_)))
                    .map(|block| block.bytes)
                    .sum()
            }
        };
        let stays = self.blocks.ledger().resident().saturating_sub(self.blocks.departing_bytes());
        match wanted.saturating_sub(self.blocks.ledger().budget().less(stays).cut(u64::MAX)) {
            // The driver has less than the budget allows, and nobody knows how much.
            0 => wanted,
            missing => missing,
        }
    }

    /// Enters a block in the order, as it stands.
    pub(crate) fn enter_in_order(&mut self, id: BlockId) {
        let Self { order, planner: Some(planner), blocks, .. } = self else { return };
        if let Some(block) = blocks.get(id).filter(|_| order.is_awake()) {
            order.enter(&resident(planner, id, block));
        }
    }

    /// Enters the operands of the operation that begins, whose next uses are known anew.
    pub(crate) fn enter_operands(&mut self, anew: bool) {
        if !self.order.is_awake() {
            return;
        }
        if anew || self.order.is_stale(self.blocks.count()) {
            if self.order.clear() {
                self.enter_all();
            }
            return;
        }
        let Self { order, planner: Some(planner), blocks, operation, .. } = self else { return };
        for id in operation.operands() {
            if let Some(block) = blocks.get(*id) {
                order.enter(&resident(planner, *id, block));
            }
        }
    }

    fn enter_all(&mut self) {
        let Self { order, planner: Some(planner), blocks, .. } = self else { return };
        for (id, block) in blocks.live() {
            order.enter(&resident(planner, id, block));
        }
    }
}

fn resident(planner: &Planner, id: BlockId, block: &Block) -> Resident {
    let standing = Standing::of(
        block.copies.is_written(),
        block.needs_copy(),
        planner.future(id),
        planner.now(),
        planner.recent(id),
    );
    Resident { id, bytes: block.bytes, standing }
}

fn may_leave(block: &Block, now: u64) -> bool {
    block.is_on_device() && block.copies.moving().is_none() && !block.pinned && block.last_use != now
}

fn is_able(block: &Block, now: u64, room: Limit) -> bool {
    may_leave(block, now) && block.stuck_in != now && (!block.needs_copy() || room.allows(block.bytes))
}
