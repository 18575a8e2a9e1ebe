//! Moves, reads and writes ahead of their operation: hints, since an operation repeats what failed.
//!
//! A needed block can take a load's memory (`memory_of_a_load_ahead_is_given_to_a_needed_block`). Devices that share a
//! disk load nothing ahead: none can reclaim another's memory (`devices_that_share_a_disk_load_nothing_ahead`).

use super::attempt::{Attempt, Halt};
use super::{Device, Paging};
use crate::error::OffloadError;
use crate::journal::TARGET;
use crate::tiers::Tiers;
use pager::{BlockId, Link, Step};

impl Paging {
    pub(super) fn move_ahead<D: Device>(&mut self, device: &mut D) {
        if self.pager.is_looking_ahead() && device.may_prefetch() {
            self.complete_ended(device);
            self.carry_out_ahead(device, Link::Device, |_, _| true);
        }
    }

    pub(super) fn read_ahead(&mut self) {
        if self.tiers.has_disk() {
            let soon = self.pager.soon_from_disk(Tiers::READ_AHEAD);
            self.tiers.read_ahead(&soon);
        }
    }

    /// Loads into host memory that is free or can be freed at once.
    pub(super) fn load_ahead<D: Device>(&mut self, device: &mut D) {
        if !self.tiers.loads_ahead() {
            return;
        }
        let mut spilled = None;
        let failed = self.carry_out_ahead(device, Link::FromDisk, |tiers, step| match step {
            // An upload that shares the memory keeps it after a spill. A block named twice was not spilled.
            Step::Spill { block } if tiers.is_lent(block) || spilled == Some(block) => false,
            Step::Spill { block } => {
                spilled = Some(block);
                true
            }
            _ => true,
        });
        if failed {
            self.cancel_ahead();
        }
    }

    pub(super) fn write_ahead<D: Device>(&mut self, device: &mut D) {
        if self.tiers.has_disk() {
            self.carry_out_ahead(device, Link::ToDisk, |_, _| true);
        }
    }

    /// Ends at an incomplete step, or one that `takes` refuses. True if a step failed.
    fn carry_out_ahead<D: Device>(
        &mut self,
        device: &mut D,
        link: Link,
        mut takes: impl FnMut(&Tiers, Step) -> bool,
    ) -> bool {
        let operation = || "moving blocks ahead".to_owned();
        let mut attempt = Attempt::new(self, device, &operation);
        loop {
            let Self { pager, tiers, .. } = &mut *attempt.paging;
            let Some(step) = pager.prefetch(link, &|| tiers.rooms()) else { return false };
            if !takes(tiers, step) {
                return false;
            }
            match attempt.carry_out(step) {
                Ok(_) if matches!(step, Step::Spill { .. }) => {}
                Ok(false) => {}
                Ok(true) => return false,
                Err(halt) => {
                    let error = attempt.error(halt);
                    tracing::debug!(target: TARGET, "nothing more is moved ahead of this operation: {error}");
                    return true;
                }
            }
        }
    }

    /// False if no move holds room below the device.
    pub(super) fn cancel_ahead(&mut self) -> bool {
        if let Some((token, _)) = self.pager.loading()
            && let Err(fault) = self.pager.ended(token, false)
        {
            tracing::error!(target: TARGET, "giving up a block that was being loaded: {fault}");
        }
        self.pager.forget_loads();
        self.tiers.cancel_ahead()
    }
}

impl<D: Device> Attempt<'_, D> {
    pub(super) fn continue_load(&mut self, block: BlockId) -> Result<bool, Halt> {
        if self.device.forget_if_dead(self.paging, block) {
            return Ok(true);
        }
        let Paging { pager, tiers, .. } = &mut *self.paging;
        let moved = |error: OffloadError| Halt::Move(error.into());
        let token = match pager.loading() {
            Some((token, _)) => token,
            None if !tiers.begin_load(block).map_err(moved)? => return Ok(false),
            None => pager.started(Step::LoadAhead { block })?,
        };
        if !tiers.load_ahead(block).map_err(moved)? {
            return Ok(false);
        }
        self.complete(token, Ok(()))?;
        Ok(true)
    }

    pub(super) fn continue_write(&mut self, block: BlockId) -> Result<bool, Halt> {
        if self.device.forget_if_dead(self.paging, block) {
            return Ok(true);
        }
        if !self.paging.tiers.write_ahead(block).map_err(|error| Halt::Move(error.into()))? {
            return Ok(false);
        }
        let token = self.paging.pager.started(Step::WriteAhead { block })?;
        self.complete(token, Ok(()))?;
        Ok(true)
    }
}
