//! Failures on request: refused allocations, and one copy.

use crate::{
    races::{KnownOrder, Moment},
    settings::Faults,
};

#[derive(Debug)]
pub(crate) struct Failures {
    faults: Faults,
    allocations: u64,
    copies: u64,
    /// A failed copy not yet waited for.
    unseen: Option<Moment>,
    /// Whether a wait found the failure, and errors stay.
    stays: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyFailed;

impl Failures {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, allocations: 0, copies: 0, unseen: None, stays: false }
    }

    pub(crate) fn refuses_allocation(&mut self) -> bool {
        self.allocations += 1;
        self.faults.allocations_after.is_some_and(|after| self.allocations > after)
    }

    /// Only one does.
    pub(crate) fn fails_copy(&mut self, when: Moment) -> bool {
        let fails = self.faults.copies_after == Some(self.copies);
        self.copies += 1;
        if fails {
            self.unseen = Some(when);
        }
        fails
    }

    /// The error, once the host has waited for the failed copy. Without `STAND_IN_STICKY`, once.
    pub(crate) fn after_wait(&mut self, order: &KnownOrder) -> Result<(), CopyFailed> {
        let seen = self.unseen.take_if(|copy| order.host_has(*copy));
        self.see(seen)
    }

    /// As after a wait for all work.
    pub(crate) fn after_all(&mut self) -> Result<(), CopyFailed> {
        let seen = self.unseen.take();
        self.see(seen)
    }

    fn see(&mut self, failed: Option<Moment>) -> Result<(), CopyFailed> {
        if failed.is_none() {
            return Ok(());
        }
        self.stays = self.faults.sticky;
        Err(CopyFailed)
    }

    pub(crate) fn check(&self) -> Result<(), CopyFailed> {
        if self.stays { Err(CopyFailed) } else { Ok(()) }
    }
}
