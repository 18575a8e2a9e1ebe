//! Steps: makes room for the current operation and brings its operands, one step at a time.

use crate::Oversized;
use crate::block::{Arena, BlockId, Place, Preference, Tier, Token};
use crate::fault::{Fault, Shortage, Stop};
use crate::limit::Limit;
use crate::operation::{Copies, Driver, Garbage, Target};
use crate::residency::Pager;
use crate::sinking::Rooms;

/// The adapter's next task. The start of a move is reported by [`Pager::started`], its end by [`Pager::ended`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Find blocks whose owners are gone and [`Pager::remove`] them, then report [`Pager::swept`].
    Sweep,
    /// Give the allocator's spare slices back to the driver, then report [`Pager::trimmed`].
    Trim,
    /// Take `block` off the device.
    Evict {
        /// The victim.
        block: BlockId,
        /// The tier its contents are copied to first; `None` if no copy is needed.
        copy: Option<Tier>,
    },
    /// Throw away the tier's copy of `block`, whose contents are in another tier, too.
    DropCopy {
        /// The block.
        block: BlockId,
        /// The tier.
        tier: Tier,
    },
    /// Spill `block` to disk: write its contents there unless the disk has them, and give up its host memory.
    Spill {
        /// The block, which is on the host and not on the device.
        block: BlockId,
    },
    /// Load the contents of `block` from disk into host memory.
    Load {
        /// An operand, which comes to the device from there.
        block: BlockId,
    },
    /// The same, before an operation needs the block. It may go on beside operations.
    LoadAhead {
        /// The block.
        block: BlockId,
    },
    /// Write the contents of `block` to disk while it stays on the host. The write may go on beside operations; it is
    /// reported once it is complete.
    WriteAhead {
        /// The block.
        block: BlockId,
    },
    /// Take device memory for `block`, or report [`Pager::device_refused`], and copy its contents in.
    Bring {
        /// An operand.
        block: BlockId,
        /// The tier that has its contents; `None` for a block never written.
        from: Option<Tier>,
    },
    /// Wait for the end of this move: nothing else can be done before.
    Wait(Token),
    /// Every operand is on the device, or the room asked for is there.
    Ready,
}

/// Below this, spare bytes are not worth giving back.
const SLACK: u64 = 64 << 20;

/// Dead bytes are looked for when they may be this part of what is on the device. A sweep looks at every block, so it costs as
/// many looks as this per block of average size.
const DEAD_PART: u64 = 32;

impl Pager {
    /// The next step of the operation begun last. `rooms` tells the bytes left in the tiers below the device; it is
    /// asked only where a block has to leave. Called again after every report.
    pub fn next_step(&mut self, rooms: &dyn Fn() -> Rooms) -> Result<Step, Stop> {
        if let Target::Room { bytes, arena } = self.operation.target {
            return Ok(self.make_room(bytes, arena, rooms)?.unwrap_or(Step::Ready));
        }
        let (mut awaited, mut sunk) = (None, None);
        let mut position = self.arrived();
        while let Some(&id) = self.operation.operands().get(position) {
            let block = self.blocks.block(id)?;
            match block.place() {
                Place::Device { .. } => {
                    if awaited.is_none() && sunk.is_none() {
                        self.set_arrived(position + 1);
                    }
                }
                Place::Returning { .. } => awaited = awaited.or(block.copies.moving()),
                Place::Leaving { .. } => {
                    return Err(Fault::Illegal {
                        attempted: "evicted under its operation",
                        block: id,
                        place: block.place(),
                    }
                    .into());
                }
                // It needs the host's memory on its way, of which the other operands leave more once they are on the device.
                Place::Away(Tier::Disk) => sunk = sunk.or(Some(id)),
                Place::Nowhere | Place::Away(_) => return self.step_towards(id, rooms),
            }
            position += 1;
        }
        if let Some(id) = sunk {
            return self.step_towards(id, rooms);
        }
        Ok(awaited.map_or(Step::Ready, Step::Wait))
    }

    fn arrived(&self) -> usize {
        match self.operation.target {
            Target::Operands { arrived, .. } => arrived,
            Target::Room { .. } => 0,
        }
    }

    fn set_arrived(&mut self, count: usize) {
        if let Target::Operands { arrived, .. } = &mut self.operation.target {
            *arrived = count;
        }
    }

    fn step_towards(&mut self, id: BlockId, rooms: &dyn Fn() -> Rooms) -> Result<Step, Stop> {
        let block = self.blocks.block(id)?;
        let (bytes, arena) = (block.bytes, block.arena);
        let from = block.copies.copy();
        let bring = Step::Bring { block: id, from };
        match self.make_room(bytes, arena, rooms) {
            Ok(Some(step)) => Ok(step),
            Ok(None) if from == Some(Tier::Disk) => self.raise(id, rooms()),
            Ok(None) => Ok(bring),
            // What comes from the disk comes to the host before anything is asked of the driver for the last time.
            Err(Stop::Shortage(Shortage::WorkingSet { .. }))
                if from == Some(Tier::Disk)
                    && (self.operation.driver == Driver::Refused
                        || self.oversized == Oversized::RunAlone) =>
            {
                self.raise(id, rooms())
            }
            Err(Stop::Shortage(Shortage::WorkingSet { .. })) if self.operation.driver == Driver::Refused => {
                self.operation.driver = Driver::LastRequest;
                Ok(bring)
            }
            Err(Stop::Shortage(Shortage::WorkingSet { .. })) if self.operation.driver.refuses() => {
                Err(Shortage::Device { wanted: bytes }.into())
            }
            Err(Stop::Shortage(Shortage::WorkingSet { .. })) if self.blocks.ledger().spare() > 0 => {
                Ok(Step::Trim)
            }
            Err(Stop::Shortage(Shortage::WorkingSet { .. })) if self.oversized == Oversized::RunAlone => {
                self.counters.over_budget += 1;
                Ok(bring)
            }
            Err(stop) => Err(stop),
        }
    }

    /// The next step towards room for `bytes`; `None` once it is there.
    fn make_room(
        &mut self,
        bytes: u64,
        arena: Arena,
        rooms: &dyn Fn() -> Rooms,
    ) -> Result<Option<Step>, Stop> {
        let refused = self.operation.driver.refuses();
        if !refused && self.has_room(bytes, arena) {
            return Ok(None);
        }
        if self.sweep_is_due() {
            return Ok(Some(Step::Sweep));
        }
        if self.blocks.ledger().spare() > 0 && (refused || self.blocks.ledger().fits_without(0, bytes)) {
            return Ok(Some(Step::Trim));
        }
        if let Some((token, _)) = self.blocks.departing().next()
            && (refused || self.blocks.ledger().fits_without(self.blocks.departing_bytes(), bytes))
        {
            return Ok(Some(Step::Wait(token)));
        }
        match self.give_way(bytes, rooms()) {
            Ok(Step::Evict { copy: Some(_), .. }) if self.operation.garbage == Garbage::Unsearched => {
                Ok(Some(Step::Sweep))
            }
            // Whatever lands may be the room that is missing.
            Err(Stop::Shortage(_)) if let Some(token) = self.blocks.oldest() => Ok(Some(Step::Wait(token))),
            other => other.map(Some),
        }
    }

    /// Sweeping looks at every block, so it is done at most once per operation and, with many blocks, only
    /// every so many operations; but always before a live block is copied out.
    fn sweep_is_due(&self) -> bool {
        self.operation.number - self.swept_at > self.blocks.most() / 64
    }

    fn give_way(&mut self, wanted: u64, rooms: Rooms) -> Result<Step, Stop> {
        if let Some(id) = self.victim(rooms.for_victims()) {
            let block = self.blocks.block(id)?;
            let copy = block.copied_to();
            if copy.is_none() || rooms.host.allows(block.bytes) {
                return Ok(Step::Evict { block: id, copy });
            }
            if let Ok(Some(step)) = self.make_host_room(block.bytes, rooms) {
                return Ok(step);
            }
            // Nobody can sink for it. Somebody else may still find room.
            if let Some(block) = self.victim(rooms.host) {
                let copy = self.blocks.block(block)?.copied_to();
                return Ok(Step::Evict { block, copy });
            }
            return Err(Shortage::TierFull { wanted }.into());
        }
        if let Some(block) = self.victim(Limit::NONE) {
            let bytes = self.blocks.block(block)?.bytes;
            let Ok(Some(step)) = self.make_host_room(bytes, rooms) else {
                return Err(Shortage::TierFull { wanted }.into());
            };
            return Ok(step);
        }
        let now = self.operation.number;
        if self.blocks.live().any(|(_, block)| self.may_leave(block) && block.stuck_in == now) {
            if self.operation.copies == Copies::SecondTry {
                return Err(Shortage::CopyOut { wanted }.into());
            }
            self.operation.copies = Copies::SecondTry;
            self.blocks.forgive_failures();
            return self.give_way(wanted, rooms);
        }
        let operands = self.operation.operands().iter();
        let wanted =
            operands.map(|id| self.blocks.block(*id).map(|block| block.bytes)).sum::<Result<u64, _>>()?;
        let idle_pins = self.blocks.live().filter(|(_, block)| block.pinned && block.last_use != now);
        let pinned = idle_pins.map(|(_, block)| block.bytes).sum();
        Err(Shortage::WorkingSet { wanted, pinned }.into())
    }

    // ---- reports --------------------------------------------------------------------------------------

    /// No dead block is left.
    pub fn swept(&mut self) {
        self.swept_at = self.operation.number;
        self.unswept = (0, 0);
        self.operation.garbage = Garbage::Collected;
    }

    /// The allocator holds no spare slice.
    pub fn trimmed(&mut self) {
        self.counters.trims += 1;
        self.blocks.trim();
        // The driver has been given what we had; it is asked again before more is evicted.
        self.operation.driver = self.operation.driver.appeased();
    }

    /// The driver refused memory for the block to be brought.
    pub fn device_refused(&mut self) {
        self.counters.device_refusals += 1;
        self.operation.driver = self.operation.driver.refused();
    }

    // ---- questions ------------------------------------------------------------------------------------

    /// Whether `bytes` more fit on the device without another block leaving.
    pub(crate) fn has_room(&self, bytes: u64, arena: Arena) -> bool {
        self.blocks.ledger().has_spare(arena, bytes) || self.blocks.ledger().fits(bytes)
    }

    /// The tier where data from the program begins: the host or the device. Data on the host evicts no block, and leaves the
    /// device without a copy later. So data begins there if the device has no room, or if blocks spill and the program
    /// prefers the host.
    pub fn place_new(&self, bytes: u64, arena: Arena, preference: Preference) -> Tier {
        let prefers_host = preference == Preference::Host && (self.expects_spilling || self.is_spilling());
        if prefers_host || !self.has_room(bytes, arena) { Tier::Host } else { Tier::Device }
    }

    /// Whether dead blocks may hold so much that looking for them pays, for a door that learns of drops only
    /// by looking and is under no pressure. What lives at once, a small part of it and one block is then the most that the
    /// device holds; a sweep costs a constant per insertion of a block of average size.
    pub fn sweep_pays(&self) -> bool {
        let (blocks, bytes) = self.unswept;
        blocks >= 64.max(self.blocks.count() / 8)
            || bytes >= (self.blocks.ledger().resident() / DEAD_PART).max(1)
    }

    /// Whether the allocator hoards: it holds far more than this program ever used at once. Happens when
    /// sizes keep changing, since a spare slice serves only its own size.
    pub fn hoards(&self) -> bool {
        let peak = self.blocks.ledger().resident_peak();
        self.blocks.ledger().reserved() > peak.saturating_add(peak / 2).saturating_add(SLACK)
    }

    /// The blocks that hold most bytes, largest first.
    pub fn largest(&self, count: usize) -> Vec<BlockId> {
        let holders = self.blocks.live().filter(|(_, block)| block.place() != Place::Nowhere);
        let mut blocks: Vec<_> = holders.map(|(id, block)| (block.bytes, id)).collect();
        blocks.sort_by_key(|(bytes, id)| (std::cmp::Reverse(*bytes), id.index));
        blocks.truncate(count);
        blocks.into_iter().map(|(_, id)| id).collect()
    }
}
