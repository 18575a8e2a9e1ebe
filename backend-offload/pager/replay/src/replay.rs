//! Replays a recording with the real pager.
//!
//! The host is unlimited unless [above a disk](Replay::above_a_disk). Moves end at once, or [take time](Replay::on) in
//! parallel with operations.

use crate::step_bytes::{Moved, StepBytes};
use crate::timeline::{Elapsed, Machine, StepTimeline, Timeline};
use pager::{
    Arena, Block, BlockId, Event, Fault, Limit, Link, Outcome, Oversized, Pager, Place, Policy, Recording,
    Rooms, Shortage, Step, Stop, Tier,
};

/// A pager that runs a recording.
#[derive(Debug)]
pub struct Replay<'r> {
    recording: &'r Recording,
    pub(crate) pager: Pager,
    pub(crate) blocks: Vec<Option<BlockId>>,
    operands: Vec<BlockId>,
    bytes: StepBytes,
    /// Capacity of a host above a disk.
    host: Limit,
    /// Of blocks recorded without one.
    pool: Option<Arena>,
    timeline: Option<Timeline>,
    pending: Pending,
    #[cfg(test)]
    pub(crate) decisions: String,
}

/// Bytes of moves ahead that have not begun.
#[derive(Debug, Default)]
struct Pending {
    writing: Option<(BlockId, u64)>,
    loading: u64,
}

impl<'r> Replay<'r> {
    /// A replay of `recording` under `budget`.
    pub fn new(recording: &'r Recording, budget: Limit, policy: Policy) -> Self {
        Self {
            recording,
            pager: Pager::new(budget, policy, Oversized::Refuse),
            blocks: Vec::new(),
            operands: Vec::new(),
            bytes: StepBytes::default(),
            host: Limit::NONE,
            pool: None,
            timeline: None,
            pending: Pending::default(),
            #[cfg(test)]
            decisions: String::new(),
        }
    }

    /// Makes moves take this machine's time, with prefetch.
    #[must_use]
    pub fn on(mut self, machine: Machine) -> Self {
        self.pager.look_ahead(true);
        self.timeline = Some(Timeline::new(machine));
        self
    }

    /// Adds a host of this many bytes above an unlimited disk.
    #[must_use]
    pub fn above_a_disk(self, host: u64) -> Self {
        Self { host: Limit::bytes(host), ..self }
    }

    /// Gives blocks that were recorded without a memory pool one, as of a CubeCL stream: a freed slice serves its own
    /// size alone, until all spare slices go back to the driver.
    #[must_use]
    pub fn with_pool(self) -> Self {
        Self { pool: Some(Arena(0)), ..self }
    }

    fn rooms(&self) -> Rooms {
        let host = self.host.less(self.pager.ledger().held(Tier::Host));
        let disk = if self.host == Limit::NONE { Limit::bytes(0) } else { Limit::NONE };
        Rooms { host, disk, page: 1 }
    }

    /// Runs the recording; a single repeating step `times` over.
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
        if let Some(timeline) = &mut self.timeline {
            timeline.begins();
        }
        let carried = self.blocks.len();
        for _ in 0..times {
            recording.events[begins..].iter().try_for_each(|event| self.play(*event))?;
            self.carry(carried)?;
        }
        Ok(self)
    }

    /// Bytes moved in each step, and after the last.
    pub fn steps(&self) -> &[Moved] {
        &self.bytes.device.steps
    }

    /// Bytes of each step from disk (in) and to it (out).
    pub fn disk_steps(&self) -> &[Moved] {
        &self.bytes.disk.steps
    }

    /// Bytes of each step that the program read off the device.
    pub fn read_steps(&self) -> &[u64] {
        &self.bytes.read.steps
    }

    /// Bytes of each step made in host memory.
    pub fn given_steps(&self) -> &[u64] {
        &self.bytes.given.steps
    }

    /// How often in each step spare memory went back to the driver.
    pub fn trim_steps(&self) -> &[u64] {
        &self.bytes.trims.steps
    }

    /// Times of each step; empty without a machine.
    pub fn elapsed(&self) -> &[Elapsed] {
        self.timeline.as_ref().map_or(&[], |timeline| &timeline.steps)
    }

    /// The latest step; `None` without a machine.
    pub fn timeline(&self) -> Option<&StepTimeline> {
        self.timeline.as_ref().map(|timeline| &timeline.latest)
    }

    /// The pager, for its counters.
    pub fn pager(&self) -> &Pager {
        &self.pager
    }

    #[cfg(test)]
    pub(crate) fn number(&self, id: BlockId) -> Option<usize> {
        self.blocks.iter().position(|block| *block == Some(id))
    }

    #[cfg(test)]
    pub(crate) fn pager_mut(&mut self) -> &mut Pager {
        &mut self.pager
    }

    /// Begins the next round: roles pass to their next blocks; others are freed.
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

    pub(crate) fn play(&mut self, event: Event) -> Result<(), Stop> {
        match event {
            Event::Born { bytes, arena } => {
                let arena = self.pool.filter(|_| arena == Arena::UNPOOLED).unwrap_or(arena);
                let block = self.pager.insert(bytes, arena);
                self.blocks.push(Some(block));
            }
            Event::Operation { first, count, flops } => {
                let operands = &self.recording.operands[first..first + count];
                self.operands.clear();
                for operand in operands {
                    self.operands.push(self.blocks[operand.block].ok_or(unknown())?);
                }
                if !self.pager.begin(&self.operands)? {
                    self.take_steps()?;
                }
                self.operate(flops)?;
                for (operand, block) in operands.iter().zip(&self.operands) {
                    if operand.written {
                        self.pending.writing.take_if(|(id, _)| id == block);
                        self.pager.wrote(*block)?;
                    }
                }
            }
            Event::Written(block) => {
                let block = self.blocks[block].ok_or(unknown())?;
                // It was on the device when recorded, but may not be now.
                if self.pager.get(block).is_some_and(Block::is_on_device) {
                    self.pager.wrote(block)?;
                }
            }
            Event::WrittenInTier(block) => {
                let block = self.blocks[block].ok_or(unknown())?;
                let bytes = self.pager.get(block).map_or(0, |block| block.bytes);
                self.make_host_room(bytes)?;
                self.bytes.given.add(bytes);
                self.pending.writing.take_if(|(id, _)| *id == block);
                if let Some(timeline) = self.timeline.as_mut() {
                    timeline.is_given(bytes);
                }
                match self.pager.get(block).map(Block::place) {
                    Some(place) if place.is_on_device() => _ = self.pager.wrote(block)?,
                    _ => self.pager.wrote_on_host(block)?,
                }
            }
            Event::Freed(block) => {
                let block = self.blocks[block].take().ok_or(unknown())?;
                self.free(block)?;
            }
            Event::Read { block, bytes } => {
                let block = self.blocks[block].ok_or(unknown())?;
                let place = self.pager.get(block).map(Block::place);
                if matches!(place, Some(Place::Device { clean: None })) {
                    self.bytes.read.add(bytes);
                    if let Some(timeline) = &mut self.timeline {
                        timeline.reads(block, bytes);
                    }
                }
            }
            Event::Step => {
                self.pager.mark_step();
                self.bytes.end_step(&self.pager.counters());
                if let Some(timeline) = &mut self.timeline {
                    timeline.ends_step();
                }
            }
            Event::Begin | Event::Carried { .. } => {}
        }
        Ok(())
    }

    fn free(&mut self, block: BlockId) -> Result<(), Fault> {
        if let Some(timeline) = &mut self.timeline
            && let Some(end) = timeline.read_under_way(block)
            && let Some(token) = self.pager.discard(block)?
        {
            timeline.leaves(token, end);
            return Ok(());
        }
        self.pager.remove(block)
    }

    fn make_host_room(&mut self, bytes: u64) -> Result<(), Stop> {
        if self.host == Limit::NONE {
            return Ok(());
        }
        loop {
            self.land()?;
            let rooms = self.rooms();
            match self.pager.steps_to_host_room(bytes, rooms) {
                Ok(steps) if steps.is_empty() => return Ok(()),
                Ok(steps) => steps.into_iter().try_for_each(|step| self.take(step))?,
                Err(stop) => self.give_up_loading(stop)?,
            }
        }
    }

    /// Cancels the load in progress, which may hold the missing bytes.
    fn give_up_loading(&mut self, stop: Stop) -> Result<(), Stop> {
        match stop {
            Stop::Shortage(Shortage::TierFull { .. }) if let Some((token, _)) = self.pager.loading() => {
                self.pager.ended(token, false)?;
                Ok(())
            }
            stop => Err(stop),
        }
    }

    fn take_steps(&mut self) -> Result<(), Stop> {
        loop {
            self.land()?;
            let rooms = self.rooms();
            match self.pager.next_step(&|| rooms) {
                Ok(Step::Ready) => return Ok(()),
                Ok(step) => {
                    #[cfg(test)]
                    self.note("for", step);
                    self.take(step)?;
                }
                Err(stop) => self.give_up_loading(stop)?,
            }
        }
    }

    fn operate(&mut self, flops: u64) -> Result<(), Stop> {
        let Some(timeline) = &mut self.timeline else { return Ok(()) };
        timeline.waits_for(&self.operands);
        self.land()?;
        loop {
            let rooms = self.rooms();
            let Some(step) = self.pager.prefetch(Link::Device, &|| rooms) else { break };
            #[cfg(test)]
            self.note("beside", step);
            self.take(step)?;
        }
        self.load_ahead()?;
        self.write_ahead()?;
        let bytes = self.operands.iter().filter_map(|id| self.pager.get(*id)).map(|block| block.bytes).sum();
        if let Some(timeline) = &mut self.timeline {
            timeline.operates(flops, bytes, self.pager.ledger().resident());
        }
        Ok(())
    }

    fn write_ahead(&mut self) -> Result<(), Stop> {
        if self.host == Limit::NONE {
            return Ok(());
        }
        loop {
            let rooms = self.rooms();
            let Some(step) = self.pager.prefetch(Link::ToDisk, &|| rooms) else { return Ok(()) };
            let Step::WriteAhead { block } = step else { return Ok(()) };
            let bytes = self.size(block)?;
            let Some(timeline) = &mut self.timeline else { return Ok(()) };
            let begun = self.pending.writing.take_if(|(id, _)| *id == block);
            let left = begun.map_or(bytes, |(_, left)| left);
            let begins = timeline.writes_ahead(left);
            if begins < left {
                self.pending.writing = Some((block, left - begins));
                return Ok(());
            }
            self.complete(step)?;
        }
    }

    fn load_ahead(&mut self) -> Result<(), Stop> {
        if self.host == Limit::NONE {
            return Ok(());
        }
        loop {
            let rooms = self.rooms();
            let Some(step) = self.pager.prefetch(Link::FromDisk, &|| rooms) else { return Ok(()) };
            let Step::LoadAhead { block } = step else {
                self.take(step)?;
                continue;
            };
            if self.pager.loading().is_none() {
                let bytes = self.size(block)?;
                if !rooms.host.allows(bytes) {
                    return Ok(());
                }
                self.pager.started(step)?;
                self.pending.loading = bytes;
            }
            let Some(timeline) = &mut self.timeline else { return Ok(()) };
            self.pending.loading -= timeline.loads_ahead(self.pending.loading);
            if self.pending.loading > 0 || !timeline.has_loaded() {
                return Ok(());
            }
            self.complete(step)?;
        }
    }

    fn take(&mut self, step: Step) -> Result<(), Stop> {
        match step {
            Step::Ready => {}
            Step::Sweep => self.pager.swept(),
            Step::Trim => {
                self.bytes.trims.add(1);
                if let Some(timeline) = &mut self.timeline {
                    timeline.trims();
                }
                self.pager.trimmed();
            }
            Step::DropCopy { .. } | Step::WriteAhead { .. } => _ = self.complete(step)?,
            Step::Spill { block } => {
                let outcome = self.complete(step)?;
                let begun = self.pending.writing.take_if(|(id, _)| *id == block);
                if let Outcome::Spilled { bytes, written: true, .. } = outcome
                    && let Some(timeline) = &mut self.timeline
                {
                    timeline.spills(begun.map_or(bytes, |(_, left)| left));
                }
            }
            Step::Load { block } | Step::LoadAhead { block } => {
                let is_under_way = self.pager.loading().is_some_and(|(_, loading)| loading == block);
                let left = if is_under_way { self.pending.loading } else { self.size(block)? };
                self.complete(step)?;
                if let Some(timeline) = &mut self.timeline {
                    timeline.loads(left);
                }
            }
            Step::Evict { block, copy } => {
                let bytes = self.size(block)?;
                match &mut self.timeline {
                    Some(timeline) if copy.is_some() => {
                        timeline.starts_out(self.pager.started(step)?, bytes);
                    }
                    _ => _ = self.complete(step)?,
                }
            }
            Step::Bring { block, from } => {
                let bytes = self.size(block)?;
                self.complete(step)?;
                if let Some(timeline) = self.timeline.as_mut().filter(|_| from.is_some()) {
                    timeline.starts_back(block, bytes);
                }
            }
            Step::Wait(_) => {
                let timeline = self.timeline.as_mut();
                timeline.expect("without a machine every move has landed").waits();
                self.land()?;
            }
        }
        Ok(())
    }

    fn size(&self, block: BlockId) -> Result<u64, Fault> {
        self.pager.get(block).map(|block| block.bytes).ok_or(Fault::UnknownBlock(block))
    }

    fn complete(&mut self, step: Step) -> Result<Outcome, Fault> {
        let token = self.pager.started(step)?;
        self.pager.ended(token, true)
    }

    fn land(&mut self) -> Result<(), Fault> {
        while let Some(token) = self.timeline.as_mut().and_then(Timeline::landed) {
            self.pager.ended(token, true)?;
        }
        Ok(())
    }
}

fn unknown() -> Stop {
    Fault::UnknownBlock(BlockId { index: u32::MAX, generation: 0 }).into()
}
