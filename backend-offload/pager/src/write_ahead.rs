//! Writes blocks on the host to disk early: they spill without a wait.
//!
//! While blocks spill, a forty-eighth of the host, or its largest block, is kept ready. The next to spill are written
//! while the disk is idle (`blocks_are_written_ahead_only_while_blocks_spill_and_their_next_use_is_known`). The disk
//! must have room to spare (`a_nearly_full_disk_is_kept_for_blocks_that_must_spill`).

use crate::block::{Block, BlockId, Tier};
use crate::forecast::Future;
use crate::recent_activity::RecentActivity;
use crate::rooms::Rooms;
use crate::view::View;

/// Half as much lengthens steps; more wears the drive.
const READY: u64 = 48;

/// The largest part kept ready. A smaller disk is left to blocks that must spill.
const SPARE: u64 = 6;

#[derive(Debug, Default)]
pub(crate) struct WriteAhead {
    /// Blocks to write, the first one last.
    chosen: Vec<BlockId>,
    at: u64,
    spills: RecentActivity,
}

impl WriteAhead {
    pub fn next(&mut self, view: View, spilled: u64, rooms: &dyn Fn() -> Rooms) -> Option<BlockId> {
        let forecast = view.known()?;
        if !self.spills.is_active(forecast.now(), forecast.period()?, spilled) {
            return None;
        }
        let chosen = self.first_chosen(view, rooms);
        // Each choice visits every block.
        if chosen.is_some() || view.request.number() - self.at <= view.blocks.count() / 64 {
            return chosen;
        }
        self.at = view.request.number();
        self.chosen = to_be_written(view, rooms());
        self.first_chosen(view, rooms)
    }

    /// The first chosen block that can be written. Drops those before it.
    fn first_chosen(&mut self, view: View, rooms: &dyn Fn() -> Rooms) -> Option<BlockId> {
        while let Some(id) = self.chosen.last().copied() {
            let block = view.blocks.get(id).filter(|block| is_unwritten(block));
            if block.is_some_and(|block| rooms().disk.allows(block.bytes)) {
                return Some(id);
            }
            self.chosen.pop();
        }
        None
    }
}

fn to_be_written(view: View, rooms: Rooms) -> Vec<BlockId> {
    let (Some(forecast), Some(free)) = (view.known(), rooms.host.get()) else {
        return Vec::new();
    };
    let host = view.blocks.ledger().held(Tier::Host) + free;
    if !rooms.disk.allows(host / SPARE) {
        return Vec::new();
    }
    let resting = view.blocks.live().filter(|(_, block)| block.rests_on_host());
    let mut resting: Vec<_> = resting.map(|(id, block)| (view.depth(id, block), id, block)).collect();
    let largest = resting.iter().map(|(_, _, block)| block.bytes).max().unwrap_or(0);
    let mut missing = largest.clamp(host / READY, host / SPARE).saturating_sub(free);
    resting.sort_unstable_by_key(|(depth, id, _)| (std::cmp::Reverse(*depth), id.index));
    let mut chosen = Vec::new();
    for (_, id, block) in resting {
        if missing == 0 {
            break;
        }
        missing = missing.saturating_sub(block.bytes);
        if is_unwritten(block) && matches!(forecast.future(id), Future::Used(_)) {
            chosen.push(id);
        }
    }
    chosen.reverse();
    chosen
}

fn is_unwritten(block: &Block) -> bool {
    block.rests_on_host() && !block.is_on_disk()
}
