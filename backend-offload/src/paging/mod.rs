//! The paging of one device: pager, tiers below, journal, counts.
//!
//! Both adapters own a [`Paging`] and implement [`Device`], which moves bytes and decides nothing.
//! [`Paging::make_resident`] starts the pager's steps on the device, and reports their ends, at once or later. A panic
//! in a move fails it (`a_panic_in_a_move_leaves_its_block_where_it_was`).
//!
//! Random programs read what they wrote, while moves end late, in any order, or never
//! (`any_program_under_any_budget_reads_what_it_wrote`). In repeated programs a seed times disk transfers
//! (`any_repeated_program_reads_what_it_wrote_while_moves_are_ahead`).

mod attempt;
mod device;
#[cfg(any(test, feature = "cube", feature = "router"))]
mod host_room;
mod prefetch;
mod report;
mod settings;
#[cfg(test)]
mod tests;
mod watching;

pub use device::{Device, MoveFailure, Progress, Transfer};
pub use report::{Counts, panic_message};
pub use settings::PagingSettings;

use crate::error::OffloadError;
use crate::journal::{Event, Journal};
#[cfg(any(test, feature = "cube"))]
use crate::tiers::Share;
use crate::tiers::{Draft, SlabSource, Tiers};
use crate::timeline::Watch;
#[cfg(feature = "cube")]
use pager::Token;
use pager::{Arena, BlockId, Fault, Pager, Preference, Recorder};

#[derive(Debug)]
pub struct Paging {
    pager: Pager,
    tiers: Tiers,
    journal: Journal,
    counts: Counts,
    new_data: Preference,
    watch: Option<Box<Watch>>,
}

impl Paging {
    pub fn new(settings: &PagingSettings, source: SlabSource) -> Self {
        Self {
            pager: settings.pager(),
            tiers: settings.tiers(source),
            journal: Journal::new(settings.trace.clone()),
            counts: Counts::default(),
            new_data: Preference::Policy,
            watch: None,
        }
    }

    pub fn pager(&self) -> &Pager {
        &self.pager
    }

    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    pub fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    pub(crate) fn record(&mut self, event: Event) {
        self.journal.record(event);
    }

    pub(crate) fn record_failure(&mut self, error: &OffloadError) {
        self.record(Event::Failed { error: error.to_string() });
    }

    #[cfg(any(feature = "cube", feature = "adapter"))]
    pub fn count_failure(&mut self, error: &OffloadError) {
        self.counts.failures += 1;
        self.record_failure(error);
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.journal.drain()
    }

    pub(crate) fn recorder(&mut self) -> Option<&mut Recorder> {
        self.pager.recorder()
    }

    pub fn insert(&mut self, bytes: u64, arena: Arena) -> BlockId {
        self.pager.insert(bytes, arena)
    }

    #[cfg(feature = "router")]
    pub(crate) fn insert_on_host(&mut self, contents: Draft) -> Result<BlockId, Fault> {
        let block = self.insert(contents.len() as u64, Arena::UNPOOLED);
        if let Err(fault) = self.pager.wrote_on_host(block) {
            self.remove(block)?;
            return Err(fault);
        }
        self.keep(block, contents);
        Ok(block)
    }

    pub fn remove(&mut self, block: BlockId) -> Result<(), Fault> {
        self.tiers.remove(block);
        self.pager.remove(block)
    }

    #[cfg(feature = "cube")]
    pub(crate) fn discard(&mut self, block: BlockId) -> Result<Option<Token>, Fault> {
        let token = self.pager.discard(block)?;
        if token.is_some() {
            self.tiers.remove(block);
        }
        Ok(token)
    }

    pub fn pin(&mut self, block: BlockId) -> Result<(), Fault> {
        self.pager.pin(block)
    }

    pub(crate) fn prefer(&mut self, block: BlockId, preference: Preference) -> Result<(), Fault> {
        self.pager.prefer(block, preference)
    }

    pub(crate) fn prefer_for_new(&mut self, preference: Preference) {
        self.new_data = preference;
    }

    pub fn wrote(&mut self, block: BlockId) -> Result<(), Fault> {
        if !self.pager.wrote(block)?.is_empty() {
            self.tiers.remove(block);
        }
        Ok(())
    }

    #[cfg(any(test, feature = "cube"))]
    pub(crate) fn edit_on_host(
        &mut self,
        block: BlockId,
        len: usize,
        share: Share,
        edit: impl FnOnce(&mut [u8]),
    ) -> Result<bool, Fault> {
        if !self.tiers.edit(block, len, share, edit) {
            return Ok(false);
        }
        self.pager.wrote_on_host(block)?;
        Ok(true)
    }

    /// Makes memory with all its contents the block's host copy.
    #[cfg(feature = "cube")]
    pub(crate) fn take_on_host(&mut self, block: BlockId, contents: Draft) -> Result<(), Fault> {
        self.tiers.keep(block, contents);
        self.pager.wrote_on_host(block)
    }

    pub fn keep(&mut self, block: BlockId, copy: Draft) {
        self.tiers.keep(block, copy);
    }

    /// Allows moves ahead, if [`Device::may_prefetch`] does too.
    pub(crate) fn look_ahead(&mut self) {
        self.pager.look_ahead(true);
    }

    #[cfg(all(test, feature = "router"))]
    pub(crate) fn start_recording(&mut self) {
        self.pager.record();
    }

    #[cfg(all(test, feature = "router"))]
    pub(crate) fn corrupt(&mut self, block: BlockId) {
        self.tiers.corrupt(block);
    }

    pub fn reset_peaks(&mut self) {
        self.pager.reset_peaks();
        self.tiers.pool().reset_peaks();
    }
}
