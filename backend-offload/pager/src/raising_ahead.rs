//! Blocks on the disk that come back to the host before an operation needs them.
//!
//! The ones that are used next come, in the place of others that sink for free because the disk has them. These are needed much later: what
//! operations bring to the host lets others sink as well, and who was raised too early would be among them.
//!
//! One block at a time is under way. It has its host memory from the beginning, and counts as on the disk until all of it has come.

use crate::block::{BlockId, Place, Tier};
use crate::fault::{Fault, illegal};
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

impl Pager {
    /// The next step towards having blocks on the host that are on the disk, beside the operation begun last: [`Step::Sink`] for one that
    /// the disk has, or [`Step::Raise`], which [`raise_begun`](Self::raise_begun) reports and [`raised_ahead`](Self::raised_ahead) ends. A hint: it may
    /// be taken or left. `rooms` as for [`next_step`](Self::next_step).
    pub fn next_above(&mut self, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        if let Some(block) = self.raising() {
            return Some(Step::Raise { block });
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
        let (Step::Sink { block: id } | Step::Raise { block: id }) = step else { return false };
        self.get(id).is_some_and(|block| match step {
            Step::Raise { .. } => block.place() == Place::Away(Tier::Disk),
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
                steps.push(Step::Sink { block });
            }
            if room < wanted.bytes {
                break;
            }
            room -= wanted.bytes;
            steps.push(Step::Raise { block });
        }
        // Nobody sinks for nothing.
        steps
            .truncate(steps.iter().rposition(|step| matches!(step, Step::Raise { .. })).map_or(0, |n| n + 1));
        steps.reverse();
        steps
    }

    /// The block that is under way from the disk while the program goes on.
    pub fn raising(&self) -> Option<BlockId> {
        self.blocks.loading().map(|(_, id)| id)
    }

    /// The block has host memory, and its contents are on their way while the program goes on.
    pub fn raise_begun(&mut self, id: BlockId) -> Result<(), Fault> {
        if self.raising().is_some() {
            return Err(illegal("begun to be raised", id, self.blocks.block(id)?));
        }
        self.blocks.start(id, Some(Tier::Host), None, "begun to be raised")?;
        Ok(())
    }

    /// All of the block that was under way is on the host, before an operation had to wait for it. The disk keeps it, too.
    pub fn raised_ahead(&mut self, id: BlockId) -> Result<(), Fault> {
        self.raised(id)?;
        self.counters.raised_ahead += 1;
        Ok(())
    }

    /// The block that is under way stays on the disk, and has no host memory.
    pub fn raise_given_up(&mut self) -> Result<(), Fault> {
        self.raising_ahead.chosen.clear();
        if let Some((token, _)) = self.blocks.loading() {
            self.blocks.end(token, false)?;
        }
        Ok(())
    }
}
