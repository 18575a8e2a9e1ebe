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

    /// The block leaves the device from now on; into the host tier, if it needs a copy.
    pub fn evict_started(&mut self, id: BlockId) -> Result<Token, Fault> {
        let block = *self.blocks.block(id)?;
        let is_needed = block.pinned || block.last_use == self.operation.number;
        if is_needed || block.copies.moving().is_some() {
            return Err(illegal("evicted while it is needed", id, &block));
        }
        let token = self.blocks.start(id, block.copied_to(), Some(Tier::Device), "evicted")?;
        self.counters.brought_in_vain += u64::from(self.blocks.set_ahead(id, false)?);
        Ok(token)
    }

    /// Device memory was taken for the block, and its contents are on their way if it has any. The bytes
    /// count from here on.
    pub fn return_started(&mut self, id: BlockId) -> Result<Token, Fault> {
        let token = self.blocks.start(id, Some(Tier::Device), None, "returned")?;
        self.operation.driver = self.operation.driver.appeased();
        Ok(token)
    }

    /// The move is done.
    pub fn landed(&mut self, token: Token) -> Result<Outcome, Fault> {
        self.ended(token, true)
    }

    /// The move came to nothing. The block is where it was before, dirty or clean as it was; one that could
    /// not leave is asked again only after all others. The allocator keeps the memory taken for one that
    /// could not return.
    pub fn failed(&mut self, token: Token) -> Result<Outcome, Fault> {
        self.ended(token, false)
    }

    fn ended(&mut self, token: Token, succeeded: bool) -> Result<Outcome, Fault> {
        let Ended { id: block, bytes, to, frees, copy, fate } = self.blocks.end(token, succeeded)?;
        if succeeded {
            self.counters.note_moved(bytes, to, frees, copy);
        }
        let Some(fate) = fate else { return Ok(Outcome::Removed { block }) };
        let now = self.operation.number;
        let outcome = match (frees, succeeded) {
            (Some(Tier::Device), true) if fate == Fate::Awaited => {
                self.counters.note_left(to);
                return Ok(Outcome::Left { block, bytes, copied: to });
            }
            (Some(Tier::Device), true) => {
                Outcome::Rescued { block, bytes, copied: to, current: fate == Fate::Kept }
            }
            (Some(Tier::Device), false) => {
                self.blocks.note_failure(block, now)?;
                Outcome::Stayed { block }
            }
            (_, true) => {
                self.counters.restores += u64::from(copy.is_some());
                Outcome::Returned { block, bytes, from: copy }
            }
            (_, false) => {
                self.blocks.note_failure(block, now)?;
                self.blocks.set_ahead(block, false)?;
                return Ok(Outcome::NotReturned { block });
            }
        };
        self.enter_in_order(block);
        Ok(outcome)
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

    /// The tier's copy of a block was thrown away: the host's of one on the device, or the disk's of one that is elsewhere.
    pub fn copy_dropped(&mut self, id: BlockId, tier: Tier) -> Result<(), Fault> {
        let token = self.blocks.start(id, None, Some(tier), "stripped of its copy")?;
        self.blocks.end(token, true)?;
        Ok(())
    }
}
