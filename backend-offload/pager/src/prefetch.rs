//! Prefetch: starts moves before their operation, for adapters with asynchronous moves.
//!
//! The [schedule](crate::schedule) predicts the moves: they cost no extra bytes. They take no memory from earlier
//! operations (`the_budget_holds_while_moves_are_ahead`, `a_step_that_fits_moves_nothing_ahead`). On the stand-in for
//! CUDA, deep programs hide nine tenths of the copies that can be hidden (`a_deep_transformer_hides_its_copies`).

use crate::block::{Block, BlockId, Place, Tier};
use crate::forecast::Course;
use crate::limit::Limit;
use crate::load_ahead::LoadAhead;
use crate::recent_activity::RecentActivity;
use crate::rooms::Rooms;
use crate::schedule::{Leave, Name, Schedule};
use crate::steps::Step;
use crate::view::View;
use crate::write_ahead::WriteAhead;

/// Operations that the schedule reaches ahead.
const FAR: u64 = 1 << 13;

/// Copies off the device in progress. One leaves the link idle between operations; many delay urgent copies.
const LEAVING: usize = 32;

/// Operations planned at a time, to delay no operation for long.
const PLAYED: u32 = 8;

/// Operations between rebuilds of a schedule that is wrong or ended early.
const OFTEN: u64 = 256;

/// A link on which moves are started ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Between host and device, both directions.
    Device,
    /// From disk to host.
    FromDisk,
    /// From host to disk.
    ToDisk,
}

#[derive(Debug, Default)]
pub(crate) struct Prefetch {
    pub device: Ahead,
    pub loads: LoadAhead,
    pub writes: WriteAhead,
}

#[derive(Debug, Default)]
pub(crate) struct Ahead {
    enabled: bool,
    schedule: Option<Schedule>,
    begun: u64,
    /// An unpredicted eviction was needed.
    wrong: bool,
    /// Another preference or limit ended the schedule.
    ended: bool,
    leaves: RecentActivity,
}

impl Ahead {
    pub fn enable(&mut self, enabled: bool) {
        if enabled != self.enabled {
            *self = Self { enabled, ..Self::default() };
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// `left` counts departed blocks.
    pub fn next(&mut self, view: View, left: u64, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        if !self.enabled || view.known().is_none() || view.request.driver().refuses() {
            return None;
        }
        let mut schedule = self.scheduled(view, left)?;
        let step = leave_ahead(&mut schedule, view, rooms).or_else(|| return_ahead(&mut schedule, view));
        self.schedule = Some(schedule);
        step
    }

    pub fn note_course(&mut self, course: Course) {
        if course != Course::Predicted {
            self.schedule = None;
        }
    }

    pub fn end_schedule(&mut self) {
        (self.schedule, self.ended) = (None, true);
    }

    fn scheduled(&mut self, view: View, left: u64) -> Option<Schedule> {
        let (forecast, budget) = (view.known()?, view.blocks.ledger().limit().get()?);
        let (now, period) = (forecast.now(), forecast.period()?);
        if !self.leaves.is_active(now, period, left) {
            return None;
        }
        let is_wrong = self.wrong && now >= self.begun + OFTEN;
        let schedule =
            self.schedule.take().filter(|schedule| !is_wrong && !schedule.is_cluttered(view.blocks.count()));
        let mut schedule = match schedule {
            Some(schedule) => schedule,
            None if self.ended && now < self.begun + OFTEN => return None,
            None => {
                (self.begun, self.wrong, self.ended) = (now, false, false);
                Schedule::begin(forecast, view.blocks.live(), FAR + u64::from(PLAYED))?
            }
        };
        for _ in 0..PLAYED {
            if schedule.reaches(now, FAR) {
                break;
            }
            schedule.play(forecast, budget);
        }
        Some(schedule)
    }

    pub fn scheduled_victim(&mut self, view: View, room: Limit) -> Option<BlockId> {
        let mut schedule = self.schedule.take()?;
        let first = first_leave(&mut schedule, view).map(|(id, _)| id);
        self.schedule = Some(schedule);
        let is_able = |id: &BlockId| view.blocks.get(*id).is_some_and(|block| view.is_able(block, room));
        let able = first.filter(is_able);
        self.wrong |= able.is_none();
        able
    }
}

fn named(view: View<'_>, name: Name) -> Option<(BlockId, &Block)> {
    let id = match name {
        Name::Block(id) => id,
        Name::Operand(number, operand) => view.forecast?.operand(number, operand)?,
    };
    Some((id, view.blocks.get(id)?))
}

/// The first block to leave, if it is where the schedule has it.
fn first_leave(schedule: &mut Schedule, view: View) -> Option<(BlockId, Leave)> {
    let forecast = view.known()?;
    while let Some(leave) = schedule.first_leave(forecast.now()) {
        match named(view, leave.name) {
            Some((id, block)) if forecast.used(id) <= leave.after && view.may_leave(block) => {
                return Some((id, leave));
            }
            _ => schedule.leave_done(),
        }
    }
    None
}

fn leave_ahead(schedule: &mut Schedule, view: View, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
    let (id, _) = first_leave(schedule, view)?;
    let block = view.blocks.get(id)?;
    let copy = block.copied_to();
    if copy.is_some() {
        let waits = view.blocks.departing().count() >= LEAVING;
        if waits || !rooms().host.allows(block.bytes) || block.stuck_in == view.request.number() {
            return None;
        }
        if !view.request.is_swept() {
            return Some(Step::Sweep);
        }
    }
    schedule.leave_done();
    Some(Step::Evict { block: id, copy })
}

fn return_ahead(schedule: &mut Schedule, view: View) -> Option<Step> {
    let (forecast, budget) = (view.known()?, view.blocks.ledger().limit().get()?);
    while let Some((first, highest)) = schedule.first_return(forecast.now()) {
        if matches!(first.name, Name::Operand(number, _) if number > forecast.now()) {
            return None;
        }
        match named(view, first.name) {
            Some((id, block)) if block.place() == Place::Away(Tier::Host) => {
                if block.stuck_in == view.request.number() || highest > budget as i64 {
                    return None;
                }
                if view.blocks.ledger().has_room(block.bytes, block.arena) {
                    schedule.return_done();
                    return Some(Step::Bring { block: id, from: block.copies.copy() });
                }
                let trims =
                    view.blocks.ledger().spare() > 0 && view.blocks.ledger().fits_without(0, block.bytes);
                return trims.then_some(Step::Trim);
            }
            Some((_, block)) if block.is_on_device() || block.copies.moving().is_some() => return None,
            _ => schedule.return_done(),
        }
    }
    None
}
