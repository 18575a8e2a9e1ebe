//! Blocks on the host that are written to the disk before host memory is wanted, so that they sink for free then.
//!
//! While blocks sink at all, a part of the host is kept ready to be given up: of those that would sink first, the ones whose next use is
//! known are written while the disk has nothing else to do. They stay on the host, where most of them are used from; a few are
//! changed before they sink, and were written for nothing.

use crate::block::BlockId;
use crate::fault::Fault;
use crate::ledger::Posting;
use crate::planner::Future;
use crate::residency::{Pager, illegal};
use crate::sinking::{Rooms, rests_on_host};
use crate::{Place, TierIndex};

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
    /// The operation at which this period began, and how many blocks had sunk until then.
    period: (u64, u64),
    /// Blocks sank in the last period.
    sinks: bool,
}

impl Pager {
    /// The block on the host that is to be written to the disk next, beside the operation begun last; it stays on the host, and
    /// [`written_below`](Self::written_below) reports that the disk has all of it. A hint: it may be taken or left. `rooms` as for
    /// [`next_step`](Self::next_step).
    pub fn next_below(&mut self, rooms: &dyn Fn() -> Rooms) -> Option<BlockId> {
        let planner = self.planner.as_ref().filter(|_| self.is_planning())?;
        let (now, length) = (planner.now(), planner.period()?);
        let sunk = self.counters.sunk;
        let ahead = &mut self.sinking_ahead;
        if now >= ahead.period.0 + length {
            ahead.sinks = sunk > ahead.period.1;
            ahead.period = (now, sunk);
        }
        if !ahead.sinks && sunk == ahead.period.1 {
            return None;
        }
        loop {
            let Some(id) = self.sinking_ahead.chosen.last().copied() else {
                // To choose looks at every block.
                if self.operation.number - self.sinking_ahead.at <= self.live_blocks() / 64 {
                    return None;
                }
                self.sinking_ahead.at = self.operation.number;
                self.sinking_ahead.chosen = self.to_be_written(rooms());
                if self.sinking_ahead.chosen.is_empty() {
                    return None;
                }
                continue;
            };
            let waits = |block: &&crate::Block| rests_on_host(block) && !block.below;
            if self.get(id).filter(waits).is_some_and(|block| rooms().disk.allows(block.bytes)) {
                return Some(id);
            }
            self.sinking_ahead.chosen.pop();
        }
    }

    /// Who is written for the part of the host that is to be ready, the first one last.
    fn to_be_written(&self, rooms: Rooms) -> Vec<BlockId> {
        let (Some(planner), Some(free)) = (self.planner.as_ref(), rooms.host.get()) else {
            return Vec::new();
        };
        let host = self.ledger.held(TierIndex::HOST) + free;
        if !rooms.disk.allows(host / SPARE) {
            return Vec::new();
        }
        let resting = self.live().filter(|(_, block)| rests_on_host(block));
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
            if !block.below && matches!(planner.future(id), Future::Used(_)) {
                chosen.push(id);
            }
        }
        chosen.reverse();
        chosen
    }

    /// The disk has the contents of a block that stays on the host.
    pub fn written_below(&mut self, id: BlockId) -> Result<(), Fault> {
        let block = *self.block(id)?;
        if block.place != Place::Away(TierIndex::HOST) || block.moving.is_some() || block.below {
            return Err(illegal("written below", id, &block));
        }
        self.ledger.post(Posting::of(block.bytes, block.arena).gains(Some(TierIndex::DISK)))?;
        self.counters.written_ahead += 1;
        self.counters.bytes_to_disk += block.bytes;
        self.block_mut(id)?.below = true;
        Ok(())
    }
}
