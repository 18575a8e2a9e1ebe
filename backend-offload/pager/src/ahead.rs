//! Moves started ahead of the operation that needs them, for doors whose copies run beside the device's work.
//!
//! The [plan](crate::plan) knows who will leave and who will come back. A block leaves as soon as it has been used for the last
//! time before; nothing on paper needs it until it comes back, so its copy can as well be made while the link is idle. A block
//! comes back as soon as there is memory that nobody on paper wants before that. So what is done ahead is what would have
//! been done anyway, and the bytes are those of the plan. Where the program does something else than foreseen, the plan is
//! dropped and nothing is done ahead until there is another one.

use crate::block::{Block, BlockId, Place, Tier};
use crate::lately::Lately;
use crate::limit::Limit;
use crate::operation::Garbage;
use crate::plan::{Leave, Name, Plan};
use crate::planner::Course;
use crate::residency::Pager;
use crate::sinking::Rooms;
use crate::steps::Step;

/// Operations that the plan reaches beyond the present one.
const FAR: u64 = 1 << 13;

/// Copies off the device that are under way at a time, at most. With one, the link would idle from its end until the next operation
/// notices; with many, a copy that an operation waits for would be behind others that are needed later.
const LEAVING: usize = 32;

/// Operations planned at a time, so that no operation waits long for it.
const PLAYED: u32 = 8;

/// A plan that went wrong is made anew no earlier than this.
const OFTEN: u64 = 256;

/// A way between tiers on which moves are started ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Between host and device, in both directions.
    Device,
    /// From disk to host.
    FromDisk,
    /// From host to disk.
    ToDisk,
}

#[derive(Debug, Default)]
pub(crate) struct Ahead {
    enabled: bool,
    plan: Option<Plan>,
    /// The operation at which the plan was begun.
    begun: u64,
    /// Somebody had to leave whom the plan did not know of.
    wrong: bool,
    /// Whether blocks leave.
    leaves: Lately,
}

impl Pager {
    /// Whether moves between host and device are started ahead: for adapters whose moves end later than they start.
    pub fn look_ahead(&mut self, enabled: bool) {
        if enabled != self.ahead.enabled {
            self.ahead = Ahead { enabled, ..Ahead::default() };
        }
    }

    /// Whether there is anything to look for.
    pub fn is_looking_ahead(&self) -> bool {
        self.ahead.enabled && self.is_planning()
    }

    /// The next step for operations still to come, while the one begun last runs. A hint: the step may be taken or left.
    /// `rooms` as for [`next_step`](Self::next_step).
    pub fn prefetch(&mut self, link: Link, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        match link {
            Link::Device => self.next_ahead(rooms),
            Link::FromDisk => self.next_loaded(rooms),
            Link::ToDisk => self.next_written(rooms).map(|block| Step::WriteAhead { block }),
        }
    }

    fn next_ahead(&mut self, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        if !self.is_looking_ahead() || self.operation.driver.refuses() {
            return None;
        }
        let mut plan = self.planned()?;
        let step = self.leave_ahead(&mut plan, rooms).or_else(|| self.return_ahead(&mut plan));
        self.ahead.plan = Some(plan);
        match step? {
            Step::Evict { .. } => self.counters.left_ahead += 1,
            Step::Bring { block, .. } => {
                self.counters.brought_ahead += 1;
                self.blocks.set_ahead(block, true).ok()?;
            }
            _ => {}
        }
        step
    }

    /// The program goes on.
    pub(crate) fn plan_goes_on(&mut self, course: Course) {
        if course != Course::Foretold {
            self.ahead.plan = None;
        }
    }

    /// Takes the plan, played as far as it should be. None while everything fits.
    fn planned(&mut self) -> Option<Plan> {
        let (planner, budget) = (self.planner.as_ref()?, self.blocks.ledger().budget().get()?);
        let (now, period) = (planner.now(), planner.period()?);
        if !self.ahead.leaves.happens(now, period, self.counters.left()) {
            return None;
        }
        let is_wrong = self.ahead.wrong && now >= self.ahead.begun + OFTEN;
        let plan = self.ahead.plan.take().filter(|plan| !is_wrong && !plan.is_cluttered(self.blocks.count()));
        let mut plan = match plan {
            Some(plan) => plan,
            None if self.blocks.has_preferences() => return None,
            None => {
                (self.ahead.begun, self.ahead.wrong) = (now, false);
                Plan::begin(planner, self.blocks.live(), FAR + u64::from(PLAYED))?
            }
        };
        for _ in 0..PLAYED {
            if plan.reaches(now, FAR) {
                break;
            }
            plan.play(planner, budget);
        }
        Some(plan)
    }

    fn named(&self, name: Name) -> Option<(BlockId, &Block)> {
        let id = match name {
            Name::Block(id) => id,
            Name::Operand(number, operand) => self.planner.as_ref()?.operand(number, operand)?,
        };
        Some((id, self.get(id)?))
    }

    /// The block that leaves first by the plan, if it is where the plan has it.
    fn first_leave(&self, plan: &mut Plan) -> Option<(BlockId, Leave)> {
        let planner = self.planner.as_ref()?;
        while let Some(leave) = plan.first_leave(planner.now()) {
            match self.named(leave.name) {
                Some((id, block)) if planner.used(id) <= leave.after && self.may_leave(block) => {
                    return Some((id, leave));
                }
                _ => plan.leave_done(),
            }
        }
        None
    }

    fn leave_ahead(&self, plan: &mut Plan, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        let (id, _) = self.first_leave(plan)?;
        let block = self.get(id)?;
        let copy = block.copied_to();
        if copy.is_some() {
            let waits = self.blocks.departing().count() >= LEAVING;
            if waits || !rooms().host.allows(block.bytes) || block.stuck_in == self.operation.number {
                return None;
            }
            if self.operation.garbage == Garbage::Unsearched {
                return Some(Step::Sweep);
            }
        }
        plan.leave_done();
        Some(Step::Evict { block: id, copy })
    }

    fn return_ahead(&self, plan: &mut Plan) -> Option<Step> {
        let (planner, budget) = (self.planner.as_ref()?, self.blocks.ledger().budget().get()?);
        while let Some((first, highest)) = plan.first_return(planner.now()) {
            if matches!(first.name, Name::Operand(number, _) if number > planner.now()) {
                return None;
            }
            match self.named(first.name) {
                Some((id, block)) if block.place() == Place::Away(Tier::Host) => {
                    // One that could not come back now is left to its operation.
                    if block.stuck_in == self.operation.number || highest > budget as i64 {
                        return None;
                    }
                    if self.has_room(block.bytes, block.arena) {
                        plan.return_done();
                        return Some(Step::Bring { block: id, from: block.copies.copy() });
                    }
                    let trims =
                        self.blocks.ledger().spare() > 0 && self.blocks.ledger().fits_without(0, block.bytes);
                    return trims.then_some(Step::Trim);
                }
                // It has still to leave.
                Some((_, block)) if block.is_on_device() || block.copies.moving().is_some() => return None,
                _ => plan.return_done(),
            }
        }
        None
    }

    /// Who leaves for the present operation by the plan, if there is one and it knows.
    pub(crate) fn leaves_by_plan(&mut self, room: Limit) -> Option<BlockId> {
        let mut plan = self.ahead.plan.take()?;
        let first = self.first_leave(&mut plan).map(|(id, _)| id);
        self.ahead.plan = Some(plan);
        let able = first.filter(|id| self.get(*id).is_some_and(|block| self.is_able(block, room)));
        self.ahead.wrong |= able.is_none();
        able
    }
}
