//! The residency state machine: the only code that changes where a block is.
//!
//! ```text
//!              return_started              landed
//!   Nowhere ─────────────────▶ Returning ─────────▶ Device ◀──────┐ failed,
//!   Away(t) ◀───── failed ─────    │                  │           │ or an operation
//!      ▲                           │    evict_started ▼           │ names the block
//!      └────────────── landed ─────┼─────────────── Leaving ──────┘
//!                                  │                  │
//!               remove: at once from any place; bytes of a move count until it ends
//! ```
//!
//! A move is started and ends later, so that copies can fly while operations run; a door that completes at once
//! reports both ends one after the other. Until a move ends, its bytes count on both sides: device memory
//! that is being left is not free, and a slab that is being written is in use.
//!
//! *Dirty* and *clean* stay apart on the way out. A block that stays after all, because the copy failed or an
//! operation needed it first, is what it was before, and a copy that lands behind an operation that took the block
//! back counts only if nothing was written since.

use crate::Oversized;
use crate::ahead::Ahead;
use crate::block::{Arena, Block, BlockId, Place, Preference, Tier, Token};
use crate::counters::Counters;
use crate::fault::{Fault, Shortage, Stop, illegal};
use crate::furthest::Furthest;
use crate::ledger::{Ledger, Posting};
use crate::limit::Limit;
use crate::moves::{Direction, Fate, Moves, Outcome};
use crate::operation::{Operation, Target};
use crate::planner::Planner;
use crate::policy::{Policy, Recency};
use crate::raising_ahead::RaisingAhead;
use crate::recording::Recorder;
use crate::sinking_ahead::SinkingAhead;

/// Where every block of one device is, and what has to happen before an operation may run.
#[derive(Debug)]
pub struct Pager {
    pub(crate) slots: Vec<Slot>,
    free: Vec<u32>,
    pub(crate) ledger: Ledger,
    pub(crate) recency: Recency,
    pub(crate) planner: Option<Planner>,
    pub(crate) order: Furthest,
    pub(crate) ahead: Ahead,
    pub(crate) sinking_ahead: SinkingAhead,
    pub(crate) raising_ahead: RaisingAhead,
    /// Blocks with a preference.
    pub(crate) hinted: u64,
    pub(crate) oversized: Oversized,
    pub(crate) counters: Counters,
    pub(crate) operation: Operation,
    pub(crate) moves: Moves,
    /// Number of the operation in which dead blocks were last looked for.
    pub(crate) swept_at: u64,
    /// Blocks and bytes inserted since then.
    pub(crate) unswept: (u64, u64),
    /// Steps the program marked.
    steps: u64,
    /// [`place_new`](Self::place_new) treats blocks as spilling.
    pub(crate) expects_spilling: bool,
    /// How many blocks had left when the last two of them ended, the earlier one first.
    left: [u64; 2],
    pub(crate) recorder: Option<Box<Recorder>>,
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub generation: u32,
    pub block: Option<Block>,
}

impl Pager {
    /// A pager of no blocks.
    pub fn new(budget: Limit, policy: Policy, oversized: Oversized) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            ledger: Ledger::new(budget),
            recency: Recency::new(policy),
            planner: (policy == Policy::Planned).then(Planner::new),
            order: Furthest::default(),
            ahead: Ahead::default(),
            sinking_ahead: SinkingAhead::default(),
            raising_ahead: RaisingAhead::default(),
            hinted: 0,
            oversized,
            counters: Counters::default(),
            operation: Operation::none(),
            moves: Moves::default(),
            swept_at: 0,
            unswept: (0, 0),
            steps: 0,
            expects_spilling: false,
            left: [0; 2],
            recorder: None,
        }
    }

    /// Sums of bytes.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Changes the device budget. Blocks above a lower one leave when room is made next, at the latest before the
    /// next operation that needs any.
    pub fn set_budget(&mut self, budget: Limit) {
        self.ledger.set_budget(budget);
        self.order.sleep();
    }

    /// Forgets the peaks so far: from here on they are those of what is held now and later.
    pub fn reset_peaks(&mut self) {
        self.ledger.reset_peaks();
        self.counters.largest_operation = 0;
    }

    /// Counts of decisions.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Steps of the program completed, as [`mark_step`](Self::mark_step) told.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The program's step ends here. Where steps begin follows from their repetition, too; a mark makes it sure at once.
    pub fn mark_step(&mut self) {
        self.steps += 1;
        self.left = [self.left[1], self.counters.left()];
        self.note_step();
    }

    /// Makes [`place_new`](Self::place_new) treat blocks as spilling: for a recording without a budget, which is replayed under
    /// budgets that spill.
    pub fn expect_spilling(&mut self) {
        self.expects_spilling = true;
    }

    /// Whether the host holds contents of blocks, or any block left since the step before this one began.
    pub(crate) fn is_spilling(&self) -> bool {
        self.ledger.held(Tier::Host) > 0 || self.counters.left() > self.left[0]
    }

    /// The block, if it lives.
    pub fn get(&self, id: BlockId) -> Option<&Block> {
        let slot = self.slots.get(id.index as usize)?;
        slot.block.as_ref().filter(|_| slot.generation == id.generation)
    }

    /// How many operations ago the block was last used.
    pub fn age(&self, id: BlockId) -> Option<u64> {
        Some(self.operation.number - self.get(id)?.last_use)
    }

    pub(crate) fn block(&self, id: BlockId) -> Result<&Block, Fault> {
        self.get(id).ok_or(Fault::UnknownBlock(id))
    }

    pub(crate) fn block_mut(&mut self, id: BlockId) -> Result<&mut Block, Fault> {
        let slot = self.slots.get_mut(id.index as usize).ok_or(Fault::UnknownBlock(id))?;
        slot.block.as_mut().filter(|_| slot.generation == id.generation).ok_or(Fault::UnknownBlock(id))
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = (BlockId, &Block)> + Clone {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            Some((BlockId { index: index as u32, generation: slot.generation }, slot.block.as_ref()?))
        })
    }

    pub(crate) fn live_blocks(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64
    }

    // ---- blocks come and go ---------------------------------------------------------------------------

    /// Registers a block of `bytes`, which has no memory anywhere until its first use.
    pub fn insert(&mut self, bytes: u64, arena: Arena) -> BlockId {
        self.unswept = (self.unswept.0 + 1, self.unswept.1.saturating_add(bytes));
        let block = Block {
            bytes,
            arena,
            place: Place::Nowhere,
            defined: false,
            last_use: self.operation.number,
            below: false,
            pinned: false,
            preference: Preference::default(),
            stuck_in: 0,
            ahead: false,
            moving: None,
        };
        let id = self.enter(block);
        self.note_born(id, bytes, arena);
        id
    }

    fn enter(&mut self, block: Block) -> BlockId {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.generation = slot.generation.wrapping_add(1);
            slot.block = Some(block);
            return BlockId { index, generation: slot.generation };
        }
        self.slots.push(Slot { generation: 0, block: Some(block) });
        BlockId { index: (self.slots.len() - 1) as u32, generation: 0 }
    }

    /// Forgets a block. Its bytes are free on all tiers, those of a move under way as soon as it ends.
    pub fn remove(&mut self, id: BlockId) -> Result<(), Fault> {
        let block = *self.block(id)?;
        if let Some(token) = block.moving {
            self.moves.set_fate(token, Fate::Removed { clean: block.place.tier(), below: block.below });
        } else {
            let posting = Posting::of(block.bytes, block.arena).loses(block.place.tier());
            let on_device = block.place.is_on_device();
            self.ledger.post(if on_device { posting.departs() } else { posting })?;
            self.forget_below(id)?;
        }
        self.slots[id.index as usize].block = None;
        self.free.push(id.index);
        self.count_hint(block.preference, Preference::Policy);
        self.note_freed(id);
        Ok(())
    }

    /// Keeps a block that is on the device there for the rest of its life.
    pub fn pin(&mut self, id: BlockId) -> Result<(), Fault> {
        self.expect(id, "pinned", Place::is_on_device)?;
        self.block_mut(id)?.pinned = true;
        Ok(())
    }

    /// Notes where the program would like the block to be, for as long as it lives or until told otherwise.
    pub fn prefer(&mut self, id: BlockId, preference: Preference) -> Result<(), Fault> {
        let before = std::mem::replace(&mut self.block_mut(id)?.preference, preference);
        self.count_hint(before, preference);
        Ok(())
    }

    // ---- operations -----------------------------------------------------------------------------------

    /// Starts an operation over `operands`, which may repeat. One that is leaving is taken back. True if all
    /// are on the device, so that no step is left to be taken.
    pub fn begin(&mut self, operands: &[BlockId]) -> Result<bool, Stop> {
        let (wanted, all_here) = self.name_operands(operands)?;
        self.note_operation();
        self.counters.operations += 1;
        self.counters.largest_operation = self.counters.largest_operation.max(wanted);
        if !all_here && self.oversized == Oversized::Refuse && !self.ledger.budget().allows(wanted) {
            return Err(Shortage::WorkingSet { wanted, pinned: 0 }.into());
        }
        Ok(all_here)
    }

    /// Starts bringing `blocks` ahead of their use. Not an operation of the program: it is not counted, and no
    /// budget is too small for it.
    pub fn begin_ahead(&mut self, blocks: &[BlockId]) -> Result<(), Stop> {
        self.name_operands(blocks).map(drop)
    }

    /// Returns the bytes of all operands, and whether all are on the device.
    fn name_operands(&mut self, operands: &[BlockId]) -> Result<(u64, bool), Stop> {
        for id in operands {
            self.block(*id)?;
        }
        let now = self.operation.number + 1;
        let mut named = std::mem::take(self.operation.next());
        let (mut wanted, mut all_here) = (0u64, true);
        for &id in operands {
            let block = self.block_mut(id)?;
            if block.last_use == now {
                continue;
            }
            let last_use = std::mem::replace(&mut block.last_use, now);
            block.ahead = false;
            let (bytes, place) = (block.bytes, block.place);
            wanted = wanted.saturating_add(bytes);
            named.push(id);
            match place {
                Place::Leaving { clean } => self.rescue(id, clean)?,
                Place::Away(_) if !self.is_planning() => self.learn(last_use),
                _ => {}
            }
            all_here &= self.block(id)?.place.is_on_device();
        }
        let arrived = if all_here { named.len() } else { 0 };
        self.operation.target = Target::Operands { blocks: named, arrived };
        Ok((wanted, all_here))
    }

    /// Starts making room for `bytes` that will be wanted soon. Not an operation of the program: it is not
    /// counted, and ends when there is room.
    pub fn begin_room(&mut self, bytes: u64, arena: Arena) {
        self.operation.next();
        self.operation.target = Target::Room { bytes, arena };
    }

    /// Whether the operation begun last names the block.
    pub fn is_operand(&self, id: BlockId) -> bool {
        self.operation.operands().contains(&id)
    }

    fn rescue(&mut self, id: BlockId, clean: Option<Tier>) -> Result<(), Fault> {
        let block = self.block_mut(id)?;
        block.place = Place::Device { clean };
        if let Some(token) = block.moving {
            self.moves.set_fate(token, Fate::Rescued);
        }
        Ok(())
    }

    /// Shows the policy how long a block that has to come back had been unused, compared with those that
    /// stay away.
    fn learn(&mut self, last_use: u64) {
        let (mut older, mut away) = (0, 0);
        for (_, block) in self.live().filter(|(_, block)| matches!(block.place, Place::Away(_))) {
            away += 1;
            older += usize::from(block.last_use < last_use);
        }
        self.recency.restored(older, away);
    }

    // ---- moves ----------------------------------------------------------------------------------------

    /// The block leaves the device from now on; into the host tier, if it needs a copy.
    pub fn evict_started(&mut self, id: BlockId) -> Result<Token, Fault> {
        let block = *self.block(id)?;
        let Place::Device { clean } = block.place else { return Err(illegal("evicted", id, &block)) };
        if block.pinned || block.moving.is_some() || block.last_use == self.operation.number {
            return Err(illegal("evicted while it is needed", id, &block));
        }
        let copy = block.copied_to();
        self.ledger.post(Posting::of(block.bytes, block.arena).gains(copy))?;
        if std::mem::take(&mut self.block_mut(id)?.ahead) {
            self.counters.brought_in_vain += 1;
        }
        let token = self.moves.start(id, &block, Direction::Out { copy });
        self.set(id, Place::Leaving { clean }, Some(token))?;
        Ok(token)
    }

    /// Device memory was taken for the block, and its contents are on their way if it has any. The bytes
    /// count from here on.
    pub fn return_started(&mut self, id: BlockId) -> Result<Token, Fault> {
        let block = *self.block(id)?;
        let from = match block.place {
            Place::Nowhere => None,
            Place::Away(tier @ Tier::Host) => Some(tier),
            _ => return Err(illegal("returned", id, &block)),
        };
        self.ledger.post(Posting::of(block.bytes, block.arena).arrives())?;
        self.operation.driver = self.operation.driver.appeased();
        let token = self.moves.start(id, &block, Direction::In { from });
        self.set(id, Place::Returning { from }, Some(token))?;
        Ok(token)
    }

    /// The move is done.
    pub fn landed(&mut self, token: Token) -> Result<Outcome, Fault> {
        let moving = self.moves.get(token)?;
        let (block, bytes) = (moving.block, moving.bytes);
        let posting = Posting::of(bytes, moving.arena);
        let outcome = match (moving.direction, moving.fate) {
            (_, Fate::Removed { below, .. }) => {
                self.ledger.post(posting.departs().loses(moving.held_by()))?;
                self.ledger.post(posting.loses(below.then_some(Tier::Disk)))?;
                Outcome::Removed { block }
            }
            (Direction::Out { copy }, Fate::Awaited) => {
                let tier = copy.or(self.block(block)?.place.tier());
                self.ledger.post(posting.departs())?;
                self.set(block, tier.map_or(Place::Nowhere, Place::Away), None)?;
                match copy {
                    Some(_) => self.counters.evictions += 1,
                    None => self.counters.clean_drops += 1,
                }
                Outcome::Left { block, bytes, copied: copy }
            }
            (Direction::Out { copy }, fate) => {
                let current = fate == Fate::Rescued;
                let clean = copy.filter(|_| current).or(self.block(block)?.place.tier());
                self.ledger.post(posting.loses(copy.filter(|_| !current)))?;
                self.set(block, Place::Device { clean }, None)?;
                self.enter_in_order(block);
                Outcome::Rescued { block, bytes, copied: copy, current }
            }
            (Direction::In { from }, _) => {
                self.set(block, Place::Device { clean: from }, None)?;
                self.counters.restores += u64::from(from.is_some());
                self.enter_in_order(block);
                Outcome::Returned { block, bytes, from }
            }
        };
        match moving.direction {
            Direction::Out { copy: Some(_) } => self.counters.bytes_out += bytes,
            Direction::In { from: Some(_) } => self.counters.bytes_in += bytes,
            _ => {}
        }
        self.moves.end(token);
        Ok(outcome)
    }

    /// The move came to nothing. The block is where it was before, dirty or clean as it was; one that could
    /// not leave is asked again only after all others. The allocator keeps the memory taken for one that
    /// could not return.
    pub fn failed(&mut self, token: Token) -> Result<Outcome, Fault> {
        let moving = self.moves.get(token)?;
        let block = moving.block;
        let posting = Posting::of(moving.bytes, moving.arena);
        let outcome = match (moving.direction, moving.fate) {
            (_, Fate::Removed { below, .. }) => {
                self.ledger.post(posting.departs().loses(moving.held_by()))?;
                self.ledger.post(posting.loses(below.then_some(Tier::Disk)))?;
                Outcome::Removed { block }
            }
            (Direction::Out { copy }, _) => {
                let clean = self.block(block)?.place.tier();
                self.ledger.post(posting.loses(copy))?;
                self.set(block, Place::Device { clean }, None)?;
                let now = self.operation.number;
                self.block_mut(block)?.stuck_in = now;
                self.enter_in_order(block);
                Outcome::Stayed { block }
            }
            (Direction::In { from }, _) => {
                self.ledger.post(posting.departs())?;
                self.set(block, from.map_or(Place::Nowhere, Place::Away), None)?;
                let now = self.operation.number;
                let block_mut = self.block_mut(block)?;
                (block_mut.stuck_in, block_mut.ahead) = (now, false);
                Outcome::NotReturned { block }
            }
        };
        self.moves.end(token);
        Ok(outcome)
    }

    // ---- contents -------------------------------------------------------------------------------------

    /// The operation (or the program) changed the block's contents on the device. Names the tier whose copy
    /// became stale by it, for the door to throw away.
    pub fn wrote(&mut self, id: BlockId) -> Result<Option<Tier>, Fault> {
        let block = *self.block(id)?;
        let Place::Device { clean } = block.place else { return Err(illegal("written", id, &block)) };
        self.ledger.post(Posting::of(block.bytes, block.arena).loses(clean))?;
        self.forget_below(id)?;
        if let Some(token) = block.moving {
            self.moves.overwritten(token);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.wrote(id.index);
        }
        if let Some(planner) = &mut self.planner {
            planner.wrote(id);
        }
        let block = self.block_mut(id)?;
        block.defined = true;
        block.place = Place::Device { clean: None };
        Ok(clean)
    }

    /// The block's contents were put into a tier, and only there.
    pub fn wrote_in_tier(&mut self, id: BlockId, tier: Tier) -> Result<(), Fault> {
        let block = *self.block(id)?;
        let posting = Posting::of(block.bytes, block.arena);
        match block.place {
            Place::Nowhere => self.ledger.post(posting.gains(Some(tier)))?,
            Place::Away(there) if there == tier => self.forget_below(id)?,
            Place::Away(there) => self.ledger.post(posting.gains(Some(tier)).loses(Some(there)))?,
            _ => return Err(illegal("written in a tier", id, &block)),
        }
        self.raise_ends(id);
        if let Some(recorder) = &mut self.recorder {
            recorder.wrote_in_tier(id.index);
        }
        let block = self.block_mut(id)?;
        block.defined = true;
        block.place = Place::Away(tier);
        Ok(())
    }

    /// The tier's copy of a block was thrown away: the host's of one on the device, or the disk's of one that is elsewhere.
    pub fn copy_dropped(&mut self, id: BlockId, tier: Tier) -> Result<(), Fault> {
        let block = *self.block(id)?;
        if block.below && tier == Tier::Disk {
            return self.forget_below(id);
        }
        if block.place != (Place::Device { clean: Some(tier) }) {
            return Err(illegal("stripped of its copy", id, &block));
        }
        self.ledger.post(Posting::of(block.bytes, block.arena).loses(Some(tier)))?;
        self.block_mut(id)?.loses_copy(tier);
        Ok(())
    }

    fn set(&mut self, id: BlockId, place: Place, moving: Option<Token>) -> Result<(), Fault> {
        let block = self.block_mut(id)?;
        (block.place, block.moving) = (place, moving);
        Ok(())
    }

    fn expect(&self, id: BlockId, attempted: &'static str, legal: fn(Place) -> bool) -> Result<(), Fault> {
        let block = self.block(id)?;
        if legal(block.place) { Ok(()) } else { Err(illegal(attempted, id, block)) }
    }
}
