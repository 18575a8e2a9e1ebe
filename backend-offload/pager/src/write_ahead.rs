//! Writes ahead: blocks on the host are written to disk before host memory is wanted, so that they are spilled for free then.
//!
//! While blocks are spilled at all, a part of the host is kept ready to be given up. Of the blocks that would be spilled first,
//! those whose next use is known are written while the disk is idle. They stay on the host, where most of them are used
//! from. A few change before they are spilled, and were written for nothing.
//!
//! The part kept ready is at most a forty-eighth of the host, or its largest block. No block is written ahead unless
//! blocks are spilled, its next use is known (`nothing_is_written_ahead_unless_blocks_sink_and_their_next_use_is_known`)
//! and the disk has room to spare (`a_disk_that_is_nearly_full_is_left_to_who_has_to_sink`).

use crate::block::{Block, BlockId, Tier};
use crate::forecast::Future;
use crate::recent_activity::RecentActivity;
use crate::rooms::Rooms;
use crate::view::View;

/// The part of the host that is kept ready, or else room for the largest block there. Half as much makes steps longer, and more
/// wears the drive for nothing.
const READY: u64 = 48;

/// The part of the host that is kept ready at most. A disk with less room than that is left to blocks that have to be spilled.
const SPARE: u64 = 6;

#[derive(Debug, Default)]
pub(crate) struct WriteAhead {
    /// Blocks to be written, the first one last.
    chosen: Vec<BlockId>,
    /// The operation in which they were chosen.
    at: u64,
    /// Whether blocks are spilled.
    spills: RecentActivity,
}

impl WriteAhead {
    /// The block that is written to disk next, where `spilled` blocks were spilled so far.
    pub fn next(&mut self, view: View, spilled: u64, rooms: &dyn Fn() -> Rooms) -> Option<BlockId> {
        let forecast = view.known()?;
        if !self.spills.is_active(forecast.now(), forecast.period()?, spilled) {
            return None;
        }
        let chosen = self.first_chosen(view, rooms);
        // To choose looks at every block.
        if chosen.is_some() || view.request.number() - self.at <= view.blocks.count() / 64 {
            return chosen;
        }
        self.at = view.request.number();
        self.chosen = to_be_written(view, rooms());
        self.first_chosen(view, rooms)
    }

    /// The first of the chosen blocks that can still be written, after those before it are passed over.
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

/// The blocks that are written for the part of the host to be kept ready, the first one last.
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

/// The block rests on the host, and the disk does not have it.
fn is_unwritten(block: &Block) -> bool {
    block.rests_on_host() && !block.is_on_disk()
}
