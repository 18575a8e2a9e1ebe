//! Replays a recording under a budget, with the very pager that runs for real.
//!
//! A move lands at once and the host tier has no limit, so what a replay counts is what the decisions cost in bytes,
//! whatever the link. A recording made without a budget is replayed under any.

use crate::block::BlockId;
use crate::limit::Limit;
use crate::policy::Policy;
use crate::recording::{Event, Recording};
use crate::residency::Pager;
use crate::steps::Step;
use crate::{Fault, Oversized, Stop, TierIndex};

/// Bytes moved in one step of a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Onto the device.
    pub bytes_in: u64,
    /// Off the device.
    pub bytes_out: u64,
}

impl Moved {
    /// Both directions together.
    pub fn total(self) -> u64 {
        self.bytes_in + self.bytes_out
    }
}

/// A pager that plays a recording.
#[derive(Debug)]
pub struct Replay<'r> {
    recording: &'r Recording,
    pager: Pager,
    /// The blocks alive, by their numbers in the recording.
    blocks: Vec<Option<BlockId>>,
    operands: Vec<BlockId>,
    moved: Vec<Moved>,
    before: Moved,
}

impl<'r> Replay<'r> {
    /// A replay of `recording` under `budget`, before its first event.
    pub fn new(recording: &'r Recording, budget: Limit, policy: Policy) -> Self {
        Self {
            recording,
            pager: Pager::new(budget, policy, Oversized::Refuse),
            blocks: Vec::new(),
            operands: Vec::new(),
            moved: Vec::new(),
            before: Moved::default(),
        }
    }

    /// Plays the recording; one step that repeats is played `times` over, anything else once.
    ///
    /// # Errors
    /// If the budget is too small for an operation, or the recording contradicts itself.
    pub fn run(mut self, times: usize) -> Result<Self, Stop> {
        let recording = self.recording;
        let begin = recording.events.iter().position(|event| *event == Event::Begin);
        let Some(begins) = begin else {
            recording.events.iter().try_for_each(|event| self.play(*event))?;
            return Ok(self);
        };
        recording.events[..begins].iter().try_for_each(|event| self.play(*event))?;
        let carried = self.blocks.len();
        for _ in 0..times {
            recording.events[begins..].iter().try_for_each(|event| self.play(*event))?;
            self.carry(carried)?;
        }
        Ok(self)
    }

    /// Bytes moved in each step; the last one is what came after the last marked step, if anything did.
    pub fn steps(&self) -> &[Moved] {
        &self.moved
    }

    /// The pager, for its counters.
    pub fn pager(&self) -> &Pager {
        &self.pager
    }

    #[cfg(test)]
    pub(crate) fn pager_mut(&mut self) -> &mut Pager {
        &mut self.pager
    }

    /// Begins the next round: each role goes to the block that takes it over, and what nobody carries is let go.
    fn carry(&mut self, carried: usize) -> Result<(), Fault> {
        let mut next = vec![None; carried];
        for event in &self.recording.events {
            if let Event::Carried { role, by } = *event {
                next[role] = self.blocks[by].take();
            }
        }
        for left in self.blocks.drain(..).flatten() {
            self.pager.remove(left)?;
        }
        self.blocks = next;
        Ok(())
    }

    fn play(&mut self, event: Event) -> Result<(), Stop> {
        match event {
            Event::Born { bytes, arena } => {
                let block = self.pager.insert(bytes, arena);
                self.blocks.push(Some(block));
            }
            Event::Operation { first, count } => {
                let operands = &self.recording.operands[first..first + count];
                self.operands.clear();
                for operand in operands {
                    self.operands.push(self.blocks[operand.block].ok_or(unknown())?);
                }
                if !self.pager.begin(&self.operands)? {
                    take_steps(&mut self.pager)?;
                }
                for (operand, block) in operands.iter().zip(&self.operands) {
                    if operand.written {
                        self.pager.wrote(*block)?;
                    }
                }
            }
            Event::Written(block) => {
                let block = self.blocks[block].ok_or(unknown())?;
                // What was written outside an operation was on the device then, under another budget maybe.
                if self.pager.get(block).is_some_and(|block| block.place.is_on_device()) {
                    self.pager.wrote(block)?;
                }
            }
            Event::WrittenInTier(block) => {
                let block = self.blocks[block].ok_or(unknown())?;
                match self.pager.get(block).map(|block| block.place) {
                    Some(place) if place.is_on_device() => _ = self.pager.wrote(block)?,
                    _ => self.pager.wrote_in_tier(block, TierIndex::HOST)?,
                }
            }
            Event::Freed(block) => {
                let block = self.blocks[block].take().ok_or(unknown())?;
                self.pager.remove(block)?;
            }
            Event::Step => {
                self.pager.mark_step();
                let counters = self.pager.counters();
                let now = Moved { bytes_in: counters.bytes_in, bytes_out: counters.bytes_out };
                self.moved.push(Moved {
                    bytes_in: now.bytes_in - self.before.bytes_in,
                    bytes_out: now.bytes_out - self.before.bytes_out,
                });
                self.before = now;
            }
            Event::Begin | Event::Carried { .. } => {}
        }
        Ok(())
    }
}

fn unknown() -> Stop {
    Fault::UnknownBlock(BlockId { index: u32::MAX, generation: 0 }).into()
}

/// Takes every step of the operation begun last, completing each at once.
fn take_steps(pager: &mut Pager) -> Result<(), Stop> {
    loop {
        match pager.next_step(&|| Limit::NONE)? {
            Step::Ready => return Ok(()),
            Step::Sweep => pager.swept(),
            Step::Trim => pager.trimmed(),
            Step::DropCopy { block, .. } => pager.copy_dropped(block)?,
            Step::Evict { block, .. } => {
                let token = pager.evict_started(block)?;
                pager.landed(token)?;
            }
            Step::Bring { block, .. } => {
                let token = pager.return_started(block)?;
                pager.landed(token)?;
            }
            Step::Wait(_) => unreachable!("every move has landed"),
        }
    }
}
