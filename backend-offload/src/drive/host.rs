//! Room on the host: for blocks that are read there, and for the program itself.

use super::{Halt, Mover, ahead, carry_out, complete_all_ended, sweep, told};
use crate::error::OffloadError;
use crate::tiers::Draft;
use pager::{Pager, Shortage, Step, Stop};

/// Brings a block that is on the disk alone to the host, to be read there.
#[cfg(any(test, feature = "router"))]
pub(crate) fn raise<M: Mover>(
    door: &mut M,
    block: pager::BlockId,
    operation: &dyn Fn() -> String,
) -> Result<(), OffloadError> {
    let below = door.tiers().below();
    carry_out_all(door, operation, |pager| pager.steps_to_host(block, below.rooms()))
}

/// Host memory for the program; `None` if it cannot be had. Copies are given up for it, and blocks sink, where there is a disk.
pub(crate) fn draft<M: Mover>(door: &mut M, len: usize) -> Result<Option<Draft>, OffloadError> {
    if let Ok(draft) = door.tiers().draft(len) {
        return Ok(Some(draft));
    }
    // Neither dropped tensors nor finished uploads hold any of it.
    door.reclaim_host();
    ahead::give_up(door);
    sweep(door);
    let below = door.tiers().below();
    let operation = || "making room on the host".to_owned();
    match carry_out_all(door, &operation, |pager| pager.steps_to_host_room(len as u64, below.rooms())) {
        Ok(()) => Ok(door.tiers().draft(len).ok()),
        Err(OffloadError::HostFull(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Carries out the steps that `next` names, until it names none.
fn carry_out_all<M: Mover>(
    door: &mut M,
    operation: &dyn Fn() -> String,
    mut next: impl FnMut(&mut Pager) -> Result<Vec<Step>, Stop>,
) -> Result<(), OffloadError> {
    loop {
        // None is waited for that has ended. One that failed for another operation is asked for again there.
        while complete_all_ended(door, &mut None).is_err() {}
        let steps = match next(door.pager()) {
            Ok(steps) if steps.is_empty() => return Ok(()),
            Ok(steps) => steps,
            Err(Stop::Shortage(Shortage::TierFull { .. })) if ahead::give_up(door) => continue,
            Err(stop) => return Err(told(door, Halt::Stop(stop), operation, None)),
        };
        for step in steps {
            match carry_out(door, step, &mut None) {
                Ok(_) => {}
                // Its block, too, is asked for again.
                Err(Halt::Move(_)) if matches!(step, Step::Wait(_)) => {}
                Err(halt) => return Err(told(door, halt, operation, None)),
            }
        }
    }
}
