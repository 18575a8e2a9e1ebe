//! The program's requests, passed on to two listeners: the recorder, which writes it down, and the planner, which learns
//! from it.

use crate::block::{Arena, BlockId, Place};
use crate::limit::Limit;
use crate::planner::{Course, Planner};
use crate::recording::Recorder;
use crate::residency::Pager;
use crate::trace::Named;

impl Pager {
    /// Starts a [`Recording`](crate::Recording) of what the program asks from here on; blocks must not exist yet.
    pub fn record(&mut self) {
        self.recorder = Some(Box::new(Recorder::new()));
    }

    /// Tells a recording how many floating-point operations the operation begun last takes.
    pub fn takes(&mut self, flops: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.takes(flops);
        }
    }

    /// Tells a recording that the program reads so many bytes of the block, wherever they are.
    pub fn reads(&mut self, id: BlockId, bytes: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.reads(id.index, bytes);
        }
    }

    /// Ends the recording, and forgets what was not taken of it.
    pub fn stop_recording(&mut self) {
        self.recorder = None;
    }

    /// Takes what was recorded since the last call, for a file to be continued by it.
    pub fn recorded(&mut self) -> Vec<u8> {
        self.recorder.as_mut().map(|recorder| recorder.drain()).unwrap_or_default()
    }

    /// Bytes recorded since they were taken last.
    pub fn recorded_bytes(&self) -> usize {
        self.recorder.as_ref().map_or(0, |recorder| recorder.pending())
    }

    /// Whether anything depends on which operands an operation changes: it is recorded, or some blocks have copies elsewhere or
    /// are about to. Otherwise a door may report them all as [`wrote`](Self::wrote).
    pub fn minds_writes(&self) -> bool {
        self.recorder.is_some() || self.is_spilling()
    }

    /// Whether victims follow from what is known of the future.
    pub(crate) fn is_planning(&self) -> bool {
        self.planner.as_ref().is_some_and(Planner::knows)
    }

    pub(crate) fn note_step(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.step();
        }
        if let Some(planner) = &mut self.planner {
            planner.mark_step();
        }
    }

    pub(crate) fn note_born(&mut self, id: BlockId, bytes: u64, arena: Arena) {
        if let Some(recorder) = &mut self.recorder {
            recorder.born(id.index, bytes, arena);
        }
        if let Some(planner) = &mut self.planner {
            planner.born(id);
        }
    }

    pub(crate) fn note_freed(&mut self, id: BlockId) {
        if let Some(recorder) = &mut self.recorder {
            recorder.freed(id.index);
        }
        if let Some(planner) = &mut self.planner {
            planner.freed(id);
        }
    }

    /// Nothing is learned without a budget, since nothing ever leaves.
    pub(crate) fn note_operation(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.operation(self.operation.operands().iter().map(|id| id.index));
        }
        let Some(planner) = self.planner.as_mut().filter(|_| self.blocks.ledger().budget() != Limit::NONE)
        else {
            return;
        };
        let blocks = &self.blocks;
        let named = |id: &BlockId| {
            let block = blocks.get(*id);
            let is_new = block.is_some_and(|block| block.place() == Place::Nowhere);
            Named { block: *id, bytes: block.map_or(0, |block| block.bytes), is_new }
        };
        let course = planner.observe(&self.operation.operands().iter().map(named));
        self.counters.predicted += u64::from(matches!(course, Course::Foretold | Course::Larger));
        self.counters.diverged += u64::from(matches!(course, Course::Elsewhere { lost: true, .. }));
        let anew = matches!(course, Course::Elsewhere { found: true, .. });
        self.enter_operands(anew);
        self.plan_goes_on(course);
    }
}
