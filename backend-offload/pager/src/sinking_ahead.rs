//! Blocks on the host that are written to the disk before host memory is wanted, so that they sink for free then.
//!
//! While blocks sink at all, a part of the host is kept ready to be given up: of those that would sink first, the ones whose next use is
//! known are written while the disk has nothing else to do. They stay on the host, where most of them are used from; a few are
//! changed before they sink, and were written for nothing.

use crate::block::{Block, BlockId, Tier};
use crate::lately::Lately;
use crate::planner::Future;
use crate::residency::Pager;
use crate::sinking::{Rooms, rests_on_host};

/// The part of the host that is kept ready, or else room for the largest block there. Half as much makes steps longer, and more
/// wears the drive for nothing.
const READY: u64 = 48;

/// The part of the host that is kept ready at most, and a disk with less room than that is left to blocks that have to sink.
const SPARE: u64 = 6;

#[derive(Debug, Default)]
pub(crate) struct SinkingAhead {
    /// Blocks to be written, the first one last.
    chosen: Vec<BlockId>,
    /// The operation in which they were chosen.
    at: u64,
    /// Whether blocks sink.
    sinks: Lately,
}

impl Pager {
    /// The block that is written to disk next, beside the operation begun last.
    pub(crate) fn next_written(&mut self, rooms: &dyn Fn() -> Rooms) -> Option<BlockId> {
        let planner = self.planner.as_ref().filter(|_| self.is_planning())?;
        let (now, period) = (planner.now(), planner.period()?);
        if !self.sinking_ahead.sinks.happens(now, period, self.counters.sunk) {
            return None;
        }
        let chosen = self.first_chosen(rooms);
        // To choose looks at every block.
        if chosen.is_some() || self.operation.number - self.sinking_ahead.at <= self.blocks.count() / 64 {
            return chosen;
        }
        self.sinking_ahead.at = self.operation.number;
        self.sinking_ahead.chosen = self.to_be_written(rooms());
        self.first_chosen(rooms)
    }

    /// The first of the chosen blocks that can still be written, after those before it are passed over.
    fn first_chosen(&mut self, rooms: &dyn Fn() -> Rooms) -> Option<BlockId> {
        while let Some(id) = self.sinking_ahead.chosen.last().copied() {
            let block = self.get(id).filter(|block| is_unwritten(block));
            if block.is_some_and(|block| rooms().disk.allows(block.bytes)) {
                return Some(id);
            }
            self.sinking_ahead.chosen.pop();
        }
        None
    }

    /// Who is written for the part of the host that is to be ready, the first one last.
    fn to_be_written(&self, rooms: Rooms) -> Vec<BlockId> {
        let (Some(planner), Some(free)) = (self.planner.as_ref(), rooms.host.get()) else {
            return Vec::new();
        };
        let host = self.blocks.ledger().held(Tier::Host) + free;
        if !rooms.disk.allows(host / SPARE) {
            return Vec::new();
        }
        let resting = self.blocks.live().filter(|(_, block)| rests_on_host(block));
        let mut resting: Vec<_> = resting.map(|(id, block)| (self.depth(id, block), id, block)).collect();
        let largest = resting.iter().map(|(_, _, block)| block.bytes).max().unwrap_or(0);
        let mut missing = largest.clamp(host / READY, host / SPARE).saturating_sub(free);
        resting.sort_unstable_by_key(|(depth, id, _)| (std::cmp::Reverse(*depth), id.index));
        let mut chosen = Vec::new();
        for (_, id, block) in resting {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(block.bytes);
            if is_unwritten(block) && matches!(planner.future(id), Future::Used(_)) {
                chosen.push(id);
            }
        }
        chosen.reverse();
        chosen
    }
}

/// The block rests on the host, and the disk does not have it.
fn is_unwritten(block: &Block) -> bool {
    rests_on_host(block) && !block.is_on_disk()
}
