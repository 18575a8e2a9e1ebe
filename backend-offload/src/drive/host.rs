//! Host memory for blocks that are read there, and for the program's own buffers.

use super::{Device, Halt, ahead, carry_out, complete_all_ended, halt_error, sweep};
use crate::error::OffloadError;
use crate::tiers::Draft;
use pager::{Pager, Shortage, Step, Stop};

/// Loads a block that is only on the disk to the host, to be read there.
#[cfg(any(test, feature = "router"))]
pub(crate) fn load_to_host<M: Device>(
    adapter: &mut M,
    block: pager::BlockId,
    operation: &dyn Fn() -> String,
) -> Result<(), OffloadError> {
    let below = adapter.tiers().below();
    carry_out_all(adapter, operation, |pager| pager.steps_to_host(block, below.rooms()))
}

/// Host memory for the program, or `None` if there is no room. Host copies are dropped for it, and blocks spill to the
/// disk if there is one.
pub(crate) fn draft<M: Device>(adapter: &mut M, len: usize) -> Result<Option<Draft>, OffloadError> {
    if let Ok(draft) = adapter.tiers().draft(len) {
        return Ok(Some(draft));
    }
    // Dropped tensors and finished uploads give up their memory first.
    adapter.reclaim_host();
    ahead::give_up(adapter);
    sweep(adapter);
    let below = adapter.tiers().below();
    let operation = || "making room on the host".to_owned();
    match carry_out_all(adapter, &operation, |pager| pager.steps_to_host_room(len as u64, below.rooms())) {
        Ok(()) => Ok(adapter.tiers().draft(len).ok()),
        Err(OffloadError::HostFull(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Carries out the steps that `next` returns, until it returns none.
fn carry_out_all<M: Device>(
    adapter: &mut M,
    operation: &dyn Fn() -> String,
    mut next: impl FnMut(&mut Pager) -> Result<Vec<Step>, Stop>,
) -> Result<(), OffloadError> {
    loop {
        // Moves that have ended need no wait. The operation of a failed one requests it again.
        while complete_all_ended(adapter, &mut None).is_err() {}
        let steps = match next(adapter.pager()) {
            Ok(steps) if steps.is_empty() => return Ok(()),
            Ok(steps) => steps,
            Err(Stop::Shortage(Shortage::TierFull { .. })) if ahead::give_up(adapter) => continue,
            Err(stop) => return Err(halt_error(adapter, Halt::Stop(stop), operation, None)),
        };
        for step in steps {
            match carry_out(adapter, step, &mut None) {
                Ok(_) => {}
                // The operation of a failed move requests its block again.
                Err(Halt::Move(_)) if matches!(step, Step::Wait(_)) => {}
                Err(halt) => return Err(halt_error(adapter, halt, operation, None)),
            }
        }
    }
}
