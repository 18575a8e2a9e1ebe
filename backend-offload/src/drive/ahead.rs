//! Moves ahead: moves, reads and writes that start during an earlier operation. All are hints: if one fails, the
//! operation that needs it makes it again.
//!
//! The memory of a load that no operation waits for goes to a block that the program needs
//! (`memory_of_a_load_ahead_is_given_to_a_needed_block`). Devices that share a disk load nothing
//! ahead, since no device could reclaim another's memory (`devices_that_share_a_disk_load_nothing_ahead`).

use super::{Device, Halt, bytes_of, carry_out, complete, complete_ended, halt_error};
use crate::journal::TARGET;
use crate::tiers::Tiers;
use pager::{BlockId, Link, Step};

/// Starts moves between device and host.
pub(super) fn move_blocks<M: Device>(adapter: &mut M) {
    if adapter.pager().is_looking_ahead() && adapter.looks_ahead() {
        complete_ended(adapter);
        carry_out_all(adapter, Link::Device, |_, _| true);
    }
}

/// Starts to read the blocks that will be loaded next. The pager does not count these reads.
pub(super) fn read<M: Device>(adapter: &mut M) {
    if adapter.tiers().has_disk() {
        let soon = adapter.pager().soon_from_disk(Tiers::READ_AHEAD);
        adapter.tiers().read_ahead(&soon);
    }
}

/// Loads blocks from disk into free host memory, or into memory that others can leave at once.
pub(super) fn load_blocks<M: Device>(adapter: &mut M) {
    if !adapter.tiers().loads_ahead() {
        return;
    }
    let mut spilled = None;
    let halt = carry_out_all(adapter, Link::FromDisk, |adapter, step| match step {
        // A spill frees nothing while an upload shares the memory. A block named twice in a row was not spilled the
        // first time.
        Step::Spill { block } if adapter.tiers().is_lent(block) || spilled == Some(block) => false,
        Step::Spill { block } => {
            spilled = Some(block);
            true
        }
        _ => true,
    });
    if halt {
        give_up(adapter);
    }
}

/// Writes blocks to disk that will be spilled later. They stay on the host.
pub(super) fn write_blocks<M: Device>(adapter: &mut M) {
    if adapter.tiers().has_disk() {
        carry_out_all(adapter, Link::ToDisk, |_, _| true);
    }
}

/// Carries out the pager's steps that `takes` accepts, until one is incomplete. True if one failed.
fn carry_out_all<M: Device>(
    adapter: &mut M,
    link: Link,
    mut takes: impl FnMut(&mut M, Step) -> bool,
) -> bool {
    let below = adapter.tiers().below();
    while let Some(step) = adapter.pager().prefetch(link, &|| below.rooms()) {
        if !takes(adapter, step) {
            return false;
        }
        match carry_out(adapter, step, &mut None) {
            Ok(_) if matches!(step, Step::Spill { .. }) => {}
            Ok(false) => {}
            Ok(true) => return false,
            Err(halt) => {
                let error = halt_error(adapter, halt, &|| "moving blocks ahead".to_owned(), None);
                tracing::debug!(target: TARGET, "nothing more is moved ahead of this operation: {error}");
                return true;
            }
        }
    }
    false
}

/// Continues to load the block. True once all its bytes are on the host.
pub(super) fn load<M: Device>(adapter: &mut M, block: BlockId) -> Result<bool, Halt> {
    if adapter.forget_if_dead(block) {
        return Ok(true);
    }
    let bytes = bytes_of(adapter, block)?;
    let token = match adapter.pager().loading() {
        Some((token, _)) => token,
        None if !adapter.tiers().begin_load(block, bytes) => return Ok(false),
        None => adapter.pager().started(Step::LoadAhead { block })?,
    };
    if !adapter.tiers().load_ahead(block).map_err(|error| Halt::Move(error.into()))? {
        return Ok(false);
    }
    complete(adapter, token, Ok(()), &mut None)?;
    Ok(true)
}

/// Continues to write the block. True once all its bytes are on the disk.
pub(super) fn write<M: Device>(adapter: &mut M, block: BlockId) -> Result<bool, Halt> {
    if adapter.forget_if_dead(block) {
        return Ok(true);
    }
    if !adapter.tiers().write_ahead(block).map_err(|error| Halt::Move(error.into()))? {
        return Ok(false);
    }
    let token = adapter.pager().started(Step::WriteAhead { block })?;
    complete(adapter, token, Ok(()), &mut None)?;
    Ok(true)
}

/// Cancels moves ahead that hold room below the device. False if there is none.
pub(super) fn give_up<M: Device>(adapter: &mut M) -> bool {
    if let Some((token, _)) = adapter.pager().loading()
        && let Err(fault) = adapter.pager().ended(token, false)
    {
        tracing::error!(target: TARGET, "giving up a block that was being loaded: {fault}");
    }
    adapter.pager().forget_loads();
    adapter.tiers().cancel_ahead()
}
