//! Blocks on the disk that come back to the host before an operation needs them.
//!
//! The ones that are used next come, in the place of others that sink for free because the disk has them. These are needed much later: what
//! operations bring to the host lets others sink as well, and who was raised too early would be among them.
//!
//! One block at a time is under way. It has its host memory from the beginning, and counts as on the disk until all of it has come.

use crate::block::{BlockId, Place, Tier, Token};
use crate::limit::Limit;
use crate::planner::Future;
use crate::residency::Pager;
use crate::sinking::{Rooms, rests_on_host};
use crate::steps::Step;

/// How many times as late as a block that is raised others are needed that sink for it. At twice as late more is read.
const LATER: u64 = 3;

/// Blocks that are chosen at a time.
const SOON: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct RaisingAhead {
    /// Who sinks and who is raised then, the first one last.
    chosen: Vec<Step>,
    /// The operation in which they were chosen.
    at: u64,
}

impl RaisingAhead {
    /// Forgets what was chosen.
    pub fn forget(&mut self) {
        self.chosen.clear();
    }
}

impl Pager {
    /// The block that is being loaded from disk, and the token of its move.
    pub fn loading(&self) -> Option<(Token, BlockId)> {
        self.blocks.loading()
    }

    /// The next step towards loading blocks before operations need them: a block is loaded, or one that the disk has is spilled.
    pub(crate) fn next_loaded(&mut self, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        if let Some((_, block)) = self.loading() {
            return Some(Step::LoadAhead { block });
        }
        if !self.is_planning() || self.blocks.ledger().held(Tier::Disk) == 0 {
            return None;
        }
        // To choose looks at every block.
        if self.operation.number - self.raising_ahead.at > self.blocks.count() / 64 {
            self.raising_ahead.at = self.operation.number;
            self.raising_ahead.chosen = self.to_be_exchanged(rooms().host);
        }
        while let Some(step) = self.raising_ahead.chosen.last().copied() {
            if self.is_of_use(step) {
                return Some(step);
            }
            self.raising_ahead.chosen.pop();
        }
        None
    }

    fn is_of_use(&self, step: Step) -> bool {
        let (Step::Spill { block: id } | Step::LoadAhead { block: id }) = step else { return false };
        self.get(id).is_some_and(|block| match step {
            Step::LoadAhead { .. } => block.place() == Place::Away(Tier::Disk),
            _ => rests_on_host(block) && block.is_on_disk(),
        })
    }

    /// Who is raised, and who sinks before, the first one last.
    fn to_be_exchanged(&self, room: Limit) -> Vec<Step> {
        let (Some(planner), Some(mut room)) = (self.planner.as_ref(), room.get()) else { return Vec::new() };
        let resting = self.blocks.live().filter(|(_, block)| rests_on_host(block));
        let resting = resting.map(|(id, block)| (self.depth(id, block), id, block));
        // Whoever is needed later would be the next to sink.
        let latest = resting.clone().map(|(depth, ..)| depth).max().unwrap_or(u64::MAX);
        let sinking = resting.filter(|(_, _, block)| block.is_on_disk());
        let mut sinking: Vec<_> = sinking.map(|(depth, id, block)| (depth, id, block.bytes)).collect();
        sinking.sort_unstable_by_key(|(depth, id, _)| (*depth, id.index));
        let mut steps = Vec::new();
        for block in self.soon_from_disk(SOON) {
            let (Future::Used(after), Some(wanted)) = (planner.future(block), self.get(block)) else { break };
            if after >= latest {
                break;
            }
            while room < wanted.bytes
                && let Some((_, block, bytes)) = sinking.pop_if(|(depth, ..)| *depth / LATER >= after)
            {
                room += bytes;
                steps.push(Step::Spill { block });
            }
            if room < wanted.bytes {
                break;
            }
            room -= wanted.bytes;
            steps.push(Step::LoadAhead { block });
        }
        // Nobody sinks for nothing.
        steps.truncate(
            steps.iter().rposition(|step| matches!(step, Step::LoadAhead { .. })).map_or(0, |n| n + 1),
        );
        steps.reverse();
        steps
    }
}
