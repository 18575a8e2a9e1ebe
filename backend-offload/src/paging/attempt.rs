//! Carries out the pager's steps until an operation is ready.

use super::{Device, MoveFailure, Paging, Progress, Transfer, panic_message};
use crate::error::OffloadError;
use crate::journal::{Event, TARGET};
use crate::trace_file::TraceFile;
use pager::{Arena, BlockId, Fault, Limit, Outcome, Recorder, Shortage, Step, Stop, Token};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

impl Paging {
    pub fn make_resident<D: Device>(
        &mut self,
        device: &mut D,
        operands: &[BlockId],
        operation: &dyn Fn() -> String,
    ) -> Result<(), OffloadError> {
        if self.journal.is_recording() {
            // Recordings show drops where they happened, not where a sweep found them.
            self.sweep(device);
            if self.pager.recorder().is_some_and(|recorder| recorder.pending() >= TraceFile::BUFFER) {
                self.write_trace();
            }
        }

        match self.pager.begin(operands) {
            Ok(true) => {}
            Ok(false) => {
                let mut attempt = Attempt::new(self, device, operation);
                let result = attempt.take_steps();
                let waited = attempt.copying_since.map_or(Duration::ZERO, |start| start.elapsed());
                self.counts.stall += waited;
                result?;
                self.read_ahead();
            }
            Err(stop) => return Err(self.stopped(stop, operation(), None)),
        }

        self.move_ahead(device);
        self.load_ahead(device);
        self.write_ahead(device);
        self.note_operation();
        Ok(())
    }

    /// Best effort: stops at the first failure.
    pub(crate) fn complete_ended<D: Device>(&mut self, device: &mut D) {
        let operation = || "completing moves".to_owned();
        let _reported_by_its_operation = Attempt::new(self, device, &operation).complete_ended();
    }

    /// Best effort: never fails.
    #[cfg_attr(not(feature = "cube"), expect(dead_code, reason = "only CubeCL profiles kernels"))]
    pub(crate) fn bring_ahead<D: Device>(&mut self, device: &mut D, blocks: &[BlockId]) {
        let operation = || "bringing blocks ahead".to_owned();
        let brought = match self.pager.begin_ahead(blocks) {
            Ok(()) => Attempt::new(self, device, &operation).take_steps(),
            Err(stop) => Err(self.stopped(stop, operation(), None)),
        };
        if let Err(error) = brought {
            tracing::debug!(target: TARGET, "{error}");
        }
    }

    /// For a later allocation. Best effort: never fails.
    pub(crate) fn make_room<D: Device>(&mut self, device: &mut D, bytes: u64, arena: Arena) {
        self.pager.begin_room(bytes, arena);
        let operation = || "making room".to_owned();
        if let Err(error) = Attempt::new(self, device, &operation).take_steps() {
            tracing::debug!(target: TARGET, "no room in advance: {error}");
        }
    }

    /// Evicts blocks above the budget, best effort. Returns the previous budget.
    #[cfg_attr(
        not(any(feature = "cube", feature = "router", feature = "adapter")),
        expect(dead_code, reason = "only adapters offer it")
    )]
    pub fn change_budget<D: Device>(&mut self, device: &mut D, budget: Limit) -> Limit {
        let before = self.pager.ledger().budget();
        self.pager.set_budget(budget);
        self.make_room(device, 0, Arena::UNPOOLED);
        before
    }

    pub fn mark_step(&mut self) {
        self.pager.mark_step();
        self.write_trace();
    }

    fn write_trace(&mut self) {
        let recorded = self.pager.recorder().map(Recorder::take).unwrap_or_default();
        if !self.journal.write_trace(&recorded) {
            self.pager.stop_recording();
        }
    }

    pub fn sweep<D: Device>(&mut self, device: &mut D) {
        device.sweep(self);
        self.pager.swept();
    }

    pub fn trim<D: Device>(&mut self, device: &mut D) {
        device.trim();
        self.pager.trimmed();
        self.record(Event::Trimmed);
    }
}

pub(super) struct Attempt<'a, D> {
    pub(super) paging: &'a mut Paging,
    pub(super) device: &'a mut D,
    operation: &'a dyn Fn() -> String,
    /// A first use only allocates: no stall, no clock.
    copying_since: Option<Instant>,
    copy_failure: Option<String>,
    uploads: Uploads,
}

/// Uploads that have released host memory for this attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Uploads {
    None,
    Ended,
    All,
}

pub(super) enum Halt {
    Stop(Stop),
    Move(MoveFailure),
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Self::Stop(fault.into())
    }
}

impl<'a, D: Device> Attempt<'a, D> {
    pub(super) fn new(paging: &'a mut Paging, device: &'a mut D, operation: &'a dyn Fn() -> String) -> Self {
        Self { paging, device, operation, copying_since: None, copy_failure: None, uploads: Uploads::None }
    }

    fn take_steps(&mut self) -> Result<(), OffloadError> {
        loop {
            match self.take_step() {
                Ok(false) => {}
                Ok(true) => return Ok(()),
                Err(Halt::Stop(Stop::Shortage(Shortage::TierFull { .. }))) if self.reclaims_host() => {}
                Err(halt) => return Err(self.error(halt)),
            }
        }
    }

    /// One upload's memory may suffice. Other copies fill memory that can spill after their end.
    fn reclaims_host(&mut self) -> bool {
        if self.device.reclaim_upload() {
            return true;
        }
        let may_help = self.uploads != Uploads::All || self.paging.cancel_ahead();
        if may_help {
            self.uploads = Uploads::All;
            self.device.reclaim_host();
        }
        may_help
    }

    /// True if the operation is ready.
    fn take_step(&mut self) -> Result<bool, Halt> {
        self.complete_ended()?;
        let Paging { pager, tiers, .. } = &mut *self.paging;
        let step = pager.next_step(&|| tiers.rooms()).map_err(Halt::Stop)?;
        if matches!(step, Step::Spill { .. }) && self.uploads == Uploads::None {
            // Finished uploads may hold host memory: release it before a spill.
            self.uploads = Uploads::Ended;
            self.device.release_ended();
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
            // The upload may outlive the host copy.
            self.uploads = Uploads::None;
        }

        if copies && self.copying_since.is_none() {
            tracing::debug!(target: TARGET, operation = (self.operation)(), "moving blocks");
            self.copying_since = Some(Instant::now());
        }
        self.carry_out(step)
    }

    pub(super) fn carry_out(&mut self, step: Step) -> Result<bool, Halt> {
        match step {
            Step::Ready => return Ok(true),
            Step::Sweep => self.paging.sweep(self.device),
            Step::Trim => self.paging.trim(self.device),
            Step::DropCopy { block, tier } => {
                let token = self.paging.pager.started(step)?;
                self.paging.tiers.drop_copy(block, tier);
                self.complete(token, Ok(()))?;
            }

            Step::Spill { block } | Step::Evict { block, .. }
                if self.device.forget_if_dead(self.paging, block) => {}
            Step::Spill { block } => {
                let bytes = self.paging.bytes_of(block)?;
                let token = self.paging.pager.started(step)?;
                let tiers = &mut self.paging.tiers;
                if let Err(error) = caught(|| Ok(tiers.spill(block)?)) {
                    self.paging.pager.ended(token, false)?;
                    return error_if_room(self.paging.tiers.rooms().disk, bytes, error);
                }
                self.complete(token, Ok(()))?;
            }

            Step::Load { block } => {
                let bytes = self.paging.bytes_of(block)?;
                let token = self.paging.pager.started(step)?;
                let tiers = &mut self.paging.tiers;
                if let Err(error) = caught(|| Ok(tiers.load(block)?)) {
                    let room = self.paging.tiers.rooms().host;
                    self.paging.pager.ended(token, false)?;
                    self.paging.cancel_ahead();
                    return error_if_room(room, bytes, error);
                }
                self.complete(token, Ok(()))?;
            }
            Step::LoadAhead { block } => return self.continue_load(block).map(|complete| !complete),
            Step::WriteAhead { block } => return self.continue_write(block).map(|complete| !complete),

            Step::Evict { block, copy } => {
                let token = self.paging.pager.started(step)?;
                self.start(token, Transfer::Evict { block, copies: copy.is_some() })?;
            }

            Step::Bring { block, from } => {
                let bytes = self.paging.bytes_of(block)?;
                if !self.allocates(block, bytes) {
                    self.paging.pager.device_refused(bytes);
                    self.paging.record(Event::DeviceRefused { bytes });
                    return Ok(false);
                }
                let token = self.paging.pager.started(step)?;
                match from {
                    Some(_) => self.start(token, Transfer::Bring { block })?,
                    None => self.complete(token, Ok(()))?,
                }
            }

            Step::Wait(token) => {
                let end = caught(|| self.device.wait(token));
                self.complete(token, end)?;
            }
        }
        Ok(false)
    }

    fn allocates(&mut self, block: BlockId, bytes: u64) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.device.allocate(block))).unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            tracing::warn!(target: TARGET, "the runtime refused {bytes} bytes: {message}");
            false
        })
    }

    fn start(&mut self, token: Token, transfer: Transfer) -> Result<(), Halt> {
        match caught(|| self.device.start(self.paging, token, transfer)) {
            Ok(Progress::UnderWay) => Ok(()),
            Ok(Progress::Landed) => self.complete(token, Ok(())),
            Err(failure) => self.complete(token, Err(failure)),
        }
    }

    pub(super) fn complete_ended(&mut self) -> Result<(), Halt> {
        while let Some((token, end)) = self.device.poll() {
            self.complete(token, end)?;
        }
        Ok(())
    }

    pub(super) fn complete(&mut self, token: Token, end: Result<(), MoveFailure>) -> Result<(), Halt> {
        let outcome = self.paging.pager.ended(token, end.is_ok())?;
        if let Some(event) = event_of(outcome) {
            self.paging.record(event);
        }
        caught(|| {
            self.device.finish(self.paging, token, outcome);
            Ok(())
        })
        .map_err(Halt::Move)?;

        match (end, outcome) {
            (Err(MoveFailure::Copy(reason)), Outcome::Stayed { .. }) => self.copy_failure = Some(reason),
            // Another operation requests its block again.
            (Err(failure), Outcome::NotReturned { block } | Outcome::Removed { block })
                if self.paging.pager.is_operand(block) =>
            {
                return Err(Halt::Move(failure));
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn error(&mut self, halt: Halt) -> OffloadError {
        let operation = (self.operation)();
        match halt {
            Halt::Stop(stop) => self.paging.stopped(stop, operation, self.copy_failure.as_deref()),
            Halt::Move(MoveFailure::Lost(error)) => error,
            Halt::Move(MoveFailure::Copy(message)) => OffloadError::RuntimePanic { operation, message },
        }
    }
}

impl Paging {
    pub(super) fn bytes_of(&self, block: BlockId) -> Result<u64, Fault> {
        self.pager.get(block).map(|block| block.bytes).ok_or(Fault::UnknownBlock(block))
    }
}

/// If `room` no longer allows the bytes, something else took them: the pager decides again.
fn error_if_room(room: Limit, bytes: u64, failure: MoveFailure) -> Result<bool, Halt> {
    if room.allows(bytes) { Err(Halt::Move(failure)) } else { Ok(false) }
}

fn caught<T>(act: impl FnOnce() -> Result<T, MoveFailure>) -> Result<T, MoveFailure> {
    catch_unwind(AssertUnwindSafe(act))
        .unwrap_or_else(|panic| Err(MoveFailure::Copy(panic_message(panic.as_ref()))))
}

fn event_of(outcome: Outcome) -> Option<Event> {
    Some(match outcome {
        Outcome::Left { bytes, copied, .. } => Event::Evicted { bytes, copied: copied.is_some() },
        Outcome::Returned { bytes, from: Some(_), .. } => Event::Restored { bytes },
        Outcome::Dropped { bytes, .. } => Event::CopyDropped { bytes },
        Outcome::Spilled { bytes, written, .. } => Event::Spilled { bytes, written },
        Outcome::Loaded { bytes, .. } => Event::Loaded { bytes },
        Outcome::WrittenAhead { bytes, .. } => Event::WrittenAhead { bytes },
        _ => return None,
    })
}
