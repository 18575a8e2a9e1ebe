//! Room on the device for the current operation and its operands.

use crate::Oversized;
use crate::block::{Arena, BlockId, Place, Tier};
use crate::blocks::Blocks;
use crate::eviction::Eviction;
use crate::fault::{Fault, Shortage, Stop};
use crate::forecast::Forecast;
use crate::limit::Limit;
use crate::prefetch::Ahead;
use crate::request::{Driver, Request};
use crate::rooms::Rooms;
use crate::steps::Step;
use crate::view::View;

pub(crate) struct Room<'p> {
    pub blocks: &'p mut Blocks,
    pub request: &'p mut Request,
    pub forecast: Option<&'p Forecast>,
    pub eviction: &'p mut Eviction,
    pub ahead: &'p mut Ahead,
    pub oversized: Oversized,
    pub over_budget: &'p mut u64,
}

impl Room<'_> {
    fn view(&self) -> View<'_> {
        View { blocks: self.blocks, request: self.request, forecast: self.forecast }
    }

    pub fn next_step(&mut self, rooms: &dyn Fn() -> Rooms) -> Result<Step, Stop> {
        if let Some((bytes, arena)) = self.request.room() {
            return Ok(self.make_room(bytes, arena, rooms)?.unwrap_or(Step::Ready));
        }
        let (mut awaited, mut spilled) = (None, None);
        let mut position = self.request.arrived();
        while let Some(&id) = self.request.operands().get(position) {
            let block = self.blocks.block(id)?;
            match block.place() {
                Place::Device { .. } => {
                    if awaited.is_none() && spilled.is_none() {
                        self.request.set_arrived(position + 1);
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
                // It passes the host, which gains room from others that come to the device.
                Place::Away(Tier::Disk) => spilled = spilled.or(Some(id)),
                Place::Nowhere | Place::Away(_) => return self.step_towards(id, rooms),
            }
            position += 1;
        }
        if let Some(id) = spilled {
            return self.step_towards(id, rooms);
        }
        Ok(awaited.map_or(Step::Ready, Step::Wait))
    }

    fn step_towards(&mut self, id: BlockId, rooms: &dyn Fn() -> Rooms) -> Result<Step, Stop> {
        let block = self.blocks.block(id)?;
        let (bytes, arena) = (block.bytes, block.arena);
        let from = block.copies.copy();
        let bring = Step::Bring { block: id, from };
        match self.make_room(bytes, arena, rooms) {
            Ok(Some(step)) => Ok(step),
            Ok(None) if from == Some(Tier::Disk) => self.view().load(id, rooms()),
            Ok(None) => Ok(bring),
            // The driver may give more than it earlier refused.
            Err(Stop::Shortage(_))
                if !self.request.driver().refuses() && self.blocks.ledger().driver_forbids(bytes) =>
            {
                if self.blocks.ledger().spare() > 0 {
                    return Ok(Step::Trim);
                }
                self.blocks.change_limit(|ledger| ledger.ask_driver(bytes));
                self.step_towards(id, rooms)
            }
            // Load to the host before the driver is asked for the last time.
            Err(Stop::Shortage(Shortage::WorkingSet { .. }))
                if from == Some(Tier::Disk)
                    && (self.request.driver() == Driver::Refused
                        || self.oversized == Oversized::RunAlone) =>
            {
                self.view().load(id, rooms())
            }
            Err(Stop::Shortage(Shortage::WorkingSet { .. })) if self.request.driver() == Driver::Refused => {
                self.request.ask_last();
                Ok(bring)
            }
            Err(Stop::Shortage(Shortage::WorkingSet { .. })) if self.request.driver().refuses() => {
                Err(Shortage::Device { wanted: bytes }.into())
            }
            Err(Stop::Shortage(Shortage::WorkingSet { .. })) if self.blocks.ledger().spare() > 0 => {
                Ok(Step::Trim)
            }
            Err(Stop::Shortage(Shortage::WorkingSet { .. })) if self.oversized == Oversized::RunAlone => {
                *self.over_budget += 1;
                Ok(bring)
            }
            Err(stop) => Err(stop),
        }
    }

    /// `None` if there is room for `bytes`.
    fn make_room(
        &mut self,
        bytes: u64,
        arena: Arena,
        rooms: &dyn Fn() -> Rooms,
    ) -> Result<Option<Step>, Stop> {
        let refused = self.request.driver().refuses();
        if !refused && self.blocks.ledger().has_room(bytes, arena) {
            return Ok(None);
        }
        if self.request.sweep_is_due(self.blocks.most()) {
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
            Ok(Step::Evict { copy: Some(_), .. }) if !self.request.is_swept() => Ok(Some(Step::Sweep)),
            Err(Stop::Shortage(_)) if let Some(token) = self.blocks.oldest() => Ok(Some(Step::Wait(token))),
            other => other.map(Some),
        }
    }

    /// `room` must allow the victim's copy.
    fn victim(&mut self, room: Limit) -> Option<BlockId> {
        let view = View { blocks: self.blocks, request: self.request, forecast: self.forecast };
        if view.known().is_some()
            && let Some(planned) =
                self.ahead.scheduled_victim(view, room).or_else(|| self.eviction.planned_victim(view, room))
        {
            return Some(planned);
        }
        self.eviction.recent_victim(view, room)
    }

    fn give_way(&mut self, wanted: u64, rooms: Rooms) -> Result<Step, Stop> {
        if let Some(id) = self.victim(rooms.for_victims()) {
            let block = self.blocks.block(id)?;
            let copy = block.copied_to();
            if copy.is_none() || rooms.host.allows(block.bytes) {
                return Ok(Step::Evict { block: id, copy });
            }
            if let Ok(Some(step)) = self.view().make_host_room(block.bytes, rooms) {
                return Ok(step);
            }
            // Nothing can spill for it; another victim may have room.
            if let Some(block) = self.victim(rooms.host) {
                let copy = self.blocks.block(block)?.copied_to();
                return Ok(Step::Evict { block, copy });
            }
            return Err(Shortage::TierFull { wanted }.into());
        }
        if let Some(block) = self.victim(Limit::NONE) {
            let bytes = self.blocks.block(block)?.bytes;
            let Ok(Some(step)) = self.view().make_host_room(bytes, rooms) else {
                return Err(Shortage::TierFull { wanted }.into());
            };
            return Ok(step);
        }
        let now = self.request.number();
        if self.blocks.live().any(|(_, block)| self.view().may_leave(block) && block.stuck_in == now) {
            if !self.request.grants_second_try() {
                return Err(Shortage::CopyOut { wanted }.into());
            }
            self.blocks.forgive_failures();
            return self.give_way(wanted, rooms);
        }
        let operands = self.request.operands().iter();
        let wanted =
            operands.map(|id| self.blocks.block(*id).map(|block| block.bytes)).sum::<Result<u64, _>>()?;
        let idle_pins = self.blocks.live().filter(|(_, block)| block.pinned && block.last_use != now);
        let pinned = idle_pins.map(|(_, block)| block.bytes).sum();
        Err(Shortage::WorkingSet { wanted, pinned }.into())
    }
}
