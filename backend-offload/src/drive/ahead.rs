//! Moves ahead: moves, reads and writes that start during an earlier operation. All are hints: if one fails, the
//! operation that needs it makes it again.
//!
//! The memory of a load that no operation waits for goes to a block that the program needs
//! (`memory_of_a_load_ahead_is_given_to_a_needed_block`). Devices that share a disk load nothing
//! ahead, since no device could reclaim another's memory (`devices_that_share_a_disk_load_nothing_ahead`).

use super::{Halt, Mover, bytes_of, carry_out, complete, complete_ended, halt_error};
use crate::journal::TARGET;
use crate::tiers::Tiers;
use pager::{BlockId, Link, Step};

/// Starts moves between device and host.
pub(super) fn move_blocks<M: Mover>(door: &mut M) {
    if door.pager().is_looking_ahead() && door.looks_ahead() {
        complete_ended(door);
        carry_out_all(door, Link::Device, |_, _| true);
    }
}

/// Starts to read the blocks that will be loaded next. The pager does not count these reads.
pub(super) fn read<M: Mover>(door: &mut M) {
    if door.tiers().has_disk() {
        let soon = door.pager().soon_from_disk(Tiers::READ_AHEAD);
        door.tiers().read_ahead(&soon);
    }
}

/// Loads blocks from disk into free host memory, or into memory that others can leave at once.
pub(super) fn load_blocks<M: Mover>(door: &mut M) {
    if !door.tiers().raises_ahead() {
        return;
    }
    let mut spilled = None;
    let halt = carry_out_all(door, Link::FromDisk, |door, step| match step {
        // A spill frees nothing while an upload shares the memory. A block named twice in a row was not spilled the
        // first time.
        Step::Spill { block } if door.tiers().is_lent(block) || spilled == Some(block) => false,
        Step::Spill { block } => {
            spilled = Some(block);
            true
        }
        _ => true,
    });
    if halt {
        give_up(door);
    }
}

/// Writes blocks to disk that will be spilled later. They stay on the host.
pub(super) fn write_blocks<M: Mover>(door: &mut M) {
    if door.tiers().has_disk() {
        carry_out_all(door, Link::ToDisk, |_, _| true);
    }
}

/// Carries out the pager's steps that `takes` accepts, until one is incomplete. True if one failed.
fn carry_out_all<M: Mover>(door: &mut M, link: Link, mut takes: impl FnMut(&mut M, Step) -> bool) -> bool {
    let below = door.tiers().below();
    while let Some(step) = door.pager().prefetch(link, &|| below.rooms()) {
        if !takes(door, step) {
            return false;
        }
        match carry_out(door, step, &mut None) {
            Ok(_) if matches!(step, Step::Spill { .. }) => {}
            Ok(false) => {}
            Ok(true) => return false,
            Err(halt) => {
                let error = halt_error(door, halt, &|| "moving blocks ahead".to_owned(), None);
                tracing::debug!(target: TARGET, "nothing more is moved ahead of this operation: {error}");
                return true;
            }
        }
    }
    false
}

/// Continues to load the block. True once all its bytes are on the host.
pub(super) fn load<M: Mover>(door: &mut M, block: BlockId) -> Result<bool, Halt> {
    if door.forget_if_dead(block) {
        return Ok(true);
    }
    let bytes = bytes_of(door, block)?;
    let token = match door.pager().loading() {
        Some((token, _)) => token,
        None if !door.tiers().begin_raising(block, bytes) => return Ok(false),
        None => door.pager().started(Step::LoadAhead { block })?,
    };
    if !door.tiers().raise_ahead(block).map_err(|error| Halt::Move(error.into()))? {
        return Ok(false);
    }
    complete(door, token, Ok(()), &mut None)?;
    Ok(true)
}

/// Continues to write the block. True once all its bytes are on the disk.
pub(super) fn write<M: Mover>(door: &mut M, block: BlockId) -> Result<bool, Halt> {
    if door.forget_if_dead(block) {
        return Ok(true);
    }
    if !door.tiers().write_ahead(block).map_err(|error| Halt::Move(error.into()))? {
        return Ok(false);
    }
    let token = door.pager().started(Step::WriteAhead { block })?;
    complete(door, token, Ok(()), &mut None)?;
    Ok(true)
}

/// Cancels moves ahead that hold room below the device. False if there is none.
pub(super) fn give_up<M: Mover>(door: &mut M) -> bool {
    if let Some((token, _)) = door.pager().loading()
        && let Err(fault) = door.pager().ended(token, false)
    {
        tracing::error!(target: TARGET, "giving up a block that was being loaded: {fault}");
    }
    door.tiers().give_up_ahead()
}
