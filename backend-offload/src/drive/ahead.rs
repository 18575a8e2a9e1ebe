//! Hints: moves, reads and writes that start beside the operation about to run, for operations to come. Nothing here fails, and
//! whatever comes to nothing is done when it is needed.

use super::{Halt, Mover, bytes_of, carry_out, complete_ended, told};
use crate::journal::{Event, TARGET};
use crate::tiers::Tiers;
use pager::{BlockId, Step};

/// Starts moves between device and host.
pub(super) fn move_blocks<M: Mover>(door: &mut M) {
    if !door.pager().is_looking_ahead() || !door.looks_ahead() {
        return;
    }
    complete_ended(door);
    let below = door.tiers().below();
    while let Some(step) = door.pager().next_ahead(&|| below.rooms()) {
        if let Err(halt) = carry_out(door, step, &mut None) {
            let error = told(door, halt, &|| "moving blocks ahead".to_owned(), None);
            tracing::debug!(target: TARGET, "nothing more is moved ahead of this operation: {error}");
            return;
        }
    }
}

/// Starts to read what will be raised next, which changes no book.
pub(super) fn read<M: Mover>(door: &mut M) {
    if door.tiers().has_disk() {
        let soon = door.pager().soon_from_disk(Tiers::READ_AHEAD);
        door.tiers().read_ahead(&soon);
    }
}

/// Goes on raising what is needed next into host memory that is free, or that others can leave at once.
pub(super) fn raise<M: Mover>(door: &mut M) {
    if !door.tiers().raises_ahead() {
        return;
    }
    let below = door.tiers().below();
    let mut sinking = None;
    while let Some(step) = door.pager().next_above(&|| below.rooms()) {
        let goes_on = match step {
            Step::Raise { block } => raised_ahead(door, block),
            // Nothing is gained while an upload holds its memory, too, or where it did not sink before.
            Step::Sink { block } if door.tiers().is_lent(block) || sinking == Some(block) => Ok(false),
            Step::Sink { block } => {
                sinking = Some(block);
                carry_out(door, step, &mut None).map(|_| true)
            }
            _ => Ok(false),
        };
        match goes_on {
            Ok(true) => {}
            Ok(false) => return,
            Err(halt) => {
                give_up(door);
                let error = told(door, halt, &|| "raising blocks ahead".to_owned(), None);
                tracing::debug!(target: TARGET, "nothing more is raised beside this operation: {error}");
                return;
            }
        }
    }
}

fn raised_ahead<M: Mover>(door: &mut M, block: BlockId) -> Result<bool, Halt> {
    if door.forget_if_dead(block) {
        return Ok(true);
    }
    let bytes = bytes_of(door, block)?;
    if door.pager().raising().is_none() {
        if !door.tiers().begin_raising(block, bytes) {
            return Ok(false);
        }
        door.pager().raise_begun(block)?;
    }
    if !door.tiers().raise_ahead(block).map_err(|error| Halt::Move(error.into()))? {
        return Ok(false);
    }
    door.pager().raised_ahead(block)?;
    door.journal().record(Event::Raised { bytes });
    Ok(true)
}

/// Gives up what nobody waits for and takes room below the device. False if there is nothing.
pub(super) fn give_up<M: Mover>(door: &mut M) -> bool {
    if let Err(fault) = door.pager().raise_given_up() {
        tracing::error!(target: TARGET, "giving up a block that was on its way from the disk: {fault}");
    }
    door.tiers().give_up_ahead()
}

/// Starts to write what is to sink. What the disk has all of stays on the host, too.
pub(super) fn write<M: Mover>(door: &mut M) {
    if !door.tiers().has_disk() {
        return;
    }
    let below = door.tiers().below();
    while let Some(block) = door.pager().next_below(&|| below.rooms()) {
        if door.forget_if_dead(block) {
            continue;
        }
        match written_ahead(door, block) {
            Ok(true) => {}
            Ok(false) => return,
            Err(halt) => {
                let error = told(door, halt, &|| "writing blocks to the disk ahead".to_owned(), None);
                tracing::debug!(target: TARGET, "nothing more is written beside this operation: {error}");
                return;
            }
        }
    }
}

fn written_ahead<M: Mover>(door: &mut M, block: BlockId) -> Result<bool, Halt> {
    let bytes = bytes_of(door, block)?;
    if !door.tiers().write_ahead(block).map_err(|error| Halt::Move(error.into()))? {
        return Ok(false);
    }
    door.pager().written_below(block)?;
    door.journal().record(Event::WrittenAhead { bytes });
    Ok(true)
}
