//! The pager's interface for adapters.

use crate::Oversized;
use crate::block::{Arena, Block, BlockId, Place, Preference, Tier, Token};
use crate::blocks::Blocks;
use crate::copies::TierSet;
use crate::counters::Counters;
use crate::eviction::Eviction;
use crate::fault::{Fault, Shortage, Stop, illegal};
use crate::forecast::Course;
use crate::ledger::Ledger;
use crate::limit::Limit;
use crate::listeners::Listeners;
use crate::marked_steps::MarkedSteps;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::prefetch::{Link, Prefetch};
use crate::recording::Recorder;
use crate::request::Request;
use crate::room::Room;
use crate::rooms::Rooms;
use crate::steps::Step;
use crate::view::View;

/// One device's blocks, and the moves for its operations.
#[derive(Debug)]
pub struct Pager {
    blocks: Blocks,
    request: Request,
    eviction: Eviction,
    prefetch: Prefetch,
    oversized: Oversized,
    counters: Counters,
    steps: MarkedSteps,
    expects_spilling: bool,
    listeners: Listeners,
}

impl Pager {
    /// Creates a pager without blocks.
    pub fn new(budget: Limit, policy: Policy, oversized: Oversized) -> Self {
        Self {
            blocks: Blocks::new(budget),
            request: Request::none(),
            eviction: Eviction::new(policy),
            prefetch: Prefetch::default(),
            oversized,
            counters: Counters::default(),
            steps: MarkedSteps::default(),
            expects_spilling: false,
            listeners: Listeners::new(policy),
        }
    }

    fn view(&self) -> View<'_> {
        View { blocks: &self.blocks, request: &self.request, forecast: self.listeners.forecast() }
    }

    /// Sums of bytes.
    pub fn ledger(&self) -> &Ledger {
        self.blocks.ledger()
    }

    /// Changes the device budget. Excess blocks leave when room is next made.
    pub fn set_budget(&mut self, budget: Limit) {
        self.blocks.set_budget(budget);
        self.eviction.forget_order();
    }

    /// Sets peaks to the bytes held now.
    pub fn reset_peaks(&mut self) {
        self.blocks.reset_peaks();
        self.counters.memory.largest_operation = 0;
    }

    /// Counts of decisions.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Steps that [`mark_step`](Self::mark_step) marked.
    pub fn steps(&self) -> u64 {
        self.steps.count()
    }

    /// Ends a step of the program. Without marks the forecast finds steps later.
    pub fn mark_step(&mut self) {
        self.steps.end(self.counters.left());
        self.listeners.step();
    }

    /// Makes [`place_new`](Self::place_new) assume spilling, for recordings without a budget.
    pub fn expect_spilling(&mut self) {
        self.expects_spilling = true;
    }

    fn is_spilling(&self) -> bool {
        self.blocks.ledger().held(Tier::Host) > 0 || self.steps.spill(self.counters.left())
    }

    /// The block, unless removed.
    pub fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id)
    }

    /// Operations since the last use of the block.
    pub fn age(&self, id: BlockId) -> Option<u64> {
        Some(self.request.number() - self.get(id)?.last_use)
    }

    // ---- blocks come and go

    /// Registers a block of `bytes`. It has no memory before its first use.
    pub fn insert(&mut self, bytes: u64, arena: Arena) -> BlockId {
        self.request.note_insertion(bytes);
        let id = self.blocks.insert(bytes, arena, self.request.number());
        self.listeners.born(id, bytes, arena);
        id
    }

    /// Removes a block. Its bytes are free at once, or when its move to or from the device ends.
    pub fn remove(&mut self, id: BlockId) -> Result<(), Fault> {
        self.blocks.remove(id)?;
        self.listeners.freed(id);
        Ok(())
    }

    /// Removes a block on the device whose memory a copy still uses. Its bytes are free when the returned move ends.
    /// `None`, and nothing is done, if it is in a move.
    pub fn discard(&mut self, id: BlockId) -> Result<Option<Token>, Fault> {
        Ok(self.blocks.discard(id)?.inspect(|_| self.listeners.freed(id)))
    }

    /// Keeps a block on the device, where it must be, for life.
    pub fn pin(&mut self, id: BlockId) -> Result<(), Fault> {
        self.blocks.pin(id)
    }

    /// Sets the program's preferred tier.
    pub fn prefer(&mut self, id: BlockId, preference: Preference) -> Result<(), Fault> {
        if self.blocks.prefer(id, preference)? {
            self.enter_in_order(id);
            self.prefetch.device.end_schedule();
        }
        Ok(())
    }

    // ---- operations

    /// Starts an operation over `operands`, with repeats or without. Leaving operands are kept. Returns whether all are
    /// on the device.
    pub fn begin(&mut self, operands: &[BlockId]) -> Result<bool, Stop> {
        let (wanted, all_here) = self.name_operands(operands)?;
        if self.blocks.ledger().has_refusals() && self.request.driver_has_rested() {
            self.change_limit(Ledger::forget_refusals);
        }
        self.note_operation();
        self.counters.operations += 1;
        self.counters.memory.largest_operation = self.counters.memory.largest_operation.max(wanted);
        if !all_here && self.oversized == Oversized::Refuse && !self.blocks.ledger().budget().allows(wanted) {
            return Err(Shortage::WorkingSet { wanted, pinned: 0 }.into());
        }
        Ok(all_here)
    }

    /// Starts to bring `blocks` ahead. Not counted as an operation, nor limited by the budget.
    pub fn begin_ahead(&mut self, blocks: &[BlockId]) -> Result<(), Stop> {
        self.name_operands(blocks).map(drop)
    }

    fn name_operands(&mut self, operands: &[BlockId]) -> Result<(u64, bool), Stop> {
        for id in operands {
            self.blocks.block(*id)?;
        }
        let now = self.request.number() + 1;
        let mut named = self.request.next();
        let (mut wanted, mut all_here) = (0u64, true);
        for &id in operands {
            let Some(used) = self.blocks.note_use(id, now)? else { continue };
            wanted = wanted.saturating_add(used.bytes);
            named.push(id);
            if !used.is_on_device {
                all_here = false;
                self.note_return(id, used.last_use);
            }
        }
        let arrived = if all_here { named.len() } else { 0 };
        self.request.name(named, arrived);
        Ok((wanted, all_here))
    }

    /// Starts to make room for `bytes`. Not counted as an operation.
    pub fn begin_room(&mut self, bytes: u64, arena: Arena) {
        self.request.next_room(bytes, arena);
    }

    /// Whether the latest operation names the block.
    pub fn is_operand(&self, id: BlockId) -> bool {
        self.request.operands().contains(&id)
    }

    fn note_return(&mut self, id: BlockId, last_use: u64) {
        let is_away = |block: &Block| matches!(block.place(), Place::Away(_));
        let view = View { blocks: &self.blocks, request: &self.request, forecast: self.listeners.forecast() };
        if view.known().is_none() && self.blocks.get(id).is_some_and(is_away) {
            self.eviction.note_return(view, last_use);
        }
    }

    fn note_operation(&mut self) {
        let Some(course) = self.listeners.operation(&self.blocks, &self.request) else { return };
        self.counters.ahead.predicted += u64::from(matches!(course, Course::Predicted | Course::Larger));
        self.counters.ahead.diverged += u64::from(matches!(course, Course::Changed { lost: true, .. }));
        let anew = matches!(course, Course::Changed { found: true, .. });
        let view = View { blocks: &self.blocks, request: &self.request, forecast: self.listeners.forecast() };
        self.eviction.enter_operands(view, anew);
        self.prefetch.device.note_course(course);
    }

    /// The next step of the latest operation; call again after each report. `rooms` returns the bytes left below the
    /// device, and is called only when a block must leave.
    pub fn next_step(&mut self, rooms: &dyn Fn() -> Rooms) -> Result<Step, Stop> {
        let mut room = Room {
            blocks: &mut self.blocks,
            request: &mut self.request,
            forecast: self.listeners.forecast(),
            eviction: &mut self.eviction,
            ahead: &mut self.prefetch.device,
            oversized: self.oversized,
            over_budget: &mut self.counters.memory.over_budget,
        };
        room.next_step(rooms)
    }

    /// Enables moves ahead between host and device, for asynchronous adapters.
    pub fn look_ahead(&mut self, enabled: bool) {
        self.prefetch.device.enable(enabled);
    }

    /// Whether moves ahead are made now.
    pub fn is_looking_ahead(&self) -> bool {
        self.prefetch.device.is_enabled() && self.view().known().is_some()
    }

    /// An optional step for later operations. `rooms` as for [`next_step`](Self::next_step).
    pub fn prefetch(&mut self, link: Link, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        let view = View { blocks: &self.blocks, request: &self.request, forecast: self.listeners.forecast() };
        let (left, spilled) = (self.counters.left(), self.counters.disk.spilled);
        let step = match link {
            Link::Device => self.prefetch.device.next(view, left, rooms),
            Link::FromDisk => self.prefetch.loads.next(view, rooms),
            Link::ToDisk => {
                let block = self.prefetch.writes.next(view, spilled, rooms);
                block.map(|block| Step::WriteAhead { block })
            }
        };
        match step? {
            Step::Evict { .. } => self.counters.ahead.left_ahead += 1,
            Step::Bring { block, .. } => {
                self.counters.ahead.brought_ahead += 1;
                self.blocks.set_ahead(block, true).ok()?;
            }
            _ => {}
        }
        step
    }

    /// The next steps to load a block that only the disk has.
    pub fn steps_to_host(&self, block: BlockId, rooms: Rooms) -> Result<Vec<Step>, Stop> {
        self.view().steps_to_host(block, rooms)
    }

    /// All steps, in order, that make room on the host for `bytes` of the program's own; while moves run, only the wait
    /// for the oldest. Dead blocks must have been [swept](Self::swept).
    ///
    /// # Errors
    /// [`Shortage::TierFull`] if the steps do not suffice. Take none then.
    pub fn steps_to_host_room(&self, bytes: u64, rooms: Rooms) -> Result<Vec<Step>, Stop> {
        self.view().steps_to_host_room(bytes, rooms)
    }

    /// At most `count` blocks that only the disk has, with a known next use, soonest first.
    pub fn soon_from_disk(&self, count: usize) -> Vec<BlockId> {
        self.view().soon_from_disk(count)
    }

    /// The block being loaded from disk, and its token.
    pub fn loading(&self) -> Option<(Token, BlockId)> {
        self.blocks.loading()
    }

    /// Forgets the chosen loads ahead: their room is gone.
    pub fn forget_loads(&mut self) {
        self.prefetch.loads.forget();
    }

    // ---- moves

    /// Reports the start of a move that [`next_step`](Self::next_step) or [`prefetch`](Self::prefetch) named. A running
    /// load keeps its token.
    pub fn started(&mut self, step: Step) -> Result<Token, Fault> {
        match step {
            Step::Evict { block: id, copy } => {
                let block = *self.blocks.block(id)?;
                let is_needed = block.pinned || block.last_use == self.request.number();
                if is_needed || block.copies.moving().is_some() {
                    return Err(illegal("evicted while it is needed", id, &block));
                }
                let token = self.blocks.start(id, copy, Some(Tier::Device), "evicted")?;
                self.counters.ahead.brought_in_vain += u64::from(self.blocks.set_ahead(id, false)?);
                Ok(token)
            }
            Step::Bring { block, .. } => {
                let token = self.blocks.start(block, Some(Tier::Device), None, "brought")?;
                self.request.appease_driver();
                Ok(token)
            }
            Step::DropCopy { block: id, tier } => {
                let block = *self.blocks.block(id)?;
                if tier == Tier::Device || (tier == Tier::Host && !block.is_on_device()) {
                    return Err(illegal("stripped of its copy", id, &block));
                }
                self.blocks.start(id, None, Some(tier), "stripped of its copy")
            }
            Step::Spill { block: id } => {
                let block = *self.blocks.block(id)?;
                if !block.rests_on_host() {
                    return Err(illegal("spilled to disk", id, &block));
                }
                let to = (!block.is_on_disk()).then_some(Tier::Disk);
                self.blocks.start(id, to, Some(Tier::Host), "spilled to disk")
            }
            Step::Load { block } | Step::LoadAhead { block } => {
                let token = match self.blocks.loading() {
                    Some((token, loading)) if loading == block => token,
                    Some(_) if matches!(step, Step::LoadAhead { .. }) => {
                        let attempted = "loaded ahead beside another block";
                        return Err(illegal(attempted, block, self.blocks.block(block)?));
                    }
                    _ => self.blocks.start(block, Some(Tier::Host), None, "loaded from disk")?,
                };
                self.blocks.set_ahead(block, matches!(step, Step::LoadAhead { .. }))?;
                Ok(token)
            }
            Step::WriteAhead { block } => {
                self.blocks.start(block, Some(Tier::Disk), None, "written to disk ahead")
            }
            Step::Sweep | Step::Trim | Step::Wait(_) | Step::Ready => Err(Fault::NoMove),
        }
    }

    /// Reports the end of a move. A failure changes nothing, but a block that could not leave is tried again last. The
    /// allocator keeps the memory of one that could not come.
    pub fn ended(&mut self, token: Token, succeeded: bool) -> Result<Outcome, Fault> {
        let ended = self.blocks.end(token, succeeded)?;
        if succeeded {
            self.counters.note_bytes(&ended);
        }
        let is_on_device =
            ended.frees == Some(Tier::Host) && self.get(ended.id).is_some_and(Block::is_on_device);
        let outcome = Outcome::of(&ended, succeeded, is_on_device);
        self.note_end(outcome)?;
        Ok(outcome)
    }

    fn note_end(&mut self, outcome: Outcome) -> Result<(), Fault> {
        let now = self.request.number();
        match outcome {
            Outcome::Left { copied: Some(_), .. } => self.counters.link.evictions += 1,
            Outcome::Left { copied: None, .. } => self.counters.link.clean_drops += 1,
            Outcome::Stayed { block } => {
                self.blocks.note_failure(block, now)?;
                self.enter_in_order(block);
            }
            Outcome::Rescued { block, .. } => self.enter_in_order(block),
            Outcome::Returned { block, from, .. } => {
                self.counters.link.restores += u64::from(from.is_some());
                self.enter_in_order(block);
            }
            Outcome::NotReturned { block } => {
                self.blocks.note_failure(block, now)?;
                self.blocks.set_ahead(block, false)?;
            }
            Outcome::Loaded { block, .. } => {
                self.counters.disk.loaded += 1;
                self.counters.disk.loaded_ahead += u64::from(self.blocks.set_ahead(block, false)?);
            }
            Outcome::Spilled { .. } => self.counters.disk.spilled += 1,
            Outcome::WrittenAhead { .. } => self.counters.disk.written_ahead += 1,
            Outcome::Unmoved { .. } => self.prefetch.loads.forget(),
            Outcome::Dropped { .. } | Outcome::Removed { .. } => {}
        }
        Ok(())
    }

    fn enter_in_order(&mut self, id: BlockId) {
        let view = View { blocks: &self.blocks, request: &self.request, forecast: self.listeners.forecast() };
        self.eviction.enter(view, id);
    }

    // ---- contents

    /// Reports new contents on the device. Returns the tiers with stale copies, for the adapter to drop.
    pub fn wrote(&mut self, id: BlockId) -> Result<TierSet, Fault> {
        let stale = self.blocks.wrote(id, Tier::Device)?;
        self.listeners.wrote(id);
        Ok(stale)
    }

    /// Reports new contents in host memory alone.
    pub fn wrote_on_host(&mut self, id: BlockId) -> Result<(), Fault> {
        self.blocks.wrote(id, Tier::Host)?;
        self.listeners.wrote_on_host(id);
        Ok(())
    }

    // ---- reports

    /// Reports that no dead block is left.
    pub fn swept(&mut self) {
        self.request.note_sweep();
    }

    /// Reports that the allocator holds no spare slice.
    pub fn trimmed(&mut self) {
        self.counters.memory.trims += 1;
        self.blocks.trim();
        self.request.appease_driver();
    }

    /// Reports that the driver refused `bytes` for the block to bring.
    pub fn device_refused(&mut self, bytes: u64) {
        self.counters.memory.device_refusals += 1;
        self.request.note_refusal();
        self.change_limit(|ledger| ledger.note_refusal(bytes));
    }

    fn change_limit(&mut self, change: impl FnOnce(&mut Ledger)) {
        self.blocks.change_limit(change);
        self.prefetch.device.end_schedule();
    }

    // ---- questions

    /// The tier for new data. Data on the host evicts nothing and needs no copy to leave. It starts there if the device
    /// lacks room, or if blocks spill and the program prefers the host.
    pub fn place_new(&self, bytes: u64, arena: Arena, preference: Preference) -> Tier {
        let prefers_host = preference == Preference::Host && (self.expects_spilling || self.is_spilling());
        if prefers_host || !self.blocks.ledger().has_room(bytes, arena) { Tier::Host } else { Tier::Device }
    }

    /// Whether to sweep, for adapters without reports of drops. Bounds the device to the live blocks, a small part
    /// more, and one block.
    pub fn sweep_pays(&self) -> bool {
        self.request.sweep_pays(self.blocks.count(), self.blocks.ledger().resident())
    }

    /// Whether the allocator holds far more than the peak use, as with changing sizes: a spare slice serves its own
    /// size.
    pub fn keeps_spare_memory(&self) -> bool {
        self.blocks.ledger().keeps_spare_memory()
    }

    /// The blocks that hold most bytes, largest first.
    pub fn largest(&self, count: usize) -> Vec<BlockId> {
        let holders = self.blocks.live().filter(|(_, block)| block.place() != Place::Nowhere);
        let mut blocks: Vec<_> = holders.map(|(id, block)| (block.bytes, id)).collect();
        blocks.sort_by_key(|(bytes, id)| (std::cmp::Reverse(*bytes), id.index));
        blocks.truncate(count);
        blocks.into_iter().map(|(_, id)| id).collect()
    }

    // ---- recordings

    /// Starts a [`Recording`](crate::Recording). No block may exist yet.
    pub fn record(&mut self) {
        self.listeners.record();
    }

    /// The recorder, while a recording is made.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.listeners.recorder()
    }

    /// Ends the recording and drops the part not taken.
    pub fn stop_recording(&mut self) {
        self.listeners.stop_recording();
    }

    /// Whether writes matter: while recording or spilling. Otherwise an adapter may report all operands as
    /// [`wrote`](Self::wrote).
    pub fn needs_writes(&self) -> bool {
        self.listeners.is_recording() || self.is_spilling()
    }
}
