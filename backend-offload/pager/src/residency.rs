//! The pager's façade: blocks, operations and moves, as the door reports them.

use crate::Oversized;
use crate::ahead::Ahead;
use crate::block::{Arena, Block, BlockId, Place, Preference, Tier, Token};
use crate::blocks::{Blocks, Ended};
use crate::copies::{Fate, TierSet};
use crate::counters::Counters;
use crate::fault::{Fault, Shortage, Stop, illegal};
use crate::furthest::Furthest;
use crate::ledger::Ledger;
use crate::limit::Limit;
use crate::operation::{Operation, Target};
use crate::outcome::Outcome;
use crate::planner::Planner;
use crate::policy::{Policy, Recency};
use crate::raising_ahead::RaisingAhead;
use crate::recording::Recorder;
use crate::sinking_ahead::SinkingAhead;
use crate::steps::Step;

/// Where every block of one device is, and what has to happen before an operation may run.
#[derive(Debug)]
pub struct Pager {
    pub(crate) blocks: Blocks,
    pub(crate) recency: Recency,
    pub(crate) planner: Option<Planner>,
    pub(crate) order: Furthest,
    pub(crate) ahead: Ahead,
    pub(crate) sinking_ahead: SinkingAhead,
    pub(crate) raising_ahead: RaisingAhead,
    pub(crate) oversized: Oversized,
    pub(crate) counters: Counters,
    pub(crate) operation: Operation,
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

impl Pager {
    /// A pager of no blocks.
    pub fn new(budget: Limit, policy: Policy, oversized: Oversized) -> Self {
        Self {
            blocks: Blocks::new(budget),
            recency: Recency::new(policy),
            planner: (policy == Policy::Planned).then(Planner::new),
            order: Furthest::default(),
            ahead: Ahead::default(),
            sinking_ahead: SinkingAhead::default(),
            raising_ahead: RaisingAhead::default(),
            oversized,
            counters: Counters::default(),
            operation: Operation::none(),
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
        self.blocks.ledger()
    }

    /// Changes the device budget. Blocks above a lower one leave when room is made next, at the latest before the
    /// next operation that needs any.
    pub fn set_budget(&mut self, budget: Limit) {
        self.blocks.set_budget(budget);
        self.order.sleep();
    }

    /// Forgets the peaks so far: from here on they are those of what is held now and later.
    pub fn reset_peaks(&mut self) {
        self.blocks.reset_peaks();
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
        self.blocks.ledger().held(Tier::Host) > 0 || self.counters.left() > self.left[0]
    }

    /// The block, if it lives.
    pub fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id)
    }

    /// How many operations ago the block was last used.
    pub fn age(&self, id: BlockId) -> Option<u64> {
        Some(self.operation.number - self.get(id)?.last_use)
    }

    // ---- blocks come and go ---------------------------------------------------------------------------

    /// Registers a block of `bytes`, which has no memory anywhere until its first use.
    pub fn insert(&mut self, bytes: u64, arena: Arena) -> BlockId {
        self.unswept = (self.unswept.0 + 1, self.unswept.1.saturating_add(bytes));
        let id = self.blocks.insert(bytes, arena, self.operation.number);
        self.note_born(id, bytes, arena);
        id
    }

    /// Forgets a block. Its bytes are free on all tiers, those of a move under way as soon as it ends.
    pub fn remove(&mut self, id: BlockId) -> Result<(), Fault> {
        self.blocks.remove(id)?;
        self.note_freed(id);
        Ok(())
    }

    /// Keeps a block that is on the device there for the rest of its life.
    pub fn pin(&mut self, id: BlockId) -> Result<(), Fault> {
        self.blocks.pin(id)
    }

    /// Notes where the program would like the block to be, for as long as it lives or until told otherwise.
    pub fn prefer(&mut self, id: BlockId, preference: Preference) -> Result<(), Fault> {
        self.blocks.prefer(id, preference)
    }

    // ---- operations -----------------------------------------------------------------------------------

    /// Starts an operation over `operands`, which may repeat. One that is leaving is taken back. True if all
    /// are on the device, so that no step is left to be taken.
    pub fn begin(&mut self, operands: &[BlockId]) -> Result<bool, Stop> {
        let (wanted, all_here) = self.name_operands(operands)?;
        self.note_operation();
        self.counters.operations += 1;
        self.counters.largest_operation = self.counters.largest_operation.max(wanted);
        if !all_here && self.oversized == Oversized::Refuse && !self.blocks.ledger().budget().allows(wanted) {
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
            self.blocks.block(*id)?;
        }
        let now = self.operation.number + 1;
        let mut named = std::mem::take(self.operation.next());
        let (mut wanted, mut all_here) = (0u64, true);
        for &id in operands {
            let block = *self.blocks.block(id)?;
            let last_use = self.blocks.note_use(id, now)?;
            if last_use == now {
                continue;
            }
            wanted = wanted.saturating_add(block.bytes);
            named.push(id);
            match block.place() {
                Place::Leaving { .. } => self.blocks.keep(id)?,
                Place::Away(_) if !self.is_planning() => self.learn(last_use),
                _ => {}
            }
            all_here &= self.blocks.block(id)?.is_on_device();
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

    /// Shows the policy how long a block that has to come back had been unused, compared with those that
    /// stay away.
    fn learn(&mut self, last_use: u64) {
        let (mut older, mut away) = (0, 0);
        for (_, block) in self.blocks.live().filter(|(_, block)| matches!(block.place(), Place::Away(_))) {
            away += 1;
            older += usize::from(block.last_use < last_use);
        }
        self.recency.restored(older, away);
    }

    // ---- moves ----------------------------------------------------------------------------------------

    /// A move that [`next_step`](Self::next_step) or [`prefetch`](Self::prefetch) named has started. Its bytes count in the
    /// tier it copies to from here on. A load that is under way already goes on under its token.
    pub fn started(&mut self, step: Step) -> Result<Token, Fault> {
        match step {
            Step::Evict { block: id, copy } => {
                let block = *self.blocks.block(id)?;
                let is_needed = block.pinned || block.last_use == self.operation.number;
                if is_needed || block.copies.moving().is_some() {
                    return Err(illegal("evicted while it is needed", id, &block));
                }
                let token = self.blocks.start(id, copy, Some(Tier::Device), "evicted")?;
                self.counters.brought_in_vain += u64::from(self.blocks.set_ahead(id, false)?);
                Ok(token)
            }
            Step::Bring { block, .. } => {
                let token = self.blocks.start(block, Some(Tier::Device), None, "brought")?;
                self.operation.driver = self.operation.driver.appeased();
                Ok(token)
            }
            Step::DropCopy { block, tier } => {
                self.blocks.start(block, None, Some(tier), "stripped of its copy")
            }
            Step::Spill { block } => {
                let to = (!self.blocks.block(block)?.is_on_disk()).then_some(Tier::Disk);
                self.blocks.start(block, to, Some(Tier::Host), "spilled to disk")
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

    /// A move has ended. One that failed leaves the block where it was, dirty or clean as it was; a block that could not
    /// leave is tried again after all others. The allocator keeps the memory taken for a block that could not be brought.
    pub fn ended(&mut self, token: Token, succeeded: bool) -> Result<Outcome, Fault> {
        let ended = self.blocks.end(token, succeeded)?;
        if succeeded {
            self.counters.note_bytes(&ended);
        }
        let Ended { id: block, bytes, to, frees, copy, fate } = ended;
        let Some(fate) = fate else { return Ok(Outcome::Removed { block }) };
        let outcome = match (to, frees) {
            (_, Some(Tier::Device)) if !succeeded => Outcome::Stayed { block },
            (copied, Some(Tier::Device)) if fate == Fate::Awaited => Outcome::Left { block, bytes, copied },
            (copied, Some(Tier::Device)) => {
                Outcome::Rescued { block, bytes, copied, current: fate == Fate::Kept }
            }
            (Some(Tier::Device), _) if !succeeded => Outcome::NotReturned { block },
            (Some(Tier::Device), _) => Outcome::Returned { block, bytes, from: copy },
            _ if !succeeded => Outcome::Unmoved { block },
            (Some(Tier::Host), _) => Outcome::Loaded { block, bytes },
            (Some(_), None) => Outcome::WrittenAhead { block, bytes },
            (written, _) if !self.blocks.block(block)?.is_on_device() && frees == Some(Tier::Host) => {
                Outcome::Spilled { block, bytes, written: written.is_some() }
            }
            _ => Outcome::Dropped { block, bytes },
        };
        self.note_end(outcome)?;
        Ok(outcome)
    }

    /// Counts the end of a move, and enters a block that is on the device in the order of evictions.
    fn note_end(&mut self, outcome: Outcome) -> Result<(), Fault> {
        let now = self.operation.number;
        match outcome {
            Outcome::Left { copied: Some(_), .. } => self.counters.evictions += 1,
            Outcome::Left { copied: None, .. } => self.counters.clean_drops += 1,
            Outcome::Stayed { block } => {
                self.blocks.note_failure(block, now)?;
                self.enter_in_order(block);
            }
            Outcome::Rescued { block, .. } => self.enter_in_order(block),
            Outcome::Returned { block, from, .. } => {
                self.counters.restores += u64::from(from.is_some());
                self.enter_in_order(block);
            }
            Outcome::NotReturned { block } => {
                self.blocks.note_failure(block, now)?;
                self.blocks.set_ahead(block, false)?;
            }
            Outcome::Loaded { block, .. } => {
                self.counters.raised += 1;
                self.counters.raised_ahead += u64::from(self.blocks.set_ahead(block, false)?);
            }
            Outcome::Spilled { .. } => self.counters.sunk += 1,
            Outcome::WrittenAhead { .. } => self.counters.written_ahead += 1,
            // What was chosen counted on the room that it gave up.
            Outcome::Unmoved { .. } => self.raising_ahead.forget(),
            Outcome::Dropped { .. } | Outcome::Removed { .. } => {}
        }
        Ok(())
    }

    // ---- contents -------------------------------------------------------------------------------------

    /// The operation (or the program) changed the block's contents on the device. Names the tiers whose copies
    /// became stale by it, for the door to throw away.
    pub fn wrote(&mut self, id: BlockId) -> Result<TierSet, Fault> {
        let stale = self.blocks.wrote(id, Tier::Device)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.wrote(id.index);
        }
        if let Some(planner) = &mut self.planner {
            planner.wrote(id);
        }
        Ok(stale)
    }

    /// The block's contents were put into host memory, and only there.
    pub fn wrote_on_host(&mut self, id: BlockId) -> Result<(), Fault> {
        self.blocks.wrote(id, Tier::Host)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.wrote_in_tier(id.index);
        }
        Ok(())
    }
}
