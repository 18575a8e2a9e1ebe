//! Chooses the next block to leave the device: the program's preferences, then the [order](crate::eviction_order) of
//! predicted uses, or recency.

use crate::block::{Block, BlockId, Place};
#[cfg(test)]
use crate::eviction_order::first_of;
use crate::eviction_order::{EvictionCost, EvictionOrder, Resident};
use crate::forecast::Forecast;
use crate::limit::Limit;
use crate::policy::{Candidate, Policy, Recency};
use crate::view::View;

#[derive(Debug)]
pub(crate) struct Eviction {
    recency: Recency,
    order: EvictionOrder,
}

impl Eviction {
    pub fn new(policy: Policy) -> Self {
        Self { recency: Recency::new(policy), order: EvictionOrder::default() }
    }

    pub fn planned_victim(&mut self, view: View, room: Limit) -> Option<BlockId> {
        let (forecast, missing) = (view.known()?, view.missing());
        if !self.order.is_awake() {
            self.order.wake();
            self.enter_all(view);
        }
        let look = |id: BlockId| {
            let block = view.blocks.get(id).filter(|block| block.is_on_device())?;
            Some(resident(forecast, id, block))
        };
        let able = |id: BlockId| view.blocks.get(id).is_some_and(|block| view.is_able(block, room));
        let victim = self.order.first(forecast.now(), missing, &look, &able);
        #[cfg(test)]
        {
            let all = view.able(room).map(|(id, block)| resident(forecast, id, block));
            let first = first_of(all, forecast.now(), missing);
            assert_eq!(victim, first, "the order offers what a look at all blocks would");
        }
        victim
    }

    pub fn recent_victim(&self, view: View, room: Limit) -> Option<BlockId> {
        let candidates = view.able(room);
        let foremost = candidates.clone().map(|(_, block)| block.preference).min()?;
        let candidates = candidates
            .filter(|(_, block)| block.preference == foremost)
            .map(|(id, block)| Candidate { index: id.index, last_use: block.last_use });
        let index = self.recency.choose(view.request.number(), &candidates)?;
        view.blocks.id(index)
    }

    /// Compares a returning block with those still away.
    pub fn note_return(&mut self, view: View, last_use: u64) {
        let (mut older, mut away) = (0, 0);
        for (_, block) in view.blocks.live().filter(|(_, block)| matches!(block.place(), Place::Away(_))) {
            away += 1;
            older += usize::from(block.last_use < last_use);
        }
        self.recency.restored(older, away);
    }

    /// Drops the order, rebuilt for the next victim.
    pub fn forget_order(&mut self) {
        self.order.sleep();
    }

    pub fn enter(&mut self, view: View, id: BlockId) {
        if let Some(forecast) = view.forecast
            && self.order.is_awake()
            && let Some(block) = view.blocks.get(id)
        {
            self.order.enter(&resident(forecast, id, block));
        }
    }

    /// Enters the new operation's operands; all blocks if `anew`.
    pub fn enter_operands(&mut self, view: View, anew: bool) {
        if !self.order.is_awake() {
            return;
        }
        if anew || self.order.is_stale(view.blocks.count()) {
            if self.order.clear() {
                self.enter_all(view);
            }
            return;
        }
        for id in view.request.operands() {
            self.enter(view, *id);
        }
    }

    fn enter_all(&mut self, view: View) {
        let Some(forecast) = view.forecast else { return };
        for (id, block) in view.blocks.live() {
            self.order.enter(&resident(forecast, id, block));
        }
    }
}

fn resident(forecast: &Forecast, id: BlockId, block: &Block) -> Resident {
    let cost = EvictionCost::of(
        block.copies.is_written(),
        block.needs_copy(),
        forecast.future(id),
        forecast.now(),
        forecast.recent(id),
    );
    Resident { id, bytes: block.bytes, preference: block.preference, cost }
}
