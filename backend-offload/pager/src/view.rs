//! Pager state that decisions read and never change.

use crate::block::{Block, BlockId, Place};
use crate::blocks::Blocks;
use crate::forecast::{Forecast, Future};
use crate::limit::Limit;
use crate::request::Request;

#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'p> {
    pub blocks: &'p Blocks,
    pub request: &'p Request,
    pub forecast: Option<&'p Forecast>,
}

impl<'p> View<'p> {
    /// The forecast, if it knows the program's place.
    pub fn known(self) -> Option<&'p Forecast> {
        self.forecast.filter(|forecast| forecast.knows())
    }

    /// Whether no move, pin or current operation keeps it.
    pub fn may_leave(self, block: &Block) -> bool {
        let is_used = block.pinned || block.last_use == self.request.number();
        block.is_on_device() && block.copies.moving().is_none() && !is_used
    }

    /// Whether it may leave, `room` allows its copy, and no move of it failed in this operation.
    pub fn is_able(self, block: &Block, room: Limit) -> bool {
        let has_room = !block.needs_copy() || room.allows(block.bytes);
        self.may_leave(block) && block.stuck_in != self.request.number() && has_room
    }

    pub fn able(self, room: Limit) -> impl Iterator<Item = (BlockId, &'p Block)> + Clone {
        self.blocks.live().filter(move |(_, block)| self.is_able(block, room))
    }

    /// Bytes that must leave for the current operation.
    pub fn missing(self) -> u64 {
        let room = self.request.room().map_or(0, |(bytes, _)| bytes);
        let operands = self.request.operands().iter().filter_map(|id| self.blocks.get(*id));
        let away = operands.filter(|block| matches!(block.place(), Place::Nowhere | Place::Away(_)));
        let wanted = room + away.map(|block| block.bytes).sum::<u64>();
        let ledger = self.blocks.ledger();
        let stays = ledger.resident().saturating_sub(self.blocks.departing_bytes());
        match wanted.saturating_sub(ledger.limit().less(stays).cut(u64::MAX)) {
            // The driver has less than the budget by an unknown amount.
            0 => wanted,
            missing => missing,
        }
    }

    /// Estimated or known distance to the next use.
    pub fn depth(self, id: BlockId, block: &Block) -> u64 {
        let age = self.request.number() - block.last_use;
        match self.known().map(|forecast| forecast.future(id)) {
            Some(Future::Used(after)) => after,
            Some(Future::Freed(_)) => 0,
            Some(Future::Unknown) => u64::MAX / 2 + age,
            None => age,
        }
    }
}
