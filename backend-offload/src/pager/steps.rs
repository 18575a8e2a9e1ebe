//! The pager itself: the only code that changes where a block is.

use super::block::{Arena, Block, BlockId, Place};
use super::ledger::Ledger;
use super::policy::{Candidate, Policy, Recency};
use super::{Counters, Oversized};

/// What the door has to do next for the current operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Find blocks whose owners are gone and [`Pager::remove`] them, then report [`Pager::swept`].
    Sweep,
    /// Give the allocator's spare slices back to the driver, then report [`Pager::trimmed`].
    Trim,
    /// Take `block` off the device, after copying its contents to the host if `copy`; then report
    /// [`Pager::evicted`] or [`Pager::evict_failed`].
    Evict { block: BlockId, copy: bool },
    /// Throw away the host copy of `block`, which is on the device too; then report [`Pager::copy_dropped`].
    DropCopy { block: BlockId },
    /// Take device memory for `block`, and copy its contents in if `fill`; then report [`Pager::brought`]
    /// or [`Pager::device_refused`].
    Bring { block: BlockId, fill: bool },
    /// Every operand is on the device: run the operation.
    Ready,
}

/// Why an operation cannot run. Nothing has been lost: every block is where its contents are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The operands, together with what is pinned, exceed the device budget.
    WorkingSet { wanted: u64, pinned: u64 },
    /// Blocks would have to leave, and the host has no room for their contents.
    HostFull { wanted: u64 },
    /// Blocks would have to leave, and none can: copying them out failed.
    CopyOut { wanted: u64 },
    /// The driver refuses memory that the budget allows, and nothing is left to give up.
    Device { wanted: u64 },
}

/// The state machine over all blocks of one device.
#[derive(Debug)]
pub(crate) struct Pager {
    slots: Vec<(u32, Option<Block>)>,
    free: Vec<u32>,
    ledger: Ledger,
    recency: Recency,
    oversized: Oversized,
    counters: Counters,
    /// The current operation: its number, its operands, and what has happened to it.
    now: u64,
    operands: Vec<BlockId>,
    /// Operands before this one are on the device.
    arrived: usize,
    /// The driver refused in this operation; room has to be made beyond what the budget says.
    refused: bool,
    /// Nothing was left to give up, and the driver has been asked once more all the same.
    asked_again: bool,
    /// Every block that may leave failed to, and all have been asked once more.
    tried_again: bool,
    swept_at: u64,
}

impl Pager {
    pub fn new(budget: u64, policy: Policy, oversized: Oversized) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            ledger: Ledger::new(budget),
            recency: Recency::new(policy),
            oversized,
            counters: Counters::default(),
            now: 1,
            operands: Vec::new(),
            arrived: 0,
            refused: false,
            asked_again: false,
            tried_again: false,
            swept_at: 0,
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Registers a block of `bytes`, which has no memory anywhere until its first use.
    pub fn insert(&mut self, bytes: u64, arena: Arena) -> BlockId {
        let block = Block {
            bytes,
            arena,
            place: Place::Nowhere,
            defined: false,
            last_use: self.now,
            pinned: false,
            stuck_in: 0,
        };
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.0 = slot.0.wrapping_add(1);
            slot.1 = Some(block);
            return BlockId { index, generation: slot.0 };
        }
        self.slots.push((0, Some(block)));
        BlockId { index: (self.slots.len() - 1) as u32, generation: 0 }
    }

    /// Forgets a block; its bytes on both tiers are free.
    pub fn remove(&mut self, id: BlockId) {
        let slot = &mut self.slots[id.index as usize];
        debug_assert_eq!(slot.0, id.generation, "a block is removed once");
        let Some(block) = slot.1.take() else { return };
        self.free.push(id.index);
        if block.on_device() {
            self.ledger.depart(block.arena, block.bytes);
        }
        if block.on_host() {
            self.ledger.host_lose(block.bytes);
        }
    }

    pub fn place(&self, id: BlockId) -> Place {
        self.block(id).place
    }

    pub fn bytes(&self, id: BlockId) -> u64 {
        self.block(id).bytes
    }

    /// How many operations ago the block was last used.
    pub fn age(&self, id: BlockId) -> u64 {
        self.now - self.block(id).last_use
    }

    /// Whether its host copy is current while it is on the device, so that knowing whether an operation
    /// writes to it is worth something.
    pub fn is_clean(&self, id: BlockId) -> bool {
        self.block(id).place == Place::Device { clean: true }
    }

    /// Keeps a block on the device for the rest of its life.
    pub fn pin(&mut self, id: BlockId) {
        self.block_mut(id).pinned = true;
    }

    /// Starts an operation over `operands`, which may repeat. True if all are on the device, so that no step
    /// is left to be taken.
    pub fn begin(&mut self, operands: &[BlockId]) -> Result<bool, Shortage> {
        let wanted = self.name_operands(operands);
        self.counters.operations += 1;
        self.counters.largest_operation = self.counters.largest_operation.max(wanted);
        if self.operands.iter().all(|id| self.block(*id).on_device()) {
            self.arrived = self.operands.len();
            return Ok(true);
        }
        if self.oversized == Oversized::Refuse && wanted > self.ledger.budget() {
            return Err(Shortage::WorkingSet { wanted, pinned: 0 });
        }
        Ok(false)
    }

    /// Starts making room for `block` ahead of its first use. Not an operation of the program: it is not
    /// counted, and the door stops at the step that would bring the block.
    pub fn begin_favour(&mut self, block: BlockId) {
        self.name_operands(&[block]);
    }

    fn name_operands(&mut self, operands: &[BlockId]) -> u64 {
        self.now += 1;
        self.operands.clear();
        self.arrived = 0;
        self.refused = false;
        self.asked_again = false;
        self.tried_again = false;
        let now = self.now;
        let mut wanted = 0;
        for &id in operands {
            let block = self.block_mut(id);
            if block.last_use == now {
                continue;
            }
            let last_use = std::mem::replace(&mut block.last_use, now);
            wanted += block.bytes;
            let away = block.place == Place::Host;
            self.operands.push(id);
            if away {
                self.learn(last_use);
            }
        }
        wanted
    }

    /// What to do next for the operation begun last. Asked again after every report.
    pub fn next_step(&mut self, host_room: u64) -> Result<Step, Shortage> {
        while let Some(&id) = self.operands.get(self.arrived) {
            if self.block(id).on_device() {
                self.arrived += 1;
                continue;
            }
            return self.step_towards(id, host_room);
        }
        Ok(Step::Ready)
    }

    fn step_towards(&mut self, id: BlockId, host_room: u64) -> Result<Step, Shortage> {
        let block = self.block(id);
        let (bytes, arena) = (block.bytes, block.arena);
        let bring = Step::Bring { block: id, fill: block.defined };
        if !self.refused && (self.ledger.has_spare(arena, bytes) || self.ledger.fits(bytes)) {
            return Ok(bring);
        }
        if self.sweep_is_due() {
            return Ok(Step::Sweep);
        }
        if self.ledger.spare() > 0 && (self.refused || self.ledger.fits_without_spare(bytes)) {
            return Ok(Step::Trim);
        }
        match self.victim_step(bytes, host_room) {
            Err(Shortage::WorkingSet { .. }) if self.refused && !self.asked_again => {
                self.asked_again = true;
                self.refused = false;
                Ok(bring)
            }
            Err(Shortage::WorkingSet { .. }) if self.refused => Err(Shortage::Device { wanted: bytes }),
            Err(Shortage::WorkingSet { .. }) if self.ledger.spare() > 0 => Ok(Step::Trim),
            Err(Shortage::WorkingSet { .. }) if self.oversized == Oversized::RunAlone => {
                self.counters.over_budget += 1;
                Ok(bring)
            }
            other => other,
        }
    }

    /// Shows the policy how long a block that has to come back had been unused, compared with those that
    /// stay away.
    fn learn(&mut self, last_use: u64) {
        let (mut older, mut away) = (0, 0);
        for (_, block) in self.live().filter(|(_, block)| block.place == Place::Host) {
            away += 1;
            older += usize::from(block.last_use < last_use);
        }
        self.recency.restored(older, away);
    }

    /// Sweeping looks at every block, so it is done at most once per operation and, with many blocks, only
    /// every so many operations.
    fn sweep_is_due(&self) -> bool {
        self.now - self.swept_at > (self.slots.len() as u64) / 64
    }

    fn victim_step(&mut self, bytes: u64, host_room: u64) -> Result<Step, Shortage> {
        let now = self.now;
        let may_leave = |block: &Block| {
            block.on_device() && !block.pinned && block.last_use != now && block.stuck_in != now
        };
        let candidates = |slots: &[(u32, Option<Block>)], room: u64| -> Option<u32> {
            let all = slots.iter().enumerate().filter_map(|(index, (_, block))| {
                let block = block.as_ref()?;
                let affordable = !block.needs_copy() || block.bytes <= room;
                (may_leave(block) && affordable)
                    .then_some(Candidate { index: index as u32, last_use: block.last_use })
            });
            self.recency.choose(now, &all)
        };
        if let Some(index) = candidates(&self.slots, host_room) {
            let (generation, block) = &mut self.slots[index as usize];
            let id = BlockId { index, generation: *generation };
            let block = block.as_mut().expect("a candidate is a live block");
            let copy = block.needs_copy();
            block.place = Place::Leaving;
            return Ok(Step::Evict { block: id, copy });
        }
        if candidates(&self.slots, u64::MAX).is_some() {
            return match self.largest_duplicate() {
                Some(block) => Ok(Step::DropCopy { block }),
                None => Err(Shortage::HostFull { wanted: bytes }),
            };
        }
        let stuck = |block: &Block| block.on_device() && block.stuck_in == now && block.last_use != now;
        if self.live().any(|(_, block)| stuck(block)) {
            if self.tried_again {
                return Err(Shortage::CopyOut { wanted: bytes });
            }
            self.tried_again = true;
            self.slots
                .iter_mut()
                .filter_map(|(_, block)| block.as_mut())
                .for_each(|block| block.stuck_in = 0);
            return self.victim_step(bytes, host_room);
        }
        let wanted = self.operands.iter().map(|id| self.block(*id).bytes).sum();
        let pinned = self.live().filter(|(_, b)| b.pinned && b.last_use != now).map(|(_, b)| b.bytes).sum();
        Err(Shortage::WorkingSet { wanted, pinned })
    }

    /// A host copy that saves a future transfer, and can be given up to make a present one possible.
    fn largest_duplicate(&self) -> Option<BlockId> {
        self.live()
            .filter(|(_, block)| block.place == Place::Device { clean: true })
            .max_by_key(|(_, block)| block.bytes)
            .map(|(id, _)| id)
    }

    // ---- reports --------------------------------------------------------------------------------------

    pub fn swept(&mut self) {
        self.swept_at = self.now;
    }

    pub fn trimmed(&mut self) {
        self.counters.trims += 1;
        self.ledger.trim();
        // The driver has been given what we had; ask it again before evicting more.
        self.refused = false;
    }

    /// `copied`: its contents were copied out and the host holds them.
    pub fn evicted(&mut self, id: BlockId, copied: bool) {
        let block = self.block_mut(id);
        debug_assert_eq!(block.place, Place::Leaving);
        debug_assert!(block.defined || !copied);
        block.place = if block.defined { Place::Host } else { Place::Nowhere };
        let (arena, bytes) = (block.arena, block.bytes);
        self.ledger.depart(arena, bytes);
        if copied {
            self.counters.evictions += 1;
            self.counters.bytes_out += bytes;
            self.ledger.host_gain(bytes);
        } else {
            self.counters.clean_drops += 1;
        }
    }

    /// The block could not leave; it stays where it was, dirty, and is asked again only after all others.
    pub fn evict_failed(&mut self, id: BlockId) {
        let now = self.now;
        let block = self.block_mut(id);
        debug_assert_eq!(block.place, Place::Leaving);
        block.place = Place::Device { clean: false };
        block.stuck_in = now;
    }

    pub fn copy_dropped(&mut self, id: BlockId) {
        let block = self.block_mut(id);
        debug_assert_eq!(block.place, Place::Device { clean: true });
        block.place = Place::Device { clean: false };
        let bytes = block.bytes;
        self.ledger.host_lose(bytes);
    }

    pub fn brought(&mut self, id: BlockId) {
        self.refused = false;
        let block = self.block_mut(id);
        debug_assert!(matches!(block.place, Place::Host | Place::Nowhere));
        let (arena, bytes, filled) = (block.arena, block.bytes, block.defined);
        block.place = Place::Device { clean: filled };
        self.ledger.arrive(arena, bytes);
        if filled {
            self.counters.restores += 1;
            self.counters.bytes_in += bytes;
        }
    }

    pub fn device_refused(&mut self) {
        self.counters.device_refusals += 1;
        self.refused = true;
    }

    /// The operation (or the user) changed the block's contents on the device. True if a host copy became
    /// stale by it and is to be given back.
    pub fn wrote(&mut self, id: BlockId) -> bool {
        let block = self.block_mut(id);
        debug_assert!(block.on_device(), "only what is on the device is written there");
        block.defined = true;
        let stale = block.place == Place::Device { clean: true };
        block.place = Place::Device { clean: false };
        if stale {
            let bytes = block.bytes;
            self.ledger.host_lose(bytes);
        }
        stale
    }

    /// The block's contents were put on the host, and only there. True if the host did not hold it before.
    pub fn wrote_on_host(&mut self, id: BlockId) -> bool {
        let block = self.block_mut(id);
        debug_assert!(matches!(block.place, Place::Host | Place::Nowhere));
        let fresh = block.place == Place::Nowhere;
        block.place = Place::Host;
        block.defined = true;
        if fresh {
            let bytes = block.bytes;
            self.ledger.host_gain(bytes);
        }
        fresh
    }

    /// Whether `bytes` more fit on the device without anybody leaving.
    pub fn has_room(&self, bytes: u64, arena: Arena) -> bool {
        self.ledger.has_spare(arena, bytes) || self.ledger.fits(bytes)
    }

    /// Whether the allocator hoards: it holds far more than this program ever used at once. Happens when
    /// sizes keep changing, since a spare slice serves only its own size.
    pub fn hoards(&self) -> bool {
        const SLACK: u64 = 64 << 20;
        let peak = self.ledger.resident_peak();
        self.ledger.resident() + self.ledger.spare() > peak + peak / 2 + SLACK
    }

    /// The blocks that hold most bytes, largest first.
    pub fn largest(&self, count: usize) -> Vec<BlockId> {
        let mut blocks: Vec<_> =
            self.live().filter(|(_, b)| b.place != Place::Nowhere).map(|(id, b)| (b.bytes, id)).collect();
        blocks.sort_by_key(|(bytes, id)| (std::cmp::Reverse(*bytes), id.index));
        blocks.truncate(count);
        blocks.into_iter().map(|(_, id)| id).collect()
    }

    fn live(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.slots.iter().enumerate().filter_map(|(index, (generation, block))| {
            Some((BlockId { index: index as u32, generation: *generation }, block.as_ref()?))
        })
    }

    fn block(&self, id: BlockId) -> &Block {
        let (generation, block) = &self.slots[id.index as usize];
        debug_assert_eq!(*generation, id.generation, "a block is not used after its removal");
        block.as_ref().expect("a live block")
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        let (generation, block) = &mut self.slots[id.index as usize];
        debug_assert_eq!(*generation, id.generation, "a block is not used after its removal");
        block.as_mut().expect("a live block")
    }
}
