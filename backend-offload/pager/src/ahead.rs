//! Moves started ahead of the operation that needs them, for doors whose copies run beside the device's work.
//!
//! After each operation the pager looks along the future that the planner expects: memory for new blocks, blocks that
//! are let go, blocks that come back. Where memory would be missing, the block that would leave then leaves now;
//! what has room until it is used comes back now. Nobody leaves for a block that is needed later than itself, and nothing
//! comes back into memory that an operation before wants.
//!
//! Leaving early and coming back early both take memory from others, which costs copies elsewhere. So a copy starts when
//! the time until it is needed becomes short for all that has to be copied until then, and not before.

use crate::block::{BlockId, Place, TierIndex};
use crate::operation::Garbage;
use crate::planner::{Coming, Future};
use crate::residency::Pager;
use crate::sinking::Rooms;
use crate::steps::Step;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Operations looked along after each operation, and every [`OFTEN`] operations.
const NEAR: u64 = 128;
const FAR: u64 = 1 << 13;
const OFTEN: u64 = 64;

/// An operation so near is as good as here.
const HERE: u64 = 4;

/// Operands of this many bytes are the measure of time: see [`Pager::set_pace`].
pub const PACE_BYTES: u64 = 1 << 20;

/// The pace before any was measured: a card whose memory is some thirty times as fast as its link.
const UNMEASURED: u64 = PACE_BYTES / 32;

#[derive(Debug, Default)]
pub(crate) struct Ahead {
    enabled: bool,
    /// Bytes of operands named so far.
    pub handled: u64,
    /// Bytes that a copy moves while operations get through [`PACE_BYTES`].
    pace: u64,
    /// Blocks away that are used again, soonest first, by the operation that uses them. Entries may be out of date.
    returning: BinaryHeap<Reverse<(u64, BlockId)>>,
    /// Entries of `returning` that the present look has met.
    met: Vec<Reverse<(u64, BlockId)>>,
    /// Blocks on the device that the program had used last and not let go of, at operation `ending_found`: before which
    /// operation it lets go, and of how many bytes.
    ending: Vec<(u64, u64)>,
    ending_found: u64,
    /// The far future holds work, or has not been looked at since.
    looks_far: bool,
    /// Before this operation there is nothing to be done in the near future.
    quiet_until: u64,
    /// By operations from now: bytes let go of after that one.
    let_go: Vec<u64>,
}

/// The outcome of a look along the future.
enum Found {
    Nothing,
    /// Work, but none that is to be started now.
    Later,
    Step(Step),
}

impl Pager {
    /// Whether [`next_ahead`](Self::next_ahead) has anything to say: for doors whose moves end later than they start.
    pub fn look_ahead(&mut self, enabled: bool) {
        if enabled == self.ahead.enabled {
            return;
        }
        self.ahead = Ahead { enabled, pace: UNMEASURED, ..Ahead::default() };
        self.expect_returns(true);
    }

    /// Whether there is anything to look for.
    pub fn is_looking_ahead(&self) -> bool {
        self.ahead.enabled && self.is_planning()
    }

    /// Bytes of operands that operations have named so far.
    pub fn handled(&self) -> u64 {
        self.ahead.handled
    }

    /// How many bytes a copy moves while operations get through [`PACE_BYTES`] bytes of operands, by what was measured
    /// lately.
    pub fn set_pace(&mut self, bytes: u64) {
        self.ahead.pace = bytes;
    }

    /// The next step worth taking for operations still to come, while the one begun last runs. A hint: it may be
    /// taken or left. `rooms` as for [`next_step`](Self::next_step).
    pub fn next_ahead(&mut self, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        if !self.is_looking_ahead() || self.operation.driver.refuses() {
            return None;
        }
        let now = self.planner.as_ref()?.now();
        if now >= self.ahead.ending_found + OFTEN {
            self.find_ending(now);
            self.ahead.looks_far = !self.ahead.returning.is_empty();
        }
        let step = self.look_near(now, rooms).or_else(|| self.look_far(rooms))?;
        match step {
            Step::Evict { .. } => self.counters.left_ahead += 1,
            Step::Bring { block, .. } => {
                self.counters.brought_ahead += 1;
                self.slots[block.index as usize].block.as_mut()?.ahead = true;
            }
            _ => {}
        }
        Some(step)
    }

    fn look_near(&mut self, now: u64, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        if now < self.ahead.quiet_until {
            return None;
        }
        match self.look_along(NEAR, rooms) {
            Found::Step(step) => Some(step),
            Found::Later => None,
            Found::Nothing => {
                self.ahead.quiet_until = now + NEAR / 2;
                None
            }
        }
    }

    fn look_far(&mut self, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        if !self.ahead.looks_far {
            return None;
        }
        if let Found::Step(step) = self.look_along(FAR, rooms) {
            return Some(step);
        }
        self.ahead.looks_far = false;
        None
    }

    fn look_along(&mut self, operations: u64, rooms: &dyn Fn() -> Rooms) -> Found {
        let mut let_go = std::mem::take(&mut self.ahead.let_go);
        let_go.clear();
        let_go.resize(operations as usize + 1, 0);
        let found = self.look(&mut let_go, rooms);
        let Ahead { returning, met, .. } = &mut self.ahead;
        returning.extend(met.drain(..));
        self.ahead.let_go = let_go;
        found
    }

    fn look(&mut self, let_go: &mut [u64], rooms: &dyn Fn() -> Rooms) -> Found {
        let (Some(planner), Some(budget)) = (&self.planner, self.ledger.budget().get()) else {
            return Found::Nothing;
        };
        let now = planner.now();
        let mut free = i128::from(budget) - i128::from(self.ledger.resident());
        let departing = i128::from(self.moves.departing());
        // What comes back now holds its memory from now on, so it must not be missing in between.
        let mut least_free = free;
        let (mut returning, mut handled) = (0, 0);
        let mut found = Found::Nothing;
        self.let_go_of_earlier(now, let_go);
        for after in 0..let_go.len() as u64 {
            let Some(coming) = self.coming(after, let_go) else { return found };
            free -= i128::from(coming.takes);
            let time = handled * i128::from(self.ahead.pace) / i128::from(PACE_BYTES);
            // Whether copying so many bytes would take all the time that is left.
            let is_urgent = |bytes: i128| after <= HERE || bytes >= time;
            if free + departing < 0 {
                if is_urgent(-free) {
                    return self.leave_ahead(now + after, rooms);
                }
                found = Found::Later;
            }
            least_free = least_free.min(free);
            while let Some((id, bytes)) = self.next_return(now + after) {
                let bytes = i128::from(bytes);
                free -= bytes;
                returning += bytes;
                if free >= 0 && least_free >= bytes && is_urgent(returning) {
                    return self.bring_ahead(id);
                }
                if free + departing < 0 && is_urgent(-free + bytes) {
                    return self.leave_ahead(now + after, rooms);
                }
                least_free = least_free.min(free);
                found = Found::Later;
            }
            free += i128::from(let_go[after as usize]);
            handled += i128::from(coming.handles);
        }
        found
    }

    /// The operation `after` from now, as expected; the present one has its memory and has yet to let go of the rest.
    fn coming(&self, after: u64, let_go: &mut [u64]) -> Option<Coming> {
        let coming = self.planner.as_ref()?.coming(after as i64, add_to(let_go))?;
        Some(if after == 0 { Coming::default() } else { coming })
    }

    /// Enters what operations before the present one used last and the program has yet to let go of.
    fn let_go_of_earlier(&self, now: u64, let_go: &mut [u64]) {
        let Some(planner) = &self.planner else { return };
        let found = self.ahead.ending_found;
        for (due, bytes) in &self.ahead.ending {
            add_to(let_go)(*due as i64 - 1 - now as i64, *bytes);
        }
        for back in 1..now.saturating_sub(found) {
            planner.coming(-(back as i64), add_to(let_go));
        }
    }

    fn find_ending(&mut self, now: u64) {
        let Self { ahead, planner: Some(planner), slots, .. } = self else { return };
        let blocks = slots.iter().enumerate().filter_map(|(index, slot)| {
            let block = slot.block.as_ref().filter(|block| block.place.is_on_device())?;
            let id = BlockId { index: index as u32, generation: slot.generation };
            match planner.future(id) {
                // Those of the present operation are entered with it.
                Future::Freed(after) if planner.used(id) < now => Some((now + after, block.bytes)),
                _ => None,
            }
        });
        ahead.ending.clear();
        ahead.ending.extend(blocks);
        ahead.ending_found = now;
    }

    /// The block away that is used soonest, no later than in operation `until`, and that this look has not met yet.
    fn next_return(&mut self, until: u64) -> Option<(BlockId, u64)> {
        while let Some(&Reverse((due, id))) = self.ahead.returning.peek() {
            if due > until {
                return None;
            }
            self.ahead.returning.pop();
            match self.due_return(id) {
                Some((true_due, bytes)) if true_due == due => {
                    self.ahead.met.push(Reverse((due, id)));
                    return Some((id, bytes));
                }
                Some((true_due, _)) => self.ahead.returning.push(Reverse((true_due, id))),
                None => {}
            }
        }
        None
    }

    /// The operation that uses a block that is away, if that is known, and its bytes.
    fn due_return(&self, id: BlockId) -> Option<(u64, u64)> {
        let (planner, block) = (self.planner.as_ref()?, self.get(id)?);
        match (block.place, planner.future(id)) {
            // One that could not come back now is left to its operation.
            (Place::Away(TierIndex::HOST), Future::Used(after))
                if block.stuck_in != self.operation.number =>
            {
                Some((planner.now() + after, block.bytes))
            }
            _ => None,
        }
    }

    /// The victim of the policy, unless it is needed before operation `due`, or let go of until then.
    fn leave_ahead(&mut self, due: u64, rooms: &dyn Fn() -> Rooms) -> Found {
        let Some(id) = self.planned_victim(rooms().host) else { return Found::Later };
        let (Some(planner), Some(block)) = (&self.planner, self.get(id)) else { return Found::Later };
        let stays = match planner.future(id) {
            Future::Used(after) | Future::Freed(after) => planner.now() + after <= due,
            Future::Unknown => false,
        };
        // What was brought for later is no victim for something before that: the look was wrong somewhere.
        if stays || block.ahead {
            return Found::Later;
        }
        let copy = block.copied_to();
        if copy.is_some() && self.operation.garbage == Garbage::Unsearched {
            return Found::Step(Step::Sweep);
        }
        Found::Step(Step::Evict { block: id, copy })
    }

    fn bring_ahead(&self, id: BlockId) -> Found {
        let Some(block) = self.get(id) else { return Found::Later };
        if self.has_room(block.bytes, block.arena) {
            return Found::Step(Step::Bring { block: id, from: block.place.tier() });
        }
        if self.ledger.spare() > 0 && self.ledger.fits_without(0, block.bytes) {
            return Found::Step(Step::Trim);
        }
        Found::Later
    }

    /// Notes that a block which just left is used again.
    pub(crate) fn expect_return(&mut self, id: BlockId) {
        if self.ahead.enabled
            && let Some((due, _)) = self.due_return(id)
        {
            self.ahead.returning.push(Reverse((due, id)));
            self.ahead.quiet_until = 0;
        }
    }

    /// All blocks away, where what is expected of them was set `anew`.
    pub(crate) fn expect_returns(&mut self, anew: bool) {
        if !self.ahead.enabled || !anew {
            return;
        }
        (self.ahead.ending_found, self.ahead.quiet_until) = (0, 0);
        self.ahead.returning.clear();
        for index in 0..self.slots.len() {
            let id = BlockId { index: index as u32, generation: self.slots[index].generation };
            self.expect_return(id);
        }
    }
}

/// Adds bytes to those that are let go of after so many operations from now, if that is within sight.
fn add_to(let_go: &mut [u64]) -> impl FnMut(i64, u64) {
    |after, bytes| {
        if let Some(sum) = usize::try_from(after).ok().and_then(|after| let_go.get_mut(after)) {
            *sum += bytes;
        }
    }
}
