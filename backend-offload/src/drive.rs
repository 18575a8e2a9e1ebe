//! The loop that makes an operation's operands resident: ask the pager, start its step, complete it and report the
//! result.
//!
//! Both adapters run this loop. Each implements [`Device`], which moves bytes and decides nothing. A move may complete
//! at once or later. A panic inside a move is a failed move: its block stays where it was
//! (`a_panic_in_a_move_leaves_its_block_where_it_was`).
//!
//! Random programs under any budget read what they wrote (`any_program_under_any_budget_reads_what_it_wrote`). Their
//! moves end late, in any order, or not at all. In repeated programs a seed decides when disk reads and writes end
//! (`any_repeated_program_reads_what_it_wrote_while_moves_are_ahead`).

use crate::error::OffloadError;
use crate::journal::{Event, Journal, TARGET};
use crate::report::{self, Counts, panic_message};
use crate::tiers::Tiers;
use crate::trace_file::TraceFile;
use pager::{Arena, BlockId, Fault, Limit, Outcome, Pager, Recorder, Shortage, Step, Stop, Tier, Token};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

mod ahead;
#[cfg(any(test, feature = "cube", feature = "router"))]
mod host;
#[cfg(test)]
mod tests;
mod watching;

#[cfg(any(test, feature = "cube", feature = "router"))]
pub(crate) use host::draft;
#[cfg(any(test, feature = "router"))]
pub(crate) use host::load_to_host;
#[cfg(any(test, feature = "cube", feature = "router"))]
pub(crate) use watching::{watch_step, watched_step};

/// The state of a move right after its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Landed,
    /// [`Device::ended`] or [`Device::wait`] reports the end.
    #[cfg_attr(
        not(any(test, feature = "cube")),
        expect(dead_code, reason = "only CUDA copies in parallel with its work")
    )]
    UnderWay,
}

/// Why a move failed.
#[derive(Debug)]
pub(crate) enum MoveFailure {
    /// The copy failed, or the runtime panicked.
    Copy(String),
    /// The contents no longer exist.
    Lost(OffloadError),
}

impl From<String> for MoveFailure {
    fn from(reason: String) -> Self {
        Self::Copy(reason)
    }
}

impl From<OffloadError> for MoveFailure {
    fn from(error: OffloadError) -> Self {
        Self::Lost(error)
    }
}

/// An adapter as the loop uses it: it moves the bytes of one block at a time.
pub(crate) trait Device {
    fn pager(&mut self) -> &mut Pager;
    fn tiers(&mut self) -> &mut Tiers;
    fn journal(&mut self) -> &mut Journal;
    fn counts(&self) -> &Counts;

    /// Removes the block from the adapter and the pager if the program has dropped it. An adapter that is notified of
    /// every drop keeps the default.
    fn forget_if_dead(&mut self, _block: BlockId) -> bool {
        false
    }

    /// Removes every dropped block.
    fn remove_dead(&mut self) {}

    /// Returns the allocator's spare slices to the driver.
    fn trim_allocator(&mut self);

    /// Releases host memory that only finished uploads still hold. Called before a spill, and before an operation is
    /// refused because the host is full.
    fn reclaim_host(&mut self) {}

    /// Starts to evict the block, copying its contents to the tier `copy` first. Its device memory stays valid until
    /// [`settle`](Self::settle).
    fn leave(&mut self, token: Token, block: BlockId, copy: Option<Tier>) -> Result<Progress, MoveFailure>;

    /// Allocates device memory for the block. False if the driver refuses; a panic counts as a refusal.
    fn take_memory(&mut self, block: BlockId) -> bool;

    /// Starts to copy the block's contents from a tier into its device memory.
    fn fill(&mut self, token: Token, block: BlockId, from: Tier) -> Result<Progress, MoveFailure>;

    /// Called after a move ended: releases device memory that the block no longer uses.
    fn settle(&mut self, token: Token, outcome: Outcome);

    /// The next move that has ended since the last call. `None` for an adapter whose moves complete at once.
    fn ended(&mut self) -> Option<(Token, Result<(), MoveFailure>)> {
        None
    }

    fn wait(&mut self, _token: Token) -> Result<(), MoveFailure> {
        Err("the adapter has no move to wait for".to_owned().into())
    }

    /// Whether the pager may start moves ahead of their operations: for adapters that copy in parallel with the work.
    fn looks_ahead(&mut self) -> bool {
        false
    }

    /// Counts time for which the program waited for blocks to move.
    fn waited(&mut self, time: Duration);
}

/// Makes all operands of an operation resident. `operation` names it in errors.
pub(crate) fn make_resident<M: Device>(
    adapter: &mut M,
    operands: &[BlockId],
    operation: &dyn Fn() -> String,
) -> Result<(), OffloadError> {
    if adapter.journal().is_recording() {
        // In a recording, each drop stands where it happened, not where a sweep found it.
        sweep(adapter);
        if adapter.pager().recorder().is_some_and(|recorder| recorder.pending() >= TraceFile::BUFFER) {
            write_trace(adapter);
        }
    }

    match adapter.pager().begin(operands) {
        Ok(true) => {}
        Ok(false) => {
            // A block's first use only allocates: that is no stall, so the clock is not read.
            let mut copying_since = None;
            let result = take_steps(adapter, operation, &mut copying_since);
            if let Some(start) = copying_since {
                adapter.waited(start.elapsed());
            }
            result?;
            ahead::read(adapter);
        }
        Err(stop) => return Err(stop_error(adapter, stop, operation, None)),
    }

    ahead::move_blocks(adapter);
    ahead::load_blocks(adapter);
    ahead::write_blocks(adapter);
    watching::note_operation(adapter);
    Ok(())
}

/// Completes the moves that have ended. Best effort: stops at the first failure of an operand.
pub(crate) fn complete_ended<M: Device>(adapter: &mut M) {
    let _reported_by_its_operation = complete_all_ended(adapter, &mut None);
}

fn complete_all_ended<M: Device>(adapter: &mut M, copy_failure: &mut Option<String>) -> Result<(), Halt> {
    while let Some((token, end)) = adapter.ended() {
        complete(adapter, token, end, copy_failure)?;
    }
    Ok(())
}

/// Loads `blocks` onto the device ahead of their use. Best effort: never fails.
#[cfg_attr(not(feature = "cube"), expect(dead_code, reason = "only CubeCL profiles kernels"))]
pub(crate) fn bring_ahead<M: Device>(adapter: &mut M, blocks: &[BlockId]) {
    let operation = || "bringing blocks ahead".to_owned();
    let brought = match adapter.pager().begin_ahead(blocks) {
        Ok(()) => take_steps(adapter, &operation, &mut None),
        Err(stop) => Err(stop_error(adapter, stop, &operation, None)),
    };
    if let Err(error) = brought {
        tracing::debug!(target: TARGET, "{error}");
    }
}

/// Evicts blocks until `bytes` are free, for a later allocation. Best effort: never fails.
pub(crate) fn make_room<M: Device>(adapter: &mut M, bytes: u64, arena: Arena) {
    adapter.pager().begin_room(bytes, arena);
    let stopped = take_steps(adapter, &|| "making room".to_owned(), &mut None);
    if let Err(error) = stopped {
        tracing::debug!(target: TARGET, "no room in advance: {error}");
    }
}

/// Sets the device budget and evicts blocks above it, as far as possible. Returns the previous budget.
#[cfg_attr(
    not(any(feature = "cube", feature = "router")),
    expect(dead_code, reason = "only adapters offer it")
)]
pub(crate) fn change_budget<M: Device>(adapter: &mut M, budget: Limit) -> Limit {
    let before = adapter.pager().ledger().budget();
    adapter.pager().set_budget(budget);
    make_room(adapter, 0, Arena::UNPOOLED);
    before
}

pub(crate) fn mark_step<M: Device>(adapter: &mut M) {
    adapter.pager().mark_step();
    write_trace(adapter);
}

fn write_trace<M: Device>(adapter: &mut M) {
    let recorded = adapter.pager().recorder().map(Recorder::take).unwrap_or_default();
    if !adapter.journal().write_trace(&recorded) {
        adapter.pager().stop_recording();
    }
}

pub(crate) fn sweep<M: Device>(adapter: &mut M) {
    adapter.remove_dead();
    adapter.pager().swept();
}

pub(crate) fn trim<M: Device>(adapter: &mut M) {
    adapter.trim_allocator();
    adapter.pager().trimmed();
    adapter.journal().record(Event::Trimmed);
}

fn take_steps<M: Device>(
    adapter: &mut M,
    operation: &dyn Fn() -> String,
    copying_since: &mut Option<Instant>,
) -> Result<(), OffloadError> {
    let mut copy_failure = None;
    let mut reclaimed = false;
    loop {
        match take_step(adapter, operation, copying_since, &mut copy_failure, &mut reclaimed) {
            Ok(false) => {}
            Ok(true) => return Ok(()),
            Err(Halt::Stop(Stop::Shortage(Shortage::TierFull { .. })))
                if !reclaimed || ahead::give_up(adapter) =>
            {
                reclaimed = true;
                adapter.reclaim_host();
            }
            Err(halt) => return Err(halt_error(adapter, halt, operation, copy_failure.as_deref())),
        }
    }
}

/// The reason why the loop stops before the operation is ready.
enum Halt {
    Stop(Stop),
    Move(MoveFailure),
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Self::Stop(fault.into())
    }
}

/// Takes one step. True if the operation is ready.
fn take_step<M: Device>(
    adapter: &mut M,
    operation: &dyn Fn() -> String,
    copying_since: &mut Option<Instant>,
    copy_failure: &mut Option<String>,
    reclaimed: &mut bool,
) -> Result<bool, Halt> {
    complete_all_ended(adapter, copy_failure)?;
    let below = adapter.tiers().below();
    let step = adapter.pager().next_step(&|| below.rooms()).map_err(Halt::Stop)?;
    if matches!(step, Step::Spill { .. }) && !std::mem::replace(reclaimed, true) {
        // Finished uploads may still hold host memory: release it before a block is spilled for it.
        adapter.reclaim_host();
        return Ok(false);
    }

    let copies = match step {
        Step::Evict { copy, .. } => copy.is_some(),
        Step::Bring { from, .. } => from.is_some(),
        Step::Spill { .. } | Step::Load { .. } | Step::Wait(_) => true,
        Step::LoadAhead { .. }
        | Step::WriteAhead { .. }
        | Step::DropCopy { .. }
        | Step::Ready
        | Step::Sweep
        | Step::Trim => false,
    };
    if matches!(step, Step::Bring { from: Some(_), .. }) {
        // The upload may hold host memory after the host copy is dropped.
        *reclaimed = false;
    }

    if copies {
        copying_since.get_or_insert_with(|| {
            tracing::debug!(target: TARGET, operation = operation(), "moving blocks");
            Instant::now()
        });
    }
    carry_out(adapter, step, copy_failure)
}

/// Carries out one step. True if the operation is ready.
fn carry_out<M: Device>(
    adapter: &mut M,
    step: Step,
    copy_failure: &mut Option<String>,
) -> Result<bool, Halt> {
    match step {
        Step::Ready => return Ok(true),
        Step::Sweep => sweep(adapter),
        Step::Trim => trim(adapter),
        Step::DropCopy { block, tier } => {
            let token = adapter.pager().started(step)?;
            adapter.tiers().drop_copy(block, tier);
            complete(adapter, token, Ok(()), copy_failure)?;
        }

        Step::Spill { block } if adapter.forget_if_dead(block) => {}
        Step::Spill { block } => {
            let bytes = bytes_of(adapter, block)?;
            let token = adapter.pager().started(step)?;
            if let Err(error) = caught(|| Ok(adapter.tiers().spill(block)?)) {
                adapter.pager().ended(token, false)?;
                return error_if_room(adapter.tiers().below().rooms().disk, bytes, error);
            }
            complete(adapter, token, Ok(()), copy_failure)?;
        }

        Step::Load { block } => {
            let bytes = bytes_of(adapter, block)?;
            let token = adapter.pager().started(step)?;
            if let Err(error) = caught(|| Ok(adapter.tiers().load(block, bytes)?)) {
                let room = adapter.tiers().below().rooms().host;
                adapter.pager().ended(token, false)?;
                ahead::give_up(adapter);
                return error_if_room(room, bytes, error);
            }
            complete(adapter, token, Ok(()), copy_failure)?;
        }
        Step::LoadAhead { block } => return ahead::load(adapter, block).map(|complete| !complete),
        Step::WriteAhead { block } => return ahead::write(adapter, block).map(|complete| !complete),

        Step::Evict { block, .. } if adapter.forget_if_dead(block) => {}
        Step::Evict { block, copy } => {
            let token = adapter.pager().started(step)?;
            let started = caught(|| adapter.leave(token, block, copy));
            advance(adapter, token, started, copy_failure)?;
        }

        Step::Bring { block, from } => {
            let bytes = bytes_of(adapter, block)?;
            if !has_taken_memory(adapter, block, bytes) {
                adapter.pager().device_refused();
                adapter.journal().record(Event::DeviceRefused { bytes });
                return Ok(false);
            }
            let token = adapter.pager().started(step)?;
            let started = match from {
                Some(tier) => caught(|| adapter.fill(token, block, tier)),
                None => Ok(Progress::Landed),
            };
            advance(adapter, token, started, copy_failure)?;
        }

        Step::Wait(token) => {
            let end = caught(|| adapter.wait(token));
            complete(adapter, token, end, copy_failure)?;
        }
    }
    Ok(false)
}

/// An error if `room` still allows the bytes. Otherwise another device or the program took the space, and the pager
/// decides again.
fn error_if_room(room: Limit, bytes: u64, failure: MoveFailure) -> Result<bool, Halt> {
    if room.allows(bytes) { Err(Halt::Move(failure)) } else { Ok(false) }
}

fn bytes_of<M: Device>(adapter: &mut M, block: BlockId) -> Result<u64, Fault> {
    adapter.pager().get(block).map(|block| block.bytes).ok_or(Fault::UnknownBlock(block))
}

fn has_taken_memory<M: Device>(adapter: &mut M, block: BlockId, bytes: u64) -> bool {
    catch_unwind(AssertUnwindSafe(|| adapter.take_memory(block))).unwrap_or_else(|panic| {
        tracing::warn!(target: TARGET, "the runtime refused {bytes} bytes: {}", panic_message(panic.as_ref()));
        false
    })
}

fn caught<T>(start: impl FnOnce() -> Result<T, MoveFailure>) -> Result<T, MoveFailure> {
    catch_unwind(AssertUnwindSafe(start))
        .unwrap_or_else(|panic| Err(MoveFailure::Copy(panic_message(panic.as_ref()))))
}

fn advance<M: Device>(
    adapter: &mut M,
    token: Token,
    started: Result<Progress, MoveFailure>,
    copy_failure: &mut Option<String>,
) -> Result<(), Halt> {
    match started {
        Ok(Progress::UnderWay) => Ok(()),
        Ok(Progress::Landed) => complete(adapter, token, Ok(()), copy_failure),
        Err(failure) => complete(adapter, token, Err(failure), copy_failure),
    }
}

/// Reports the end of a move to the pager, the journal and the adapter.
fn complete<M: Device>(
    adapter: &mut M,
    token: Token,
    end: Result<(), MoveFailure>,
    copy_failure: &mut Option<String>,
) -> Result<(), Halt> {
    let outcome = adapter.pager().ended(token, end.is_ok())?;
    if let Some(event) = event_of(outcome) {
        adapter.journal().record(event);
    }
    caught(|| {
        adapter.settle(token, outcome);
        Ok(())
    })
    .map_err(Halt::Move)?;
    match (end, outcome) {
        (Err(MoveFailure::Copy(reason)), Outcome::Stayed { .. }) => *copy_failure = Some(reason),
        // If the block belongs to another operation, that operation requests it again.
        (Err(failure), Outcome::NotReturned { block } | Outcome::Removed { block })
            if adapter.pager().is_operand(block) =>
        {
            return Err(Halt::Move(failure));
        }
        _ => {}
    }
    Ok(())
}

fn event_of(outcome: Outcome) -> Option<Event> {
    Some(match outcome {
        Outcome::Left { bytes, copied, .. } => Event::Evicted { bytes, copied: copied.is_some() },
        Outcome::Returned { bytes, from: Some(_), .. } => Event::Restored { bytes },
        Outcome::Dropped { bytes, .. } => Event::CopyDropped { bytes },
        Outcome::Spilled { bytes, written, .. } => Event::Sunk { bytes, written },
        Outcome::Loaded { bytes, .. } => Event::Raised { bytes },
        Outcome::WrittenAhead { bytes, .. } => Event::WrittenAhead { bytes },
        _ => return None,
    })
}

fn halt_error<M: Device>(
    adapter: &mut M,
    halt: Halt,
    operation: &dyn Fn() -> String,
    copy_failure: Option<&str>,
) -> OffloadError {
    match halt {
        Halt::Stop(stop) => stop_error(adapter, stop, operation, copy_failure),
        Halt::Move(MoveFailure::Lost(error)) => error,
        Halt::Move(MoveFailure::Copy(message)) => {
            OffloadError::RuntimePanic { operation: operation(), message }
        }
    }
}

fn stop_error<M: Device>(
    adapter: &mut M,
    stop: Stop,
    operation: &dyn Fn() -> String,
    copy_failure: Option<&str>,
) -> OffloadError {
    let below = adapter.tiers().below();
    report::stopped(stop, operation(), adapter.pager(), &below, copy_failure)
}
