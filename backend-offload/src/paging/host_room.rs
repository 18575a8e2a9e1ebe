//! Host memory for blocks read there, and for the program's own buffers.

use super::attempt::{Attempt, Halt};
use super::{Device, Paging};
use crate::error::OffloadError;
use crate::tiers::Draft;
use pager::{Arena, Pager, Preference, Rooms, Shortage, Step, Stop, Tier};

impl Paging {
    #[cfg(any(test, feature = "router"))]
    pub(crate) fn load_to_host<D: Device>(
        &mut self,
        device: &mut D,
        block: pager::BlockId,
        operation: &dyn Fn() -> String,
    ) -> Result<(), OffloadError> {
        self.carry_out_all(device, operation, |pager, rooms| pager.steps_to_host(block, rooms))
    }

    /// Data in the last bytes below the device could not reach it: the device gets room first
    /// (`new_data_reaches_the_device_when_device_and_host_are_full`). Data that `is_there` needs no room.
    pub(crate) fn begins_on_host<D: Device>(
        &mut self,
        device: &mut D,
        bytes: u64,
        (arena, is_there): (Arena, bool),
    ) -> bool {
        if self.pager.place_new(bytes, arena, self.new_data) == Tier::Device {
            return false;
        }
        let Rooms { host, disk, .. } = self.tiers.rooms();
        let wanted = if is_there { bytes } else { 2 * bytes };
        if host.allows(wanted) || disk.allows(bytes) {
            return true;
        }
        self.make_room(device, bytes, arena);
        self.pager.place_new(bytes, arena, Preference::Policy) == Tier::Host
    }

    /// For bytes the program reads, if every block could still leave the device.
    #[cfg(feature = "cube")]
    pub(crate) fn draft_for_read(&self, len: usize) -> Option<Draft> {
        let room = self.tiers.rooms().host.less(self.pager.ledger().resident());
        if room.allows(len as u64) { self.tiers.draft(len).ok() } else { None }
    }

    /// `None` if dropped copies and spills make no room.
    pub(crate) fn draft<D: Device>(
        &mut self,
        device: &mut D,
        len: usize,
    ) -> Result<Option<Draft>, OffloadError> {
        if let Ok(draft) = self.tiers.draft(len) {
            return Ok(Some(draft));
        }

        // Dropped tensors come first, then uploads.
        self.sweep(device);
        loop {
            if let Ok(draft) = self.tiers.draft(len) {
                return Ok(Some(draft));
            }
            if !device.reclaim_upload() {
                break;
            }
        }

        device.reclaim_host();
        self.cancel_ahead();
        let operation = || "making room on the host".to_owned();
        let steps = |pager: &Pager, rooms| pager.steps_to_host_room(len as u64, rooms);
        match self.carry_out_all(device, &operation, steps) {
            Ok(()) => Ok(self.tiers.draft(len).ok()),
            Err(OffloadError::HostFull(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn carry_out_all<D: Device>(
        &mut self,
        device: &mut D,
        operation: &dyn Fn() -> String,
        next: impl Fn(&Pager, Rooms) -> Result<Vec<Step>, Stop>,
    ) -> Result<(), OffloadError> {
        let mut attempt = Attempt::new(self, device, operation);
        loop {
            // A failed move's operation requests it again.
            while attempt.complete_ended().is_err() {}
            let steps = match next(&attempt.paging.pager, attempt.paging.tiers.rooms()) {
                Ok(steps) if steps.is_empty() => return Ok(()),
                Ok(steps) => steps,
                Err(Stop::Shortage(Shortage::TierFull { .. })) if attempt.paging.cancel_ahead() => continue,
                Err(stop) => return Err(attempt.error(Halt::Stop(stop))),
            };
            for step in steps {
                match attempt.carry_out(step) {
                    Ok(_) => {}
                    Err(Halt::Move(_)) if matches!(step, Step::Wait(_)) => {}
                    Err(halt) => return Err(attempt.error(halt)),
                }
            }
        }
    }
}
